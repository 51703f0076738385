"""Results in object storage: S3 and compatible servers, Google Cloud, Azure.

Uses obstore, a binding of the Rust crate ``object_store``. It writes objects atomically and conditionally, retries if a
server throttles or does not answer, and reads credentials and addresses from the environment like each cloud's own
tools. A finished cell is one object. Unfinished work is stored in parts, one object for each pack of answers. A lock is
an object that its process renews. If a lock does not change for :data:`LEASE` seconds by the observer's clock, its
process is dead and the cell is free. If two processes compute one cell nevertheless, both write the same result.
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
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from icl_bench.errors import UserError
from icl_bench.results.cells import JOURNAL
from icl_bench.wording import one_line, plain

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult, UpdateVersion

LEASE = 30.0
"""Seconds after which a lock that is not renewed is free."""

RENEWALS = 3
"""Number of renewals within a lease."""

T = TypeVar("T")

Version: TypeAlias = "UpdateVersion"
"""Identifies one written version of an object."""

LOCKS, PROBE = ".locks", ".writable"
"""The folder of locks, and the name of the object that tests write access."""

PATIENCE, AT_FIRST = timedelta(minutes=3), timedelta(seconds=15)
"""How long requests are retried, and how long the first request of a command is."""


class ObjectStorage:
    """Objects under a prefix of a bucket, ``s3://bucket/prefix``; names that begin with a dot are hidden."""

    readers = 32
    """Number of files to read in parallel."""

    def __init__(self, url: str) -> None:
        """Connect to nothing yet. Raises ``UserError`` for an invalid address."""
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
            with _os_errors():
                self._at_first.put(name, b"")
            # the server answers, so an unanswered deletion is worth retrying
            self.delete(name)
        except OSError as error:
            raise UserError(
                f"results folder {self.url}: cannot be written ({error.strerror or error}); give another with --results"
            ) from None

    def exists(self) -> bool:
        """Whether there is any object. Raises ``UserError`` if listing fails."""
        try:
            with _os_errors():
                return any(self._at_first.list(chunk_size=1))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UserError(f"results folder {self.url}: cannot be read ({error.strerror or error})") from None

    def names(self, under: str = "") -> list[str]:
        """Names of all objects, or of those under a name."""
        return [path for path, _ in self.listed(under) if not any(part.startswith(".") for part in path.split("/"))]

    def listed(self, under: str = "") -> list[tuple[str, str]]:
        """Name and e-tag of each object, including hidden ones; a write changes the e-tag."""
        objects = _persist(lambda: self._store.list(under or None, chunk_size=1000).collect())
        return [(str(meta["path"]), str(meta["e_tag"])) for meta in objects]

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
        """Put the whole object."""
        _persist(lambda: self._store.put(name, content, use_multipart=False))

    def rename(self, name: str, to: str) -> None:
        """Copy, then delete, because object storage cannot rename."""
        _persist(lambda: self._store.copy(name, to))
        self.delete(name)

    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""
        with suppress(FileNotFoundError):
            _persist(lambda: self._store.delete(name))

    def where(self, name: str = "") -> str:
        """The address of an object."""
        return f"{self.url}/{name}" if name else self.url

    def journals(self) -> ObjectJournals:
        """Locks and unfinished work next to the finished cells."""
        return ObjectJournals(self)

    # -- conditional puts --------------------------------------------------------------------------

    def create(self, name: str, content: bytes) -> Version | None:
        """Put a new object. Returns its version, or None if the object exists."""
        from obstore.exceptions import AlreadyExistsError

        return self._put_if(name, content, "create", AlreadyExistsError)

    def replace(self, name: str, content: bytes, version: Version) -> Version | None:
        """Replace this version of an object. Returns the new version, or None if the object has changed."""
        from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

        return self._put_if(name, content, version, AlreadyExistsError, NotFoundError, PreconditionError)

    def _put_if(
        self, name: str, content: bytes, mode: Literal["create"] | Version, *lost: type[BaseException]
    ) -> Version | None:
        """Put an object. Returns its version, or None after an error of the types in ``lost``."""
        try:
            return _version(_persist(lambda: self._store.put(name, content, mode=mode, use_multipart=False), *lost))
        except lost:
            # it may be this process's own, if the answer to an earlier attempt was lost
            with suppress(FileNotFoundError):
                if self.read(name) == content:
                    return self.version(name)
            return None

    def version(self, name: str) -> Version:
        """The current version of an object. Raises ``FileNotFoundError``."""
        return _version(_persist(lambda: self._store.head(name)))


