"""A limit on the size of responses, which the libraries of providers do not have."""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any

from icl_bench.errors import CellError

LARGEST = 16 * 2**20
"""Maximum bytes of a response. An answer of 32,768 tokens with its thoughts is far smaller."""


class TooLargeError(CellError):
    """A response exceeds the size limit."""


def limited(client: type[Any], largest: int = LARGEST) -> Any:
    """A library's asynchronous HTTP client that raises :class:`TooLargeError` for a larger response."""

    class Limited(client):  # type: ignore[misc]
        async def send(self, request: Any, *, stream: bool = False, **further: Any) -> Any:
            response = await super().send(request, stream=True, **further)
            if stream:
                return response
            body = _Body(largest)
            try:
                async for part in response.aiter_bytes():
                    body.add(part)
            finally:
                await response.aclose()
            return body.whole(response)

    return Limited(verify=_certificates(client))


def limited_blocking(client: type[Any], largest: int = LARGEST) -> Any:
    """:func:`limited` for a blocking HTTP client."""

    class Limited(client):  # type: ignore[misc]
        def send(self, request: Any, *, stream: bool = False, **further: Any) -> Any:
            response = super().send(request, stream=True, **further)
            if stream:
                return response
            body = _Body(largest)
            try:
                for part in response.iter_bytes():
                    body.add(part)
            finally:
                response.close()
            return body.whole(response)

    return Limited(verify=_certificates(client))


def _certificates(client: type[Any]) -> Any:
    """What the client would load for itself to verify servers, loaded once in a program."""
    kind = next(kind for kind in client.__mro__ if kind.__name__ in ("Client", "AsyncClient"))
    named = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    return _loaded_certificates(kind.__module__.partition(".")[0], named)


@cache
def _loaded_certificates(library: str, _named: tuple[str | None, str | None]) -> Any:
    """They take some 30 ms, and a run has several clients. The other argument is what the library reads."""
    return importlib.import_module(library).create_ssl_context()


class _Body:
    """The body of a response so far."""

    def __init__(self, largest: int) -> None:
        self._largest, self._content = largest, bytearray()

    def add(self, part: bytes) -> None:
        """Add a part. Raises :class:`TooLargeError`."""
        if len(self._content) + len(part) > self._largest:
            raise TooLargeError(f"the server answered with more than {self._largest // 2**20} MiB")
        self._content += part

    def whole(self, response: Any) -> Any:
        """The response with all of its body."""
        return type(response)(
            response.status_code,
            headers=[(name, value) for name, value in response.headers.items() if name not in _OF_THE_WIRE],
            content=bytes(self._content),
            request=response.request,
            extensions=response.extensions,
            history=response.history,
        )


_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")
"""Headers of the body as it was sent."""
