"""Results in object storage: S3 and what speaks its protocol, Google Cloud, Azure.

By obstore, a binding of the Rust crate ``object_store``: it puts objects whole and on conditions,
tries again where a server throttles or does not answer, and takes credentials and addresses from
the environment as each cloud's own tools do. A finished cell is one object. Unfinished work is kept
in parts, an object for each pack of answers. A cell is taken by an object that its process renews:
where that stays as it was for :data:`LEASE` seconds, by the clock of who looks, its process is dead
and the cell is free. Should two processes compute one cell all the same, both write the same one.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from icl_bench.errors import UserError
from icl_bench.results.cells import JOURNAL
from icl_bench.wording import one_line, plain

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult, UpdateVersion

LEASE = 30.0
"""Seconds after which a lock that nobody has renewed is free."""

RENEWALS = 3
"""Times that a lock is renewed within a lease."""

T = TypeVar("T")

Version: TypeAlias = "UpdateVersion"
"""What tells one writing of an object from others."""

LOCKS, PROBE = ".locks", ".writable"
"""The folder of locks, and what is written to see whether that is allowed."""

PATIENCE, AT_FIRST = timedelta(minutes=3), timedelta(seconds=15)
"""How long a request is tried again, and how long the first one of a command is."""


class ObjectStorage:
    """Objects below a prefix of a bucket, ``s3://bucket/prefix``; names with a dot are no part."""

    readers = 32
    """Files that are worth reading side by side."""

    def __init__(self, url: str) -> None:
        """Connects to nothing yet. Raises ``UserError`` for an address that is none."""
        try:
            from obstore.store import from_url
        except ImportError:
            raise UserError(
                f"--results {plain(url)}: the obstore package is missing; pip install 'icl-bench[storage]'"
            ) from None
        from obstore.exceptions import BaseError

        self.url = url.rstrip("/")
        try:
            self._store, self._at_first = (
                from_url(self.url, retry_config={"max_retries": 20, "retry_timeout": patience})
                for patience in (PATIENCE, AT_FIRST)
            )
        except (BaseError, ValueError, TypeError) as error:
            raise UserError(f"--results {plain(url)}: {_reason(error)}") from None

    def prepare(self) -> None:
        """Write an object and remove it. Raises ``UserError``."""
        name = f"{PROBE}-{uuid.uuid4().hex}"
        try:
            with _told():
                self._at_first.put(name, b"")
            # it answers: a deletion that no answer came to in time is worth another try
            self.delete(name)
        except OSError as error:
            raise UserError(
                f"results folder {self.url}: cannot be written ({error.strerror or error}); give another with --results"
            ) from None

    def exists(self) -> bool:
        """Whether there is any object. Raises ``UserError`` where it cannot be asked."""
        try:
            with _told():
                return any(self._at_first.list(chunk_size=1))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UserError(f"results folder {self.url}: cannot be read ({error.strerror or error})") from None

    def names(self, under: str = "") -> list[str]:
        """All objects, or those below a name."""
        return [path for path, _ in self.listed(under) if not _hidden(path)]

    def listed(self, under: str = "") -> list[tuple[str, str]]:
        """Each object, hidden ones too, with what changes whenever it is written."""
        found = _persist(lambda: self._store.list(under or None, chunk_size=1000).collect())
        return [(str(meta["path"]), str(meta["e_tag"])) for meta in found]

    def has(self, name: str) -> bool:
        """Whether there is such an object."""
        try:
            self.version(name)
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str) -> bytes:
        """The whole object."""
        return _persist(lambda: bytes(self._store.get(name).bytes()))

    def put(self, name: str, content: bytes) -> None:
        """Put it whole."""
        _persist(lambda: self._store.put(name, content, use_multipart=False))

    def rename(self, name: str, to: str) -> None:
        """Copy, then delete: object storage has nothing else."""
        _persist(lambda: self._store.copy(name, to))
        self.delete(name)

    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""
        with suppress(FileNotFoundError):
            _persist(lambda: self._store.delete(name))

    def where(self, name: str = "") -> str:
        """Its address."""
        return f"{self.url}/{name}" if name else self.url

    def journals(self) -> ObjectJournals:
        """Locks and unfinished work beside the finished cells."""
        return ObjectJournals(self)

    # -- on conditions --------------------------------------------------------------------------

    def create(self, name: str, content: bytes) -> Version | None:
        """Put an object that is not there: its version, or None where there is one."""
        from obstore.exceptions import AlreadyExistsError

        try:
            return _version(
                _persist(lambda: self._store.put(name, content, mode="create", use_multipart=False), AlreadyExistsError)
            )
        except AlreadyExistsError:
            # by an answer that was lost on its way it may be our own
            with suppress(FileNotFoundError):
                if self.read(name) == content:
                    return self.version(name)
            return None

    def replace(self, name: str, content: bytes, version: Version) -> Version | None:
        """Put an object over this version of it: its new one, or None where it is another."""
        from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

        lost = (AlreadyExistsError, NotFoundError, PreconditionError)
        try:
            return _version(_persist(lambda: self._store.put(name, content, mode=version, use_multipart=False), *lost))
        except lost:
            with suppress(FileNotFoundError):
                if self.read(name) == content:
                    return self.version(name)
            return None

    def version(self, name: str) -> Version:
        """What tells this writing of an object from others. Raises ``FileNotFoundError``."""
        return _version(_persist(lambda: self._store.head(name)))


