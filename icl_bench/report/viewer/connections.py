"""Connections of the viewer's server that do not wait for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10
"""Within which a connection must send the whole head of a request. uvicorn limits only the pause between two."""


class ShortWaits(H11Protocol):
    """A connection that is closed if a request's head does not arrive in time."""

    waits: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the head is whole
            self._stop_waiting()
        elif self.waits is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self.waits = self.loop.call_later(SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self.waits is not None:
            self.waits.cancel()
        self.waits = None
