"""Time limits for user-supplied patterns and templates: regular expressions that backtrack, templates that do not
end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TookTooLongError(Exception):
    """A time limit has passed."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`TookTooLongError` after this number of seconds of the process's CPU time.

    Waiting on a busy machine does not count. Python's ``re`` checks for signals while it matches, so it is interrupted,
    too. (The package ``regex`` has a time limit of its own, but its ``\\w`` and ``\\b`` count other characters, such as
    the vowel signs of Hindi, so answers would differ from those of lm-evaluation-harness.) Only the main thread of a
    process can be interrupted; other threads have no limit.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    runs = True

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - what Python passes
        if runs:
            raise TookTooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        runs = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
