"""Equality of numbers, however they are written."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from icl_bench.metrics.interface import Measure, Metric

if TYPE_CHECKING:
    import numpy as np

_GROUPS = r"\d{1,3}(?P<sign>[,\u0020\u00a0\u2009\u202f'\u2019])\d{3}(?:(?P=sign)\d{3})*"


_NUMBER = re.compile(rf"(?:{_GROUPS}|\d+)?(?:\.\d+)?(?:[eE][+-]?\d{{1,4}})?")


class Numeric(Metric):
    """Whether an answer is the right number; what is no number is wrong."""

    answers = "text"
    measures = (Measure("numeric", "numeric", "equal number"),)

    def score(self, gold: Sequence[str], said: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        import numpy as np

        pairs = ((number(right), number(text)) for right, text in zip(gold, said, strict=True))
        same = [one is not None and one == other for one, other in pairs]
        return {"numeric": np.array(same, dtype=float)}

    def unfit(self, gold: str) -> str:
        """See ``Metric``."""
        return "" if number(gold) is not None else "is no number"


def number(text: str) -> Decimal | None:
    """The number that a text is, exactly; None where it is none.

    Taken for the same: 18, 18.0, +18, $18, 18 €, 18%, "18." and with thousands separators (comma,
    blank or apostrophe, between groups of three) 1,800 and 1800. A comma is no decimal point.
    """
    bare = text.strip().replace("\u2212", "-").removesuffix(".")
    bare, signs = _without_units(bare), ""
    while bare[:1] in ("+", "-"):
        signs, bare = signs + bare[0], _without_units(bare[1:])
    if len(signs) > 1 or not any(letter.isdecimal() for letter in bare):
        return None
    found = _NUMBER.fullmatch(bare)
    if found is None:
        return None
    try:
        return Decimal(signs + bare.replace(found["sign"] or ",", ""))
    except InvalidOperation:
        return None


def _without_units(text: str) -> str:
    """A text without currency signs around it, and a percent sign behind it."""
    text = text.strip()
    while text and unicodedata.category(text[0]) == "Sc":
        text = text[1:].lstrip()
    while text and (unicodedata.category(text[-1]) == "Sc" or text[-1] == "%"):
        text = text[:-1].rstrip()
    return text
