"""Backends of models behind servers, for tests."""

from __future__ import annotations

from typing import Any

from icl_bench.backends.servers.backend import ServerBackend
from icl_bench.backends.servers.openai import Chat, Completions
from icl_bench.backends.servers.providers import PROVIDERS, Connection


def server_backend(
    url: str, *, endpoint: str = "completions", provider: str = "openai", **options: Any
) -> ServerBackend:
    """A backend of model ``m``; the key is read from the environment, as a loader does."""
    server = PROVIDERS[provider]
    of_tests = {"completions": Completions(), "chat": Chat()}
    interface = of_tests.get(endpoint) if provider == "openai" else None
    return ServerBackend(
        "m",
        interface or server.interface(url, endpoint),  # type: ignore[arg-type]
        Connection(server.where(url), server.secret(), server.key),
        **{"identity": {"backend": provider}, "patience_seconds": 2, **options},
    )
