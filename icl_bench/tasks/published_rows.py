"""The test rows of Bertsch et al. 2025, found again in any copy of the data by their texts.

The list comes with the package, under the license of the authors' repository (``icl_bench/samples/LICENSE``). It
contains no text, only the position in the test split and a hash of each row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files as package_files
from typing import Literal

PublishedIds = Literal["paper", "paper-mistral"]
"""Lists of test rows: those of most models, and those of Mistral, whose tokenizer excluded other rows."""

FILE = "bertsch2025_test_rows.json"

DIGITS = 10
"""Hexadecimal digits of a hash."""

MOSTLY = 0.9
"""If this share of rows is at its published positions, the split has the published order, and rows with different texts
are matched by position. (The only public copies of NLU have such texts.)
"""

SAME_ROWS = {"trec_fine": "trec"}
"""Tasks that use the rows of another task."""


@dataclass(frozen=True)
class PublishedRow:
    """One published test row."""

    place: int
    """Its index in the test split, from 0."""
    digest: str
    """See :func:`digest_of`."""


@dataclass(frozen=True)
class FoundRows:
    """Published rows in a copy of the data, in the order of the study."""

    ids: tuple[str, ...]
    by_place: int
    """Number of rows with different texts that are matched by position."""
    missing: int
    """Number of rows that were not found."""


def digest_of(text: str) -> str:
    """The first digits of the SHA-256 of a text with single blanks."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:DIGITS]


@cache
def _content() -> bytes:
    return (package_files("icl_bench") / "samples" / FILE).read_bytes()


def file_digest() -> str:
    """The SHA-256 of the list, in hex."""
    return hashlib.sha256(_content()).hexdigest()


def published_rows(task: str, which: PublishedIds = "paper") -> tuple[PublishedRow, ...]:
    """The published rows of a task, in their order; empty for a task that is not in the study."""
    lists: dict[str, str] = json.loads(_content())["rows"]
    name = SAME_ROWS.get(task, task)
    words = (lists.get(f"{name} mistral") if which == "paper-mistral" else None) or lists.get(name, "")
    pairs = (word.partition(":") for word in words.split())
    return tuple(PublishedRow(int(place), digest) for place, _, digest in pairs)


def find(rows: Sequence[PublishedRow], texts: Mapping[str, str]) -> FoundRows:
    """Find published rows in a test split.

    ``texts`` has the text of each row by its id, in the order of the split. If several rows have the text, the one at
    the published position is used, else the first unused one.
    """
    ids = list(texts)
    holders: dict[str, list[str]] = {}
    for name, text in texts.items():
        holders.setdefault(digest_of(text), []).append(name)
    in_place = {row for row in rows if row.place < len(ids) and ids[row.place] in holders.get(row.digest, ())}
    chosen: dict[PublishedRow, str] = {row: ids[row.place] for row in in_place}
    taken = set(chosen.values())
    by_place = 0
    for row in rows:
        if row in chosen:
            continue
        free = [name for name in holders.get(row.digest, ()) if name not in taken]
        if not free and len(in_place) >= MOSTLY * len(rows) and row.place < len(ids) and ids[row.place] not in taken:
            free = [ids[row.place]]
            by_place += 1
        if free:
            chosen[row] = free[0]
            taken.add(free[0])
    found = tuple(chosen[row] for row in rows if row in chosen)
    return FoundRows(found, by_place, len(rows) - len(found))
