"""Asynchronous work in a thread of its own, whose results are taken as they come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_PARTING_SECONDS = 1.0
"""How long work that is cancelled has to close its connections."""


def packs(work: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]) -> Iterator[list[T]]:
    """What a coroutine hands to the function that it is given, in lists of what has come meanwhile.

    When the iterator is closed or interrupted, the coroutine is cancelled. Its thread ends with the
    program at the latest, so that Ctrl-C waits for nobody. Raises what the coroutine raises, after
    all that it handed over.
    """
    came: SimpleQueue[T | None] = SimpleQueue()
    with _event_loop() as loop:
        working = asyncio.run_coroutine_threadsafe(work(came.put), loop)
        working.add_done_callback(lambda _: came.put(None))
        ended = False
        while not ended:
            found = [came.get()]
            found += [came.get() for _ in range(came.qsize())]
            ended = found[-1] is None
            if pack := [item for item in found if item is not None]:
                yield pack
        working.result()


@contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in a thread of its own, as the caller's may have one: a notebook has."""
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
