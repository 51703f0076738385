"""A results folder without a disk: storage and journals as dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from icl_bench.results.cells import JOURNAL


@dataclass
class MemoryStorage:
    """Finished files by name."""

    files: dict[str, bytes] = field(default_factory=dict)

    def prepare(self) -> None:
        pass

    def exists(self) -> bool:
        return True

    def names(self, under: str = "") -> list[str]:
        return [name for name in self.files if not under or name.startswith(f"{under}/")]

    def has(self, name: str) -> bool:
        return name in self.files

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def put(self, name: str, content: bytes) -> None:
        self.files[name] = bytes(content)

    def rename(self, name: str, to: str) -> None:
        self.files[to] = self.files.pop(name)

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def where(self, name: str = "") -> str:
        return f"memory:{name}"


@dataclass
class MemoryJournal:
    lines: bytearray

    def read(self) -> bytes:
        return bytes(self.lines)

    def cut(self, size: int) -> None:
        del self.lines[size:]

    def append(self, lines: bytes) -> None:
        self.lines += lines

    def close(self) -> None:
        pass


@dataclass
class MemoryJournals:
    """Journals by cell; locks are of this process alone."""

    kept: dict[str, bytearray] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def take(self, cell: str) -> Callable[[], None] | None:
        if cell in self.taken:
            return None
        self.taken.add(cell)
        return lambda: self.taken.discard(cell)

    def open(self, cell: str) -> MemoryJournal:
        return MemoryJournal(self.kept.setdefault(cell, bytearray()))

    def delete(self, cell: str) -> None:
        self.kept.pop(cell, None)

    def others_at_work(self) -> bool:
        return any(cell in self.taken for cell in self.kept)

    def as_files(self) -> dict[str, bytes]:
        """The journals under the names that they have in a folder."""
        return {f"{cell}{JOURNAL}": bytes(lines) for cell, lines in self.kept.items()}
