"""Locks and journals of unfinished cells; a journal survives a killed process.

Both are addressed by the cell's name (``Identity.name``). They have an interface separate from
finished files (:mod:`icl_bench.results.storage`), because not every storage can lock files or append
to one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from icl_bench.results.cells import JOURNAL
from icl_bench.results.storage import LocalStorage, Place, storage_at

LOCKS = ".locks"
"""The folder of the lock files."""


class Journal(Protocol):
    """The lines of one unfinished cell; only the process that holds its lock opens it."""

    def read(self) -> bytes:
        """All lines."""

    def cut(self, size: int) -> None:
        """Keep the first ``size`` bytes and drop the rest."""

    def append(self, lines: bytes) -> None:
        """Append lines; they are durable when this returns. Raises ``OSError``."""

    def close(self) -> None:
        """Close the journal; this process appends no more lines."""


class Journals(Protocol):
    """Locks and journals of the cells of one results folder. Failures raise ``OSError``."""

    def take(self, cell: str) -> Callable[[], None] | None:
        """Lock a cell for this process.

        Returns a function that releases it, or None if another process holds it. Locks of a process
        that died are free.
        """

    def open(self, cell: str) -> Journal:
        """Open the journal of a cell, empty if it is new."""

    def delete(self, cell: str) -> None:
        """Remove the journal of a cell, if there is one."""

    def others_at_work(self) -> bool:
        """Whether another process holds a cell with a journal."""


class LocalJournals:
    """Journals next to the finished files of a folder, with locks by flock, which end with their process.

    All processes must see the same locks: the folder is on one machine, or on a network file system
    that supports flock.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def take(self, cell: str) -> Callable[[], None] | None:
        """Lock the cell's lock file."""
        from filelock import FileLock, Timeout

        locks = self.root / LOCKS
        locks.mkdir(parents=True, exist_ok=True)
        lock = FileLock(locks / f"{cell.rpartition('-')[2]}.lock")  # the hash at the end of the name
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        return lock.release

    def open(self, cell: str) -> LocalJournal:
        """Open the journal's file, creating its folder."""
        path = self._path(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        return LocalJournal(path)

    def delete(self, cell: str) -> None:
        """Remove the journal's file."""
        self._path(cell).unlink(missing_ok=True)

    def others_at_work(self) -> bool:
        """Whether one of the journals' locks is held."""
        journals = self.root.rglob(f"*{JOURNAL}")
        return any(self._held(journal.name.removesuffix(JOURNAL)) for journal in journals)

    def _held(self, cell: str) -> bool:
        if (give_back := self.take(cell)) is None:
            return True
        give_back()
        return False

    def _path(self, cell: str) -> Path:
        return self.root / f"{cell}{JOURNAL}"


class LocalJournal:
    """A journal in a file."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("a+b")

    def read(self) -> bytes:
        """The whole file."""
        self._stream.seek(0)
        return self._stream.read()

    def cut(self, size: int) -> None:
        """Truncate the file."""
        self._stream.truncate(size)

    def append(self, lines: bytes) -> None:
        """Append and sync to disk."""
        self._stream.write(lines)
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # a full disk has already been reported
            self._stream.close()


def journals_at(place: Place) -> Journals:
    """The journals of a results folder. Raises ``TypeError`` for a storage without journals."""
    storage = storage_at(place)
    if isinstance(storage, LocalStorage):
        return LocalJournals(storage.root)
    make_journals = getattr(storage, "journals", None)
    if make_journals is None:
        raise TypeError(f"{storage.where()}: its storage has no method journals()")
    journals: Journals = make_journals()
    return journals
