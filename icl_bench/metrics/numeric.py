"""Equality of numbers, however they are written."""

from __future__ import annotations

import re
import unicodedata
from decimal import Context, Decimal, InvalidOperation

from icl_bench.metrics.interface import Measure, TextMetric

_GROUPS = r"\d{1,3}(?P<sign>[,\u0020\u00a0\u2009\u202f'\u2019])\d{3}(?:(?P=sign)\d{3})*"

_NUMBER = re.compile(rf"(?:{_GROUPS}|\d+)?(?:\.\d+)?(?:[eE][+-]?\d{{1,4}})?")


class Numeric(TextMetric):
    """Whether an answer is the right number. A text that is not a number is wrong."""

    is_right = True
    measures = (Measure("numeric", "numeric", "equal number"),)

    def score_one(self, gold: str, prediction: str) -> float:
        """See ``TextMetric``."""
        right = number(gold)
        return right is not None and right == number(prediction)

    def form(self, answer: str) -> str:
        """See ``Metric``: numbers that are equal have one form, however they are written."""
        value = number(answer)
        if value is None:
            return answer
        return str(value.normalize(Context(prec=max(1, len(answer))))) if value else "0"

    def unfit(self, gold: str) -> str:
        """See ``Metric``."""
        return "" if number(gold) is not None else "is not a number"


def number(text: str) -> Decimal | None:
    """The exact number that a text is, or None if it is not a number.

    These are equal: 18, 18.0, +18, $18, 18 €, 18% and "18."; and with thousands separators (comma,
    blank or apostrophe between groups of three) 1,800 and 1800. A comma is not a decimal point.
    """
    bare = text.strip().replace("\u2212", "-").removesuffix(".")
    bare, signs = _without_units(bare), ""
    while bare[:1] in ("+", "-"):
        signs, bare = signs + bare[0], _without_units(bare[1:])
    if len(signs) > 1 or not any(letter.isdecimal() for letter in bare):
        return None
    match = _NUMBER.fullmatch(bare)
    if match is None:
        return None
    try:
        return Decimal(signs + bare.replace(match["sign"] or ",", ""))
    except InvalidOperation:
        return None


def _without_units(text: str) -> str:
    """A text without currency signs at its ends and percent signs at its end."""
    text = text.strip()
    while text and unicodedata.category(text[0]) == "Sc":
        text = text[1:].lstrip()
    while text and (unicodedata.category(text[-1]) == "Sc" or text[-1] == "%"):
        text = text[:-1].rstrip()
    return text
