"""Rows as they are stored: a row, a split, and where both splits come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icl_bench.errors import UserError
from icl_bench.wording import one_line, plain


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file or a table, with all its columns."""

    where: str
    """File and line, for messages: ``train.jsonl:12``."""
    cells: Mapping[str, Any]

    def cell(self, column: str) -> Any:
        """One cell. Raises ``UserError`` that names the columns there are."""
        if column not in self.cells:
            raise UserError(no_column(self.where, column, self.cells))
        return self.cells[column]


@dataclass(frozen=True)
class Split:
    """The rows of one split, in stored order."""

    name: str
    """``train`` or ``test``."""
    file: str
    sha256: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Source:
    """Both splits of a task, and where they are from."""

    origin: str
    train: Split
    test: Split
    columns: Mapping[str, str]
    """Template field -> column."""
    notes: tuple[str, ...] = ()


def no_column(where: str, column: str, columns: Iterable[str]) -> str:
    """What to say of a column that is not there."""
    there = ", ".join(plain(c) for c in columns) or "none"
    return one_line(f"{where}: no column {column!r}; columns: {there}")


def rows_digest(rows: Sequence[Mapping[str, Any]]) -> str:
    """SHA-256, in hex, of rows as canonical JSON lines."""
    lines = (json.dumps(row, sort_keys=True, default=str) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def source_of_rows(
    name: str,
    origin: str,
    train: Sequence[Mapping[str, Any]],
    test: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
) -> Source:
    """A source made of rows that are at hand; each may have an ``id``, which messages name.

    ``name`` is what the splits are called (``name-train``), ``origin`` says where the rows are from
    in one line, ``columns`` maps template fields to columns.
    """
    splits = {}
    for split, rows in {"train": train, "test": test}.items():
        stored = [
            Row(str(row.get("id", f"{name} {split} row {n}")), row) for n, row in enumerate(rows)
        ]
        splits[split] = Split(split, f"{name}-{split}", rows_digest(rows), stored)
    return Source(origin, splits["train"], splits["test"], columns)
