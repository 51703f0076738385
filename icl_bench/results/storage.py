"""Where finished files are kept: a small interface, and the folder on a disk that stands behind it.

Whatever is finished goes through a ``Storage``: cells, imports, marks of failed cells, losses of
long texts. Its names are relative, in POSIX's way: ``trec/gemma3-270m/random-....parquet``.
Unfinished cells need more than that and have an interface of their own
(:mod:`icl_bench.results.journals`).
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

from icl_bench.errors import UserError
from icl_bench.registry import STORAGES
from icl_bench.results.cells import FAILED, FINISHED
from icl_bench.text_files import write_whole
from icl_bench.wording import plain


class Storage(Protocol):
    """A place of finished files, by name. What cannot be read or written raises ``OSError``."""

    def prepare(self) -> None:
        """Make the place and try to write to it. Raises ``UserError`` where that fails."""

    def exists(self) -> bool:
        """Whether there is such a place at all."""

    def names(self, under: str = "") -> list[str]:
        """All files, or those below a folder, in any order; none where there is no such folder."""

    def has(self, name: str) -> bool:
        """Whether there is such a file."""

    def read(self, name: str) -> bytes:
        """The whole file."""

    def put(self, name: str, content: bytes) -> None:
        """Store a file: others see all of it or, until then, what was there before."""

    def rename(self, name: str, to: str) -> None:
        """Give a file another name, which takes the place of what is called so."""

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""

    def where(self, name: str = "") -> str:
        """How messages name a file, or the place itself."""


class CellsOf:
    """A storage of which some cells alone are seen, by what their files are called without endings."""

    def __init__(self, place: Place, cells: Collection[str]) -> None:
        self._place, self._storage, self._cells = place, storage_at(place), frozenset(cells)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def __str__(self) -> str:
        return str(self._place)

    def names(self, under: str = "") -> list[str]:
        """The files of these cells."""
        wanted = {f"{cell}{end}" for cell in self._cells for end in (FINISHED, FAILED)}
        return [name for name in self._storage.names(under) if name in wanted]


Place: TypeAlias = str | Path | Storage
"""What a user or a caller may give for a results folder."""


ADDRESS = re.compile(r"([a-z][a-z0-9+]*)://")
"""How an address begins that is no folder's name."""


class LocalStorage:
    """A folder on a disk.

    Files whose names begin with a dot are no part of it: such are files that are being written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Make the folder and try to write to it. Raises ``UserError``."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            raise UserError(
                f"results folder {self.root}: cannot be written ({error.strerror}); give another with --results"
            ) from None

    def exists(self) -> bool:
        """Whether the folder is there."""
        return self.root.is_dir()

    def names(self, under: str = "") -> list[str]:
        """All files, or those below a folder in it."""
        found = []
        for folder, _, files in os.walk(self.root / under):
            inside = Path(folder).relative_to(self.root)
            found += [(inside / file).as_posix() for file in files if not file.startswith(".")]
        return found

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self.root / name).exists()

    def read(self, name: str) -> bytes:
        """The whole file. A named pipe, which one would wait for, is none."""
        path = self.root / name
        if path.exists() and not path.is_file():
            raise OSError(f"{path.name} is not a regular file")
        return path.read_bytes()

    def put(self, name: str, content: bytes) -> None:
        """Write under a temporary name, then rename."""
        write_whole(self.root / name, content)

    def rename(self, name: str, to: str) -> None:
        """Give a file another name."""
        (self.root / name).replace(self.root / to)

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self.root / name).unlink(missing_ok=True)

    def where(self, name: str = "") -> str:
        """The file's path."""
        return str(self.root / name)


def from_file_url(url: str) -> LocalStorage:
    """The folder of ``file:///a/folder``. Raises ``UserError``."""
    address = urlsplit(url)
    if address.netloc not in ("", "localhost") or not address.path:
        raise UserError(f"--results {plain(url)}: expected file:///a/folder")
    return LocalStorage(Path(unquote(address.path)))


def storage_at(place: Place) -> Storage:
    """The storage at a place: a folder of this name, an address like ``s3://bucket/results``
    (:data:`icl_bench.registry.STORAGES`), or what is a storage already. Raises ``UserError``.
    """
    if isinstance(place, Path):
        return LocalStorage(place)
    if not isinstance(place, str):
        return place
    if (address := ADDRESS.match(place)) is None:
        return LocalStorage(Path(place))
    if address[1] not in STORAGES:
        raise UserError(f"--results {plain(place)}: {STORAGES.unknown(address[1])}")
    found: Storage = STORAGES[address[1]](place)
    return found


def folder_of(place: Place) -> Path | None:
    """The folder at a place; None where it is none, as in object storage."""
    storage = storage_at(place)
    return storage.root if isinstance(storage, LocalStorage) else None