class ObjectJournals:
    """Journals in parts, and locks that are renewed."""

    def __init__(self, storage: ObjectStorage) -> None:
        self.storage = storage
        self._seen: dict[str, tuple[str, float]] = {}
        """Others' locks: how they were when they were first seen so, and when that was."""
        self._mine: set[str] = set()

    def take(self, cell: str) -> Callable[[], None] | None:
        """Create the cell's lock, or take over one that was not renewed for a lease."""
        name, storage = _lock(cell), self.storage
        content = _owner()
        version = storage.create(name, content)
        if version is None:
            try:
                there = storage.version(name)
            except FileNotFoundError:
                return None  # given back just now: it is asked for again
            if name in self._mine or not self._is_dead(name, str(there["e_tag"])):
                return None
            version = storage.replace(name, content, there)
            if version is None:
                return None
        self._seen.pop(name, None)
        self._mine.add(name)
        lease = _Lease(storage, name, version)

        def give_back() -> None:
            self._mine.discard(name)
            lease.end()

        return give_back

    def open(self, cell: str) -> ObjectJournal:
        """Open the journal of a cell."""
        return ObjectJournal(self.storage, f"{cell}{JOURNAL}")

    def delete(self, cell: str) -> None:
        """Remove all parts of a journal."""
        for name in self.storage.names(f"{cell}{JOURNAL}"):
            self.storage.delete(name)

    def others_at_work(self) -> bool:
        """Whether there is another process' lock that may be alive."""
        found = [(name, tag) for name, tag in self.storage.listed(LOCKS) if name not in self._mine]
        dead = [self._is_dead(name, tag) for name, tag in found]  # each of them is looked at
        return not all(dead)

    def _is_dead(self, name: str, tag: str) -> bool:
        """Whether a lock has been as it is for a lease, as far as was seen from here."""
        now = time.monotonic()
        before, since = self._seen.get(name, (None, now))
        if before != tag:
            since = now
        self._seen[name] = tag, since
        return now - since > LEASE


class ObjectJournal:
    """A journal whose parts are objects, in the order of their names."""

    def __init__(self, storage: ObjectStorage, folder: str) -> None:
        self._storage, self._folder = storage, folder
        self._parts = sorted(storage.names(folder))
        self._next = 1 + max((int(name.rpartition("/")[2].partition("-")[0]) for name in self._parts), default=0)

    def read(self) -> bytes:
        """All parts."""
        return b"".join(map(self._storage.read, self._parts))

    def cut(self, size: int) -> None:
        """Keep the first bytes: the part that they end in is written anew, those behind it go."""
        kept = self.read()[:size]
        parts, self._parts = self._parts, []
        if kept:
            self.append(kept)
        for name in parts:  # last, so that a kill leaves what can be read twice
            self._storage.delete(name)

    def append(self, lines: bytes) -> None:
        """Put a part. Raises ``OSError``."""
        # a name of its own: should another process be at the same cell, neither loses anything
        name = f"{self._folder}/{self._next:08d}-{uuid.uuid4().hex[:8]}"
        self._storage.put(name, lines)
        self._parts.append(name)
        self._next += 1

    def close(self) -> None:
        """Nothing is open."""


class _Lease:
    """Renews a lock until it is given back, or somebody has taken it."""

    def __init__(self, storage: ObjectStorage, name: str, version: Version) -> None:
        self._storage, self._name, self._version = storage, name, version
        self._over = threading.Event()
        self._lost = False
        self._thread = threading.Thread(target=self._renew, daemon=True, name=f"lease {name}")
        self._thread.start()

    def end(self) -> None:
        """Give it back, if it is still this process'."""
        self._over.set()
        self._thread.join()
        if not self._lost:
            with suppress(OSError):  # it runs out by itself
                self._storage.delete(self._name)

    def _renew(self) -> None:
        while not self._over.wait(LEASE / RENEWALS):
            try:
                version = self._storage.replace(self._name, _owner(), self._version)
            except OSError:
                continue  # the next one may get through
            if version is None:
                self._lost = True
                return
            self._version = version


def _version(said: PutResult | ObjectMeta) -> Version:
    # a store has one of them or both, and takes no empty one back
    found: Version = {}
    if said["e_tag"] is not None:
        found["e_tag"] = said["e_tag"]
    if said["version"] is not None:
        found["version"] = said["version"]
    return found


def _owner() -> bytes:
    """Whose lock it is, for who looks, and other content each time."""
    said = {"host": socket.gethostname(), "process": os.getpid(), "id": uuid.uuid4().hex}
    return json.dumps(said).encode()


def _lock(cell: str) -> str:
    return f"{LOCKS}/{cell.rpartition('-')[2]}.json"  # by the hash that ends the name


def _hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


@contextmanager
def _told(*but: type[BaseException]) -> Iterator[None]:
    """Raise ``OSError`` in one line for what goes wrong, but errors that are expected."""
    from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except but:
        raise
    except (NotFoundError, FileNotFoundError) as error:
        raise FileNotFoundError(2, _reason(error)) from None
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        raise PermissionError(13, _reason(error)) from None
    except (BaseError, OSError) as error:
        raise OSError(5, _reason(error)) from None


def _persist(do: Callable[[], T], *but: type[BaseException]) -> T:
    """What a request gives that may be made twice. The library tries again where a server throttles
    or breaks off, but not each kind of request where no answer came in time.

    Raises ``OSError`` as :func:`_told` does, after :data:`PATIENCE`.
    """
    start, pause = time.monotonic(), 0.1
    while True:
        try:
            with _told(*but):
                return do()
        except (FileNotFoundError, PermissionError):
            raise
        except OSError:
            if time.monotonic() - start > PATIENCE.total_seconds():
                raise
        time.sleep(pause)
        pause = min(2 * pause, 10.0)


def _reason(error: BaseException) -> str:
    """What obstore says, without the structures of its library."""
    said = str(error).partition("\n\nDebug source")[0]
    return one_line(said)[:300] or type(error).__name__
