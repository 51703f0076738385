"""Runs a coroutine in its own thread and yields its results as they arrive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_PARTING_SECONDS = 1.0
"""How long a cancelled coroutine has to close its connections."""


def packs(coroutine_of: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]) -> Iterator[list[T]]:
    """Yield the results of a coroutine in lists of those that have arrived meanwhile.

    ``coroutine_of`` is called with a function that takes one result. If the iterator is closed or
    interrupted, the coroutine is cancelled. Its thread is a daemon, so Ctrl-C does not wait for it.
    Raises the coroutine's exception after all results.
    """
    results: SimpleQueue[T | None] = SimpleQueue()
    with _event_loop() as loop:
        future = asyncio.run_coroutine_threadsafe(coroutine_of(results.put), loop)
        future.add_done_callback(lambda _: results.put(None))
        ended = False
        while not ended:
            items = [results.get()]
            items += [results.get() for _ in range(results.qsize())]
            ended = items[-1] is None
            if batch := [item for item in items if item is not None]:
                yield batch
        future.result()


@contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in its own thread: the caller's thread may already have one, as in a notebook."""
    runner = asyncio.Runner()
    ready: SimpleQueue[asyncio.AbstractEventLoop] = SimpleQueue()

    def serve() -> None:
        with runner:
            ready.put(loop := runner.get_loop())
            loop.run_forever()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    loop = ready.get()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_PARTING_SECONDS)
