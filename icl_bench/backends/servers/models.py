"""A server's models, their windows, and how it constrains labels, found before the run."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from icl_bench.backends.servers.bodies import TooLargeError, limited_blocking
from icl_bench.backends.servers.failures import error_in, failure_reason
from icl_bench.backends.servers.interface import Held, Interface, Question, as_json
from icl_bench.backends.servers.providers import Connection
from icl_bench.errors import CellError, UserError
from icl_bench.prompts.written_labels import label_in

_WINDOWS = ("max_model_len", "context_length", "context_window", "max_context_length", "max_input_tokens")
"""Names of a model's window in servers' lists: vLLM's and SGLang's; OpenRouter's, Together's; Groq's; Mistral's;
Anthropic's."""

_SECONDS = 120.0
"""The longest time between two bytes of an answer."""

_WORDS = ("zirconium", "quokka")
"""Labels of the probe, which no model generates without a constraint."""


class Listed(NamedTuple):
    """A model in a server's list."""

    window: int | None
    """In tokens; None if the server does not report it."""
    owner: Any
    """Who provides the model: for vLLM and SGLang, their own names."""


def listed_models(
    interface: Interface, connection: Connection, seconds: float = _SECONDS, retries: int = 2
) -> dict[str, Listed]:
    """The server's models by name; empty if it lists no models.

    Raises ``CellError`` if it does not answer or refuses the key.
    """
    library: Any = importlib.import_module(interface.library)
    try:
        with client_of(library, interface, connection, seconds, retries) as client:
            listed = client.models.with_raw_response.list()
            content = listed.http_response.content
    except library.APIConnectionError as error:
        reason = f"{connection.base_url} does not answer ({failure_reason(error)})"
        raise CellError(connection.without_key(reason)) from None
    except library.AuthenticationError:
        reason = f"{connection.base_url} refuses the key in {connection.variable}"
        raise CellError(connection.without_key(reason)) from None
    except library.APIError:
        return {}  # a server need not list its models
    body = as_json(content)
    data = body.get("data") if isinstance(body, Mapping) else None
    rows = data if isinstance(data, list) else []
    named = [row for row in rows if isinstance(row, Mapping) and isinstance(row.get("id"), str)]
    return {row["id"]: Listed(_window(row), row.get("owned_by")) for row in named}


def _window(row: Mapping[str, Any]) -> int | None:
    """The window in a model's entry."""
    meta = row.get("meta")  # llama.cpp's
    places = [row.get(name) for name in _WINDOWS] + [meta.get("n_ctx") if isinstance(meta, Mapping) else None]
    return next((size for size in places if isinstance(size, int) and not isinstance(size, bool) and size > 0), None)


def found_hold(model: str, interface: Interface, connection: Connection) -> Held | None:
    """How the server constrains answers to labels, found by a request for each way; None if it supports none.

    The request asks for a greeting and allows two odd words. Raises ``UserError`` if the server fails.
    """
    library: Any = importlib.import_module(interface.library)
    question = Question("Say hello in one word:", [{"role": "user", "content": "Say hello in one word."}])
    with client_of(library, interface, connection) as client:
        for hold in interface.holds:
            extra = interface.held(hold, _WORDS)
            for limit in interface.limits:
                named = {limit: 512} if limit in interface.named else {}
                asked = {**interface.marked(question), **named, "extra_body": {**extra, limit: 512}}
                try:
                    content = probed(library, connection, "--hold auto", interface.create(client), model, asked)
                    text = interface.read(content).written.text
                except (library.APIError, ValueError):
                    continue  # this way, or this name of the limit, is refused
                if label_in(text, _WORDS) is not None:
                    return hold
                break
    return None


def probed(
    library: Any, connection: Connection, option: str, create: Any, model: str, arguments: Mapping[str, Any]
) -> bytes:
    """The body of the response to a request that probes the server's support for an option.

    Raises the library's error if the server refuses it, and ``UserError`` if the server does not answer, fails, is
    overloaded or refuses the key, because its support is unknown then.
    """
    passing = (library.APIConnectionError, library.RateLimitError, library.InternalServerError)
    try:
        content: bytes = create(model=model, **arguments).http_response.content
        if (reason := error_in(content)) is None:
            return content
    except (*passing, library.AuthenticationError, TooLargeError) as error:
        reason = failure_reason(error)
    raise UserError(connection.without_key(f"{option}: {connection.base_url}: {reason}"))


def client_of(
    library: Any, interface: Interface, connection: Connection, seconds: float = _SECONDS, retries: int = 2
) -> Any:
    """A client of the provider's library without an event loop."""
    kind = getattr(library, interface.client.removeprefix("Async"))
    http = limited_blocking(library.DefaultHttpxClient)
    return kind(**connection.client_arguments, timeout=seconds, max_retries=retries, http_client=http)
