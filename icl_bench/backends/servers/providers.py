"""Providers of models: the address, the key's variable and the interface."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, quote, urlsplit

from icl_bench.backends.servers.anthropic import Messages
from icl_bench.backends.servers.interface import Interface
from icl_bench.backends.servers.openai import Chat, Completions, GoogleChat, OwnServerChat, Responses
from icl_bench.errors import UserError
from icl_bench.wording import one_line

API_VERSION = "api-version"
"""The only query of an address: Azure's (https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle)."""

Endpoint = Literal["completions", "chat", "responses"]


@dataclass(frozen=True)
class Provider:
    """A provider or a kind of server."""

    name: str
    """Its backend in the registry."""
    key: str
    """The environment variable with the key."""
    address: str | None = None
    """Its default address; None if the user gives one."""
    also_sent: tuple[str, ...] = ()
    """Environment variables that the library sends in addition to the key, if set."""

    def where(self, base_url: str | None) -> str:
        """The validated address of the server. Raises ``UserError``."""
        base_url = base_url or self.address
        if not base_url:
            raise UserError(f"--backend {self.name}: needs --base-url, like https://host/v1")
        try:
            parts = urlsplit(base_url)
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_valid = False
        if not is_valid:
            raise UserError("--base-url: not an address like https://host/v1")
        names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
        if parts.username or parts.password or parts.fragment or names not in ([], [API_VERSION]):
            raise UserError(
                f"--base-url: must not contain a key, user or query other than ?{API_VERSION}=; a key goes "
                f"into {self.key}"
            )
        where, sign, query = base_url.partition("?")
        return f"{where.rstrip('/')}{sign}{query}" if query else where.rstrip("/")

    def secret(self) -> str:
        """The key, from the environment. Raises ``UserError`` without the key in its message."""
        for name in (self.key, *self.also_sent):
            value = os.environ.get(name, "").strip()
            if not all("!" <= letter <= "~" for letter in value):
                raise UserError(
                    f"--backend {self.name}: {name}: holds a blank, a line break or another character that "
                    "cannot be sent; set it to the key alone, which is letters, digits and signs"
                )
        key = os.environ.get(self.key, "").strip()
        if not key:
            raise UserError(
                f"--backend {self.name}: {self.key} is not set; for a server that needs no key set it to any word"
            )
        return key

    def interface(self, base_url: str, endpoint: Endpoint) -> Interface:
        """The interface of the server at this address."""
        if self.name == "anthropic":
            return Messages()
        if self.name == "google":
            return GoogleChat()
        if endpoint == "responses":
            return Responses()
        if endpoint == "completions":
            return Completions()
        host = urlsplit(base_url).hostname or ""
        return Chat() if host.endswith(OPENAI_HOSTS) else OwnServerChat()


OPENAI_HOSTS = ("openai.com", "azure.com")
"""Suffixes of host names that refuse arguments unknown to OpenAI."""

PROVIDERS: Mapping[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider("openai", "OPENAI_API_KEY", None, ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID")),
        Provider("anthropic", "ANTHROPIC_API_KEY", "https://api.anthropic.com"),
        Provider("google", "GEMINI_API_KEY", "https://generativelanguage.googleapis.com/v1beta/openai"),
    )
}


@dataclass(frozen=True)
class Connection:
    """A server and its key."""

    base_url: str
    key: str
    variable: str
    """The environment variable with the key."""

    @property
    def client_arguments(self) -> dict[str, object]:
        """Arguments for the client of either library."""
        where, _, query = self.base_url.partition("?")
        return {"base_url": where, "default_query": dict(parse_qsl(query)), "api_key": self.key}

    def without_key(self, text: str) -> str:
        """A message on one line, without the key in any spelling."""
        key = self.key
        for spelled in (key, json.dumps(key)[1:-1], repr(key)[1:-1], quote(key), quote(key, safe="")):
            text = text.replace(spelled, "***")
        return one_line("".join(sign if sign.isprintable() else " " for sign in text))
