"""Stored rows: a row, a split, and a source of both splits."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icl_bench.errors import UserError
from icl_bench.wording import close, one_line, plain, short


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One row of a file or a table, with all its columns."""

    where: str
    """File and line, for messages: ``train.jsonl:12``."""
    cells: Mapping[str, Any]

    def cell(self, column: str) -> Any:
        """One cell, or a value inside it by its path: ``ctxs.0.text``.

        A step of a path is a name, the index of a list's item from 0, or ``label=answerKey``: the first item of a list
        whose ``label`` is the row's ``answerKey``. The list may be an object of lists, as in data sets of the hub. A
        path into a missing value gives None. Raises ``UserError`` that lists the existing names.
        """
        first, *steps = column.split(".")
        if column in self.cells or not steps or first not in self.cells:
            if column not in self.cells:
                raise UserError(no_column(self.where, column, self.cells))
            return self.cells[column]
        value, at = self.cells[first], first
        for step in steps:
            if value is None:
                return None
            value = self._step(value, step, at)
            at = f"{at}.{step}"
        return value

    def _step(self, value: Any, step: str, at: str) -> Any:
        name, sign, key = step.partition("=")
        if isinstance(value, Mapping) and step in value:
            return value[step]
        if sign and isinstance(value, Mapping) and isinstance(value.get(name), list):
            size = len(value[name])
            parts = {n: v for n, v in value.items() if isinstance(v, list) and len(v) == size}
            value = [{n: v[i] for n, v in parts.items()} for i in range(size)]
        if isinstance(value, Mapping):
            problem = f"has {one_line(', '.join(map(plain, value))) or 'nothing'}"
        elif not isinstance(value, list):
            problem = f"is {short(value)}, with nothing in it"
        elif step.isascii() and step.isdigit() and int(step[:9]) < len(value):
            return value[int(step[:9])]
        elif sign:
            key_value = self.cell(key)
            for item in value:
                if isinstance(item, Mapping) and name in item and item[name] == key_value:
                    return item
            problem = f"has no item whose {plain(name)} is {plain(key)}, {short(key_value)}"
        else:
            problem = f"is a list of {len(value):,}"
        raise UserError(one_line(f"{self.where}: no {plain(step)} in {plain(at)}, which {problem}"))


@dataclass(frozen=True)
class Split:
    """The rows of one split, in stored order."""

    name: str
    """``train`` or ``test``."""
    file: str
    sha256: str
    rows: Sequence[StoredRow]
    notes: tuple[str, ...] = ()
    """Notes on how the file was read, if that is not obvious."""


@dataclass(frozen=True)
class Source:
    """Both splits of a task and their origin."""

    origin: str
    train: Split
    test: Split
    columns: Mapping[str, str]
    """Template field -> column."""
    notes: tuple[str, ...] = ()


def no_column(where: str, column: str, columns: Iterable[str]) -> str:
    """The message for a missing column."""
    names = list(columns)
    meant = close(column, names)
    listing = f"columns: {', '.join(map(plain, names)) or 'none'}"
    return one_line(f"{where}: no column {column!r}; {meant + ' ' if meant else ''}{listing}")


def encodable(text: str, row: StoredRow, column: str) -> str:
    """Return the text unchanged. Raises ``UserError`` for half of a surrogate pair, which JSON can contain but files
    and tokenizers cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise UserError(f"{row.where}: {plain(column)} holds {half}, half a character") from None
    return text


def number_as_text(value: Any) -> Any:
    """A finite number as written in JSON; any other value unchanged."""
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    return value


def name_classes(rows: Iterable[dict[str, Any]], names: Mapping[str, Sequence[str]], where: str) -> None:
    """Replace class numbers by class names. ``names`` has those of each column that holds numbers.

    Raises ``UserError`` for a number without a name.
    """
    for row in rows:
        for column, known in names.items():
            number = row[column]
            if number is not None and number >= len(known):
                raise UserError(f"{where}: {plain(column)} has the class {number}, and names for {len(known)}")
            row[column] = None if number is None or number < 0 else known[number]


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
    """A source from rows in memory. A row may have an ``id``, which messages use.

    Splits are named after ``name`` (``name-train``). ``origin`` describes the source in one line.
    ``columns`` maps template fields to columns.
    """
    splits = {}
    for split, rows in {"train": train, "test": test}.items():
        stored = [StoredRow(str(row.get("id", f"{name} {split} row {n}")), row) for n, row in enumerate(rows)]
        splits[split] = Split(split, f"{name}-{split}", rows_digest(rows), stored)
    return Source(origin, splits["train"], splits["test"], columns)
