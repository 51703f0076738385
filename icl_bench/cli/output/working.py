"""What commands that read results say while they work: on a terminal, and after a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, cast

from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from icl_bench.cli.output.terminal import console
from icl_bench.escaping import visible
from icl_bench.results.cells import FINISHED
from icl_bench.results.storage import Place, Storage, storage_at
from icl_bench.wording import counted

if TYPE_CHECKING:
    from rich.console import Console

PATIENCE_SECONDS = 1.0
"""How long a command says nothing: most are over by then."""


class Elapsed(ProgressColumn):
    """The time since a command began."""

    def __init__(self, began: float) -> None:
        super().__init__()
        self._began = began

    def render(self, task: Task) -> Text:
        """As ``0:01:02``."""
        del task
        seconds = int(time.monotonic() - self._began)
        return Text(str(timedelta(seconds=seconds)), "progress.elapsed")


class Spinner:
    """A line on standard error with the time and what is being done, gone at the end.

    It comes after so many seconds, by itself: what is done may take long to say its next word.
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
        """What is being done now."""
        self._progress.update(self._task, said=visible(text))

    def stop(self) -> None:
        """Take it away."""
        with self._lock:
            self._over = True
            self._timer.cancel()
            if self._progress.live.is_started:
                self._progress.stop()


@contextmanager
def working() -> Iterator[Callable[[str], None]]:
    """Give what is told what a command is at; nothing is shown where there is no terminal."""
    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield lambda _: None
        return
    spinner = Spinner(terminal, time.monotonic(), PATIENCE_SECONDS)
    try:
        yield spinner.say
    finally:
        spinner.stop()


class _Read:
    """A storage that tells how many of its files of predictions were read."""

    def __init__(self, place: Place, say: Callable[[str], None]) -> None:
        self._place, self._storage, self._say = place, storage_at(place), say
        self._done, self._files = 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def __str__(self) -> str:
        return str(self._place)

    def names(self, under: str = "") -> list[str]:
        """Those of the storage."""
        found = self._storage.names(under)
        if not under:
            self._done, self._files = 0, sum(name.endswith(FINISHED) for name in found)
        return found

    def read(self, name: str) -> bytes:
        """The file, after it was counted."""
        if name.endswith(FINISHED):
            self._done += 1
            self._say(f"reading results: {self._done:,} of {counted(self._files, 'file')}")
        content = self._storage.read(name)
        if self._done >= self._files:
            self._say(f"working on {counted(self._files, 'file')} of results")
        return content


def watched(place: Place, say: Callable[[str], None]) -> Place:
    """A place of results that tells ``say`` while its files are read."""
    return cast("Storage", _Read(place, say))