class ObjectJournals:
    """Journals in parts, and locks that are renewed."""

    def __init__(self, storage: ObjectStorage) -> None:
        self.storage = storage
        self._seen: dict[str, tuple[str, float]] = {}
        """E-tags of others' locks, and when each was first seen."""
        self._mine: set[str] = set()

    def take(self, cell: str) -> Callable[[], None] | None:
        """Create the cell's lock, or take over a lock that has not been renewed for a lease."""
        name = f"{LOCKS}/{cell.rpartition('-')[2]}.json"  # the hash at the end of the name
        storage, content = self.storage, _owner()
        version = storage.create(name, content)
        if version is None:
            try:
                current = storage.version(name)
            except FileNotFoundError:
                return None  # just released: the next attempt gets it
            if name in self._mine or not self._is_dead(name, str(current["e_tag"])):
                return None
            version = storage.replace(name, content, current)
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
        """Whether another process may hold a lock."""
        locks = [(name, tag) for name, tag in self.storage.listed(LOCKS) if name not in self._mine]
        dead = [self._is_dead(name, tag) for name, tag in locks]  # observes every lock, even after finding a live one
        return not all(dead)

    def _is_dead(self, name: str, tag: str) -> bool:
        """Whether a lock has not changed for a lease, as observed by this process."""
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
        """Keep the first bytes: rewrite them as one part, then delete the old parts."""
        kept = self.read()[:size]
        parts, self._parts = self._parts, []
        if kept:
            self.append(kept)
        for name in parts:  # last, so that a kill leaves duplicates rather than gaps
            self._storage.delete(name)

    def append(self, lines: bytes) -> None:
        """Put a part. Raises ``OSError``."""
        # unique names, so that two processes at the same cell do not overwrite each other
        name = f"{self._folder}/{self._next:08d}-{uuid.uuid4().hex[:8]}"
        self._storage.put(name, lines)
        self._parts.append(name)
        self._next += 1

    def close(self) -> None:
        """Nothing is open."""


class _Lease:
    """Renews a lock until it is released or another process has taken it."""

    def __init__(self, storage: ObjectStorage, name: str, version: Version) -> None:
        self._storage, self._name, self._version = storage, name, version
        self._over = threading.Event()
        self._lost = False
        self._thread = threading.Thread(target=self._renew, daemon=True, name=f"lease {name}")
        self._thread.start()

    def end(self) -> None:
        """Release the lock, if this process still holds it."""
        self._over.set()
        self._thread.join()
        if not self._lost:
            with suppress(OSError):  # it expires automatically
                self._storage.delete(self._name)

    def _renew(self) -> None:
        while not self._over.wait(LEASE / RENEWALS):
            try:
                version = self._storage.replace(self._name, _owner(), self._version)
            except OSError:
                continue  # the next renewal may succeed
            if version is None:
                self._lost = True
                return
            self._version = version


def _version(response: PutResult | ObjectMeta) -> Version:
    # a store has one or both of these, and does not accept None
    version: Version = {}
    if response["e_tag"] is not None:
        version["e_tag"] = response["e_tag"]
    if response["version"] is not None:
        version["version"] = response["version"]
    return version


def _owner() -> bytes:
    """The lock's owner, for humans; the content is unique."""
    owner = {"host": socket.gethostname(), "process": os.getpid(), "id": uuid.uuid4().hex}
    return json.dumps(owner).encode()


@contextmanager
def _os_errors(*but: type[BaseException]) -> Iterator[None]:
    """Convert obstore's errors to ``OSError`` with one line, except the types in ``but``."""
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
    """Return the result of a repeatable request. The library retries if a server throttles or drops
    the connection, but after a timeout only some kinds of requests.

    Raises ``OSError`` as :func:`_os_errors` does, after :data:`PATIENCE`.
    """
    start, pause = time.monotonic(), 0.1
    while True:
        try:
            with _os_errors(*but):
                return do()
        except (FileNotFoundError, PermissionError):
            raise
        except OSError:
            if time.monotonic() - start > PATIENCE.total_seconds():
                raise
        time.sleep(pause)
        pause = min(2 * pause, 10.0)


def _reason(error: BaseException) -> str:
    """Obstore's message without its debug output."""
    text = str(error).partition("\n\nDebug source")[0]
    return one_line(text)[:300] or type(error).__name__
