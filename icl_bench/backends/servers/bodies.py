"""A limit on the size of responses, which the libraries of providers do not have."""

from __future__ import annotations

from typing import Any

LARGEST = 16 * 2**20
"""Bytes of the largest response that is read: an answer of 32,768 tokens with its thoughts is far below."""


class TooLargeError(Exception):
    """A response that is larger than any answer."""


def limited(client: type[Any], largest: int = LARGEST) -> Any:
    """A library's HTTP client that raises :class:`TooLargeError` for a larger response."""

    class Limited(client):  # type: ignore[misc]
        async def send(self, request: Any, *, stream: bool = False, **further: Any) -> Any:
            response = await super().send(request, stream=True, **further)
            if not stream:
                size = 0
                body = bytearray()
                try:
                    async for part in response.aiter_bytes():
                        size += len(part)
                        if size > largest:
                            raise TooLargeError(f"the server answered with more than {largest // 2**20} MiB")
                        body += part
                finally:
                    await response.aclose()
                whole = type(response)(
                    response.status_code,
                    headers=[(name, value) for name, value in response.headers.items() if name not in _OF_THE_WIRE],
                    content=bytes(body),
                    request=response.request,
                    extensions=response.extensions,
                    history=response.history,
                )
                response = whole
            return response

    return Limited()


_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")
"""Headers of the body as it was sent."""
