"""Spellings of the same label: ``Refund`` and ``refund``, ``0`` and ``0.0``, NFC and NFD."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from icl_bench.wording import few, listed, short

INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))
"""Invisible characters that do not change adjacent letters: soft hyphen, zero-width space, word joiner, mark."""

NUMBER = re.compile(r"[+-]?[0-9]{1,12}(\.[0-9]{0,12})?(e[+-]?[0-9]{1,2})?")

MOST_SHOWN = 5
"""The number of groups named in a note."""


def plain_form(label: str) -> str:
    """The common form of equal labels: compatibility form, no case, single blanks, numbers by their value.

    Unicode's NFKC, case folding, NFKC (Unicode Standard Annex 15 and section 3.13).
    """
    for _ in range(2):  # folding may produce characters with another compatibility form
        label = unicodedata.normalize("NFKC", label).casefold().translate(INVISIBLE)
    label = " ".join(unicodedata.normalize("NFKC", label).split())
    if NUMBER.fullmatch(label) is None:
        return label
    number = Decimal(label)
    return format(number.normalize(), "f") if number else "0"


def same_labels(labels: Iterable[str]) -> list[tuple[str, ...]]:
    """The groups of several labels with equal plain forms, each sorted, in order of their first."""
    by_form: dict[str, list[str]] = {}
    for label in sorted(set(labels)):
        by_form.setdefault(plain_form(label), []).append(label)
    return [tuple(group) for group in by_form.values() if len(group) > 1]


def named_groups(groups: Sequence[Sequence[str]]) -> str:
    """The first groups, and the number of the others."""
    more = [f"and {len(groups) - MOST_SHOWN:,} more"] if len(groups) > MOST_SHOWN else []
    return "; ".join([*(listed(map(short, group)) for group in groups[:MOST_SHOWN]), *more])


def replacements(train: Iterable[str], test: Iterable[str]) -> dict[str, str]:
    """Spelling -> the spelling that replaces it.

    A label keeps the spelling of most train rows; on ties, of most test rows.
    """
    counts = [Counter(train), Counter(test)]
    replaced: dict[str, str] = {}
    for group in same_labels([*counts[0], *counts[1]]):
        kept = max(group, key=lambda label: [count[label] for count in counts])
        replaced |= {label: kept for label in group if label != kept}
    return replaced


def spelling_notes(labels: Iterable[str]) -> list[str]:
    """A note that names labels which may be the same, and how to merge them."""
    groups = same_labels(labels)
    if not groups:
        return []
    named = named_groups(groups)
    return [f"labels that may be one, spelled in several ways: {named}. labels.merge: true merges them"]


def merge_notes(spellings: Mapping[str, str]) -> list[str]:
    """A note that names the replaced spellings and their replacements."""
    named = [f"{short(spelling)} as {short(label)}" for spelling, label in spellings.items() if spelling != label]
    if not named:
        return []
    return [f"labels.merge reads {few(named, MOST_SHOWN)}"]
