"""Storage of finished files: a small interface, and its implementation for a folder on disk.

All finished files go through a ``Storage``: cells, imports, marks of failed cells, losses of long
texts. Names are relative POSIX paths: ``trec/gemma3-270m/random-....parquet``. Unfinished cells need
locks and appending, and have their own interface (:mod:`icl_bench.results.journals`).
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
from icl_bench.results.cells import FAILED, FINISHED, PRIORS, curve_name
from icl_bench.text_files import write_whole
from icl_bench.wording import plain


class Storage(Protocol):
    """Finished files by name. Failures to read or write raise ``OSError``."""

    def prepare(self) -> None:
        """Create the place and test write access. Raises ``UserError``."""

    def exists(self) -> bool:
        """Whether the place exists. Raises ``UserError`` if it cannot hold results."""

    def names(self, under: str = "") -> list[str]:
        """All files, or those under a folder, in any order; empty if the folder does not exist."""

    def has(self, name: str) -> bool:
        """Whether there is such a file."""

    def read(self, name: str) -> bytes:
        """The whole file."""

    def put(self, name: str, content: bytes) -> None:
        """Store a file atomically: readers see the whole new file or the old one."""

    def rename(self, name: str, to: str) -> None:
        """Rename a file, replacing a file of that name."""

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""

    def where(self, name: str = "") -> str:
        """The location of a file, or of the place itself, for messages."""


class CellsOf:
    """A storage that shows only some cells, given by their file names without suffixes."""

    def __init__(self, place: Place, cells: Collection[str]) -> None:
        self._place, self._storage, self._cells = place, storage_at(place), frozenset(cells)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def __str__(self) -> str:
        return str(self._place)

    def names(self, under: str = "") -> list[str]:
        """The files of these cells, or all stated priors."""
        if under == PRIORS:
            return self._storage.names(under)
        wanted = {f"{cell}{end}" for cell in self._cells for end in (FINISHED, FAILED)}
        return [name for name in self._storage.names(under) if name in wanted]


Place: TypeAlias = str | Path | Storage
"""Possible values of a results folder."""


def cells_on_curves_of(place: Place, cells: Collection[str]) -> set[str]:
    """The finished cells with another k or draw than these, and these themselves, by file name without suffix.

    Their other facts may differ. Raises ``UserError``.
    """
    storage, curves = storage_at(place), set(map(curve_name, cells))
    folders = {curve.rpartition("/")[0] for curve in curves}
    files = [name for folder in sorted(folders) for name in storage.names(folder) if name.endswith(FINISHED)]
    finished = {name.removesuffix(FINISHED) for name in files}
    return {name for name in finished if curve_name(name) in curves} | set(cells)


ADDRESS = re.compile(r"([a-z][a-z0-9+]*)://")
"""The beginning of an address, as opposed to a folder's path."""


COLLAPSED = re.compile(r"([a-z][a-z0-9+]*):/(?!/)")
"""The beginning of an address of which a path has kept one slash: ``Path("s3://bucket/results")``."""


class LocalStorage:
    """A folder on disk.

    Files whose names begin with a dot are ignored: they are being written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Create the folder and test write access. Raises ``UserError``."""
        self.exists()  # an error if it is a file
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            raise UserError(
                f"results folder {self.root}: cannot be written ({error.strerror}); give another with --results"
            ) from None

    def exists(self) -> bool:
        """Whether the folder exists. Raises ``UserError`` for a file."""
        if self.root.is_file():
            raise UserError(f"results folder {self.root}: is a file; give a folder with --results")
        return self.root.is_dir()

    def names(self, under: str = "") -> list[str]:
        """All files, or those under a folder in it, also in linked folders."""
        names = []
        for folder, below, files in os.walk(self.root / under, followlinks=True):
            below[:] = [name for name in below if not self._is_circle(Path(folder) / name)]
            inside = Path(folder).relative_to(self.root)
            names += [(inside / file).as_posix() for file in files if not file.startswith(".")]
        return names

    def _is_circle(self, folder: Path) -> bool:
        """Whether a folder is a link to one that holds it, or to one that is listed under its own name."""
        if not folder.is_symlink():
            return False
        target, root = folder.resolve(), self.root.resolve()
        holders = (root / part for part in folder.parent.relative_to(self.root).parents)
        above = (folder.parent, *holders)
        return target.is_relative_to(root) or any(one.resolve().is_relative_to(target) for one in above)

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self.root / name).exists()

    def read(self, name: str) -> bytes:
        """The whole file. Raises ``OSError`` for a named pipe, which would block."""
        path = self.root / name
        if path.exists() and not path.is_file():
            raise OSError(f"{path.name} is not a regular file")
        return path.read_bytes()

    def put(self, name: str, content: bytes) -> None:
        """Write under a temporary name, then rename."""
        write_whole(self.root / name, content)

    def rename(self, name: str, to: str) -> None:
        """Rename a file."""
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
    """The storage of a place: a folder's path, an address such as ``s3://bucket/results``
    (:data:`icl_bench.registry.STORAGES`), or a storage, which is returned. Raises ``UserError``.
    """
    if isinstance(place, str | Path) and (found := COLLAPSED.match(str(place))) and found[1] in STORAGES:
        raise UserError(f"--results {plain(place)}: an address has two slashes, as text: {found[1]}://...")
    if isinstance(place, Path):
        return LocalStorage(place)
    if not isinstance(place, str):
        return place
    if not place:
        raise UserError("--results '': expected a folder, or an address like s3://bucket/results")
    if (address := ADDRESS.match(place)) is None:
        return LocalStorage(Path(place))
    if address[1] not in STORAGES:
        raise UserError(f"--results {plain(place)}: {STORAGES.unknown(address[1])}")
    storage: Storage = STORAGES[address[1]](place)
    return storage


def put_or_refuse(storage: Storage, name: str, content: bytes) -> None:
    """Store a file. Raises ``UserError`` if it cannot be written."""
    try:
        storage.put(name, content)
    except OSError as error:
        raise UserError(
            f"results folder {storage.where()}: {error.strerror or error}; run the same command again once there is "
            "space"
        ) from None


def folder_of(place: Place) -> Path | None:
    """The folder of a place; None if it is not a folder, as in object storage."""
    storage = storage_at(place)
    return storage.root if isinstance(storage, LocalStorage) else None


def place_words(results: Place) -> list[str]:
    """A place of results as written in a command; empty for the default."""
    return [] if str(results) == "results" else ["--results", str(results)]
