"""Progress of commands that read results: shown on a terminal, after a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock, Timer
from typing import Any, cast

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from icl_bench.cli.output.terminal import console
from icl_bench.escaping import visible
from icl_bench.results.anonymous import Anonymous
from icl_bench.results.cells import FINISHED
from icl_bench.results.storage import Place, Storage, storage_at
from icl_bench.wording import counted

DELAY_SECONDS = 1.0
"""Delay before a command shows progress; most commands finish earlier."""


class Elapsed(ProgressColumn):
    """The time since a command started."""

    def __init__(self, began: float) -> None:
        super().__init__()
        self._began = began

    def render(self, task: Task) -> Text:
        """Format the time as ``0:01:02``."""
        del task
        seconds = int(time.monotonic() - self._began)
        return Text(str(timedelta(seconds=seconds)), "progress.elapsed")


class Spinner:
    """A line on standard error with the elapsed time and the current step, removed at the end.

    A timer shows it after ``after_seconds``, because the next step may come late.
    """

    def __init__(self, terminal: Console, began: float, after_seconds: float = 0.0) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            Elapsed(began),
            TextColumn("{task.fields[said]}", markup=False),
            console=terminal,
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._progress.add_task("", total=None, said="")
        self._over, self._lock = False, Lock()
        self._timer = Timer(after_seconds, self._start)
        self._timer.daemon = True
        if after_seconds:
            self._timer.start()
        else:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if not self._over:
                self._progress.start()

    def say(self, text: str) -> None:
        """Show the current step."""
        self._progress.update(self._task, said=visible(text))

    def stop(self) -> None:
        """Remove the line."""
        with self._lock:
            self._over = True
            self._timer.cancel()
            if self._progress.live.is_started:
                self._progress.stop()


@contextmanager
def working() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step; it does nothing without a terminal."""
    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield lambda _: None
        return
    spinner = Spinner(terminal, time.monotonic(), DELAY_SECONDS)
    try:
        yield spinner.say
    finally:
        spinner.stop()


class _CountedReads:
    """A storage that reports how many of its files of predictions have been read."""

    def __init__(self, place: Place, say: Callable[[str], None]) -> None:
        self._place, self._storage, self._say = place, storage_at(place), say
        self._done, self._files = 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def __str__(self) -> str:
        return str(self._place)

    def names(self, under: str = "") -> list[str]:
        """The names of the storage; counts files of predictions."""
        names = self._storage.names(under)
        if not under:
            self._done, self._files = 0, sum(name.endswith(FINISHED) for name in names)
        return names

    def read(self, name: str) -> bytes:
        """Count the file and read it."""
        if name.endswith(FINISHED):
            self._done += 1
            self._say(f"reading results: {self._done:,} of {counted(self._files, 'file')}")
        content = self._storage.read(name)
        if self._done >= self._files:
            self._say(f"working on {counted(self._files, 'file')} of results")
        return content


def watched(place: Place, say: Callable[[str], None], anonymous: bool = False) -> Place:
    """A place of results that reports to ``say`` while its files are read, anonymised on request."""
    return cast("Storage", _CountedReads(cast("Storage", Anonymous(place)) if anonymous else place, say))
