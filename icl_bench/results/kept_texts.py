"""Texts computed from a results folder, such as the tables of ``summary``, kept in the cache folder.

An entry has the text, the warnings of its computation, and all that the computation asked of the folder: names of
files, and the SHA-256 of each file that it read. The text is used again only if every answer is still the same. Sizes
and times of files decide nothing, so a damaged file or a clock that jumps cannot leave a wrong text.
"""

from __future__ import annotations

import json
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from icl_bench.models.cache_folder import cache_dir, remove_leftovers
from icl_bench.models.fingerprints import key_of_files
from icl_bench.registry import plugins
from icl_bench.results.cells import digest
from icl_bench.results.storage import Place, Storage, folder_of, storage_at
from icl_bench.text_files import write_whole

WORTH_SECONDS = 1.0
"""A text that took less time is not kept."""

MOST_KEPT = 20
"""Number of kept texts; older ones are removed."""

FOLDER = "summaries"
"""Their folder in the cache folder."""


@dataclass
class _Asked:
    """A storage that notes what it was asked, and a hash of each answer."""

    place: Place
    answers: dict[str, str] = field(default_factory=dict)
    """Question as JSON -> hash of its answer; empty if the answer changed in between."""

    def __getattr__(self, name: str) -> Any:
        return getattr(storage_at(self.place), name)

    def __str__(self) -> str:
        return str(self.place)

    def exists(self) -> bool:
        return bool(self._answer("exists"))

    def names(self, under: str = "") -> list[str]:
        return sorted(self._answer("names", under))

    def has(self, name: str) -> bool:
        return bool(self._answer("has", name))

    def read(self, name: str) -> bytes:
        return bytes(self._answer("read", name))

    def _answer(self, *question: str) -> Any:
        answer, answer_hash = _answered(storage_at(self.place), question)
        if self.answers.setdefault(json.dumps(question), answer_hash) != answer_hash:
            self.answers[json.dumps(question)] = ""
        if isinstance(answer, OSError):
            raise answer
        return answer


def _answered(storage: Storage, question: tuple[str, ...]) -> tuple[Any, str]:
    """A storage's answer, or its error, and a hash of it."""
    method, *arguments = question
    try:
        answer = getattr(storage, method)(*arguments)
    except OSError as error:
        return error, digest(f"error: {error}")
    if isinstance(answer, bytes):
        return answer, sha256(answer).hexdigest()
    return answer, digest(sorted(answer) if isinstance(answer, list) else answer)


@dataclass(frozen=True)
class _Entry:
    """What a file of the cache has, after a hash of it."""

    text: str
    warnings: list[str]
    answers: dict[str, str]

    @classmethod
    def read(cls, file: Path) -> _Entry | None:
        """Read an entry; None if it is missing or damaged."""
        try:
            return cls(**json.loads(kept_content(file.read_bytes())))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, file: Path) -> None:
        """Write the entry, and remove old ones. Nothing happens if the cache folder cannot be written."""
        content = json.dumps(self.__dict__).encode()
        with suppress(OSError):
            write_kept(file, content, MOST_KEPT)

    def holds(self, storage: Storage) -> bool:
        """Whether the storage still gives the same answers."""
        return all(_answered(storage, tuple(json.loads(asked)))[1] == known for asked, known in self.answers.items())


def write_kept(file: Path, content: bytes, most: int) -> None:
    """Write a file of the cache, with a hash of its content, and remove the oldest of more than ``most`` in its folder.

    Raises ``OSError``.
    """
    write_whole(file, sha256(content).hexdigest().encode() + b"\n" + content)
    remove_leftovers(file.parent)
    written = sorted(file.parent.glob(f"[!.]*{file.suffix}"), key=lambda one: one.stat().st_mtime_ns)
    for old in written[:-most]:
        old.unlink(missing_ok=True)


def kept_content(raw: bytes) -> bytes:
    """The content in the bytes of a file of :func:`write_kept`. Raises ``ValueError`` if they are damaged."""
    stated, _, content = raw.partition(b"\n")
    if stated != sha256(content).hexdigest().encode():
        raise ValueError("damaged")
    return content


def kept_text(place: Place, asked: Mapping[str, Any], make: Callable[[Place], str]) -> tuple[str, bool]:
    """The text that ``make`` computes from a results folder, and whether it is a kept one, of an unchanged folder.

    ``asked`` is all else that the text depends on, as JSON values. ``make`` reads files only through its argument, and
    its warnings are repeated with a kept text. Nothing is kept of object storage, or if a package has parts for this
    program, because its code may change without its version.
    """
    file = _file_of(place, asked)
    if file is None:
        return make(place), False
    kept = _Entry.read(file)
    if kept is not None and kept.holds(storage_at(place)):
        for warning in kept.warnings:
            warnings.warn(warning, stacklevel=2)
        return kept.text, True
    seen, began = _Asked(place), time.monotonic()
    with _noted_warnings() as said:
        text = make(cast("Storage", seen))
    if time.monotonic() - began >= WORTH_SECONDS:
        _Entry(text, said, seen.answers).write(file)
    return text, False


def _file_of(place: Place, asked: Mapping[str, Any]) -> Path | None:
    """The file of a text; None if it cannot be kept."""
    root = folder_of(place)
    return None if root is None else kept_file(FOLDER, ".json", [str(root.absolute()), str(place), dict(asked)])


def kept_file(folder: str, ending: str, asked: Sequence[Any]) -> Path | None:
    """The file of the cache for what this program computes from JSON values; None if it cannot be kept.

    Nothing is kept if a package has parts for this program, because its code may change without its version.
    """
    if plugins():
        return None
    try:
        return cache_dir() / folder / f"{digest([*asked, program_files()])[:32]}{ending}"
    except (OSError, RuntimeError):  # a file that cannot be read, a user without a home folder
        return None


@cache
def program_files() -> list[Any]:
    """This program's own files, the installed packages with their versions, Python and the machine."""
    own = Path(__file__).parents[1]
    files = [file for file in own.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    installed = {info.name for folder in sys.path for info in Path(folder).glob("*.dist-info")}
    return [key_of_files([], own, files), sorted(installed), sys.version, platform.machine()]


@contextmanager
def _noted_warnings() -> Iterator[list[str]]:
    """Yield a list to which each warning that is shown is added."""
    said: list[str] = []
    show = warnings.showwarning

    def noted(message: Warning | str, *others: Any, **more: Any) -> None:
        said.append(str(message))
        show(message, *others, **more)

    warnings.showwarning = noted
    try:
        yield said
    finally:
        warnings.showwarning = show
