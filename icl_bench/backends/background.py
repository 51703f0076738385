"""Runs a coroutine in its own thread and yields its results as they arrive. Several threads can wait at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_PARTING_SECONDS = 1.0
"""How long a cancelled coroutine has to close its connections."""

_LOOK_SECONDS = 0.5
"""How often a thread that waits for others can be interrupted, whichever thread the signal reaches."""


class Together:
    """Threads that wait at the same time, while their own work is done by one of them at a time.

    Their coroutines run in one event loop, so that they share what they count and limit.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, requests: int) -> None:
        """``requests`` is how many requests of all threads may run at a time."""
        self.loop, self.requests = loop, asyncio.Semaphore(requests)
        self.threads = 0
        """The number of threads that work."""
        self._turn = threading.Lock()
        self._futures: set[Future[None]] = set()
        self._interrupted = False

    @classmethod
    @contextmanager
    def of(cls, requests: int) -> Iterator[Together]:
        """Start the event loop, and stop it at the end of the block."""
        with _event_loop() as loop:
            yield cls(loop, requests)

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Do these works, each in a thread of its own. Raises the first exception once all have ended.

        If this thread is interrupted, the coroutines of all are cancelled, and it waits a moment for the threads.
        """
        ended: SimpleQueue[BaseException | None] = SimpleQueue()

        def guarded(work: Callable[[], None]) -> None:
            problem: BaseException | None = None
            with self._turn:
                self.threads += 1
                try:
                    if not self._interrupted:
                        work()
                except BaseException as error:  # raised by the thread that waits for all
                    problem = error
                self.threads -= 1
            ended.put(problem)

        problems: list[BaseException | None] = []
        try:
            for work in works:
                threading.Thread(target=guarded, args=(work,), daemon=True).start()
            while len(problems) < len(works):  # an interrupted Thread.join takes a running thread for ended
                with suppress(Empty):
                    problems.append(ended.get(timeout=_LOOK_SECONDS))
        except BaseException:
            self._interrupted = True
            for future in list(self._futures):
                future.cancel()
            deadline = time.monotonic() + _PARTING_SECONDS
            with suppress(Empty):
                while len(problems) < len(works):
                    problems.append(ended.get(timeout=max(deadline - time.monotonic(), 0.0)))
            raise
        for problem in problems:
            if problem is not None:
                raise problem

    @contextmanager
    def waiting(self, future: Future[None]) -> Iterator[None]:
        """Let other threads work while this one waits for a coroutine."""
        self._futures.add(future)
        if self._interrupted:
            future.cancel()
        self._turn.release()
        try:
            yield
        finally:
            self._turn.acquire()
            self._futures.discard(future)


def packs(
    coroutine_of: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]], together: Together | None = None
) -> Iterator[list[T]]:
    """Yield the results of a coroutine in lists of those that have arrived meanwhile.

    ``coroutine_of`` is called with a function that takes one result. In a thread of ``together``, others work while
    this one waits. If the iterator is closed or
    interrupted, the coroutine is cancelled. Its thread is a daemon, so Ctrl-C does not wait for it.
    Raises the coroutine's exception after all results.
    """
    results: SimpleQueue[T | None] = SimpleQueue()
    with _event_loop() if together is None else nullcontext(together.loop) as loop:
        future = asyncio.run_coroutine_threadsafe(coroutine_of(results.put), loop)
        future.add_done_callback(lambda _: results.put(None))
        ended = False
        try:
            while not ended:
                with nullcontext() if together is None else together.waiting(future):
                    items = [results.get()]
                items += [results.get() for _ in range(results.qsize())]
                ended = items[-1] is None
                if batch := [item for item in items if item is not None]:
                    yield batch
            future.result()
        finally:
            future.cancel()


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
