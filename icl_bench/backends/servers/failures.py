"""The code, reason and content type of a failed request, for the errors of both libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icl_bench.backends.servers.interface import as_json

CANCELLED = "cancelled"
"""The code of a request of a batch that was cancelled."""


class RowError(Exception):
    """The error of one request of a batch, with the fields of the libraries' errors."""

    def __init__(self, message: str, status_code: int | None = None, code: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.status_code, self.code = status_code, code
        """The status is None if the request was not executed."""
        self.body = {"code": code, "type": code, "param": param, "message": message}


def code_of(error: Any) -> str:
    """The code of a provider's error: ``insufficient_quota``, ``content_filter``, ..."""
    body = getattr(error, "body", None)
    code = getattr(error, "code", None) or (body.get("code") if isinstance(body, Mapping) else None)
    kind = body.get("type") if isinstance(body, Mapping) else None
    return str(kind if kind == "insufficient_quota" else code or "")


_NOT_SENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "LocalProtocolError", "UnsupportedProtocol"}
"""Errors of the libraries' HTTP clients (httpx, httpx2) before a server has a request."""


def was_sent(error: BaseException) -> bool:
    """Whether a server has a request that it did not answer: the connection ended, or the time. It may bill it."""
    if isinstance(error, TimeoutError):
        return True
    ended = type(error).__name__ in ("APIConnectionError", "APITimeoutError")
    return ended and type(error.__cause__).__name__ not in _NOT_SENT


def error_in(content: bytes) -> str | None:
    """The message of an error in a response with status 200, as gateways send it; None if the response is not an
    error.
    """
    body = as_json(content)
    if not isinstance(body, dict) or any(body.get(name) for name in ("choices", "output", "content")):
        return None
    error = body.get("error")
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:300]


def failure_reason(error: Any) -> str:
    """Why a request failed."""
    cause = error.__cause__ if str(error) == "Connection error." else None
    text = str(cause or error) or type(error).__name__
    kind = content_type(error.response) if hasattr(error, "response") else ""
    # an HTML page has no message that fits on a line
    return f"status {error.status_code}, {kind}" if "html" in kind else text


def content_type(response: Any) -> str:
    """The content type of a response: ``text/html``."""
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip()[:60] or "content of no kind"
