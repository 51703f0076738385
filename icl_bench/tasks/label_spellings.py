"""Labels that are one, written in several ways: ``Refund`` and ``refund``, ``0`` and ``0.0``, NFC and NFD."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from icl_bench.wording import few, listed, short

INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))
"""Characters that show nothing and change no letter beside them: soft hyphen, zero-width space, word joiner, mark."""

NUMBER = re.compile(r"[+-]?[0-9]{1,12}(\.[0-9]{0,12})?(e[+-]?[0-9]{1,2})?")

MOST_SHOWN = 5
"""Groups that a note names."""


def plain_form(label: str) -> str:
    """What labels that are one have in common: compatibility form, no case, single blanks, numbers by their value.

    Unicode's NFKC, case folding, NFKC (Unicode Standard Annex 15 and section 3.13).
    """
    for _ in range(2):  # folding may make what has another compatibility form
        label = unicodedata.normalize("NFKC", label).casefold().translate(INVISIBLE)
    label = " ".join(unicodedata.normalize("NFKC", label).split())
    if NUMBER.fullmatch(label) is None:
        return label
    number = Decimal(label)
    return format(number.normalize(), "f") if number else "0"


def same_labels(labels: Iterable[str]) -> list[tuple[str, ...]]:
    """The groups of several labels that have one plain form, each sorted, and in order of their first."""
    by_form: dict[str, list[str]] = {}
    for label in sorted(set(labels)):
        by_form.setdefault(plain_form(label), []).append(label)
    return [tuple(group) for group in by_form.values() if len(group) > 1]


def named_groups(groups: Sequence[Sequence[str]]) -> str:
    """The first groups, and how many more there are."""
    more = [f"and {len(groups) - MOST_SHOWN:,} more"] if len(groups) > MOST_SHOWN else []
    return "; ".join([*(listed(map(short, group)) for group in groups[:MOST_SHOWN]), *more])


def replacements(train: Iterable[str], test: Iterable[str]) -> dict[str, str]:
    """The spellings of the rows' labels that another one replaces, with that one.

    A label is written as most train rows write it; of equally many, as most test rows do.
    """
    counts = [Counter(train), Counter(test)]
    replaced: dict[str, str] = {}
    for group in same_labels([*counts[0], *counts[1]]):
        kept = max(group, key=lambda label: [count[label] for count in counts])
        replaced |= {label: kept for label in group if label != kept}
    return replaced


def spelling_notes(labels: Iterable[str]) -> list[str]:
    """A note that names labels which may be one, and how to join them."""
    groups = same_labels(labels)
    if not groups:
        return []
    named = named_groups(groups)
    return [f"labels that may be one, spelled in several ways: {named}. labels.merge: true merges them"]


def merge_notes(spellings: Mapping[str, str]) -> list[str]:
    """A note that names the spellings which were replaced, of all spellings and how they are read."""
    named = [f"{short(spelling)} as {short(label)}" for spelling, label in spellings.items() if spelling != label]
    if not named:
        return []
    return [f"labels.merge reads {few(named, MOST_SHOWN)}"]
