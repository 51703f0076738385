"""The form of names, numbers and values in messages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

DASH = "\N{EN DASH}"
"""Placeholder for missing values."""


HUGE_BITS, MOST_DIGITS = 200, 12


LONG_LIST = 40
"""The number of known names above which a message does not list all."""


def counted(count: int, what: str) -> str:
    """``1 cell``, ``2 cells``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def counted_queries(count: int) -> str:
    """``1 query``, ``10,000 queries``."""
    return f"{count:,} {'query' if count == 1 else 'queries'}"


def whole(number: int) -> str:
    """An integer with commas; one that would fill a screen is called huge."""
    return short(number) if number.bit_length() > HUGE_BITS else f"{number:,}"


def percent(share: Any, sign: str = "") -> str:
    """A share of 1 in percent with one decimal, without the percent sign; a dash for a missing value.

    With ``sign`` "+" it is a difference of shares, in points.
    """
    return DASH if share is None or math.isnan(share) else rounded(100 * share, 1, sign)


def rounded(value: float, digits: int, sign: str = "") -> str:
    """A number with this number of decimals, rounded half to even.

    The number is treated as a decimal with 12 digits: 6.25 is 6.2, and 0.35 is 0.4, although the nearest float is
    slightly below it. Terminal, Markdown and page all use this rule; the page's program implements it in ``base.js``.
    """
    if not math.isfinite(value):
        return f"{value:{sign}}"
    whole = round(float(f"{value * 10**digits:.12g}"))
    return f"{whole / 10**digits:{sign},.{digits}f}"


def three_digits(value: float) -> str:
    """A number as an integer from 100 upwards, else with three significant digits."""
    if not math.isfinite(value) or value == 0 or abs(value) >= 99.95:
        return rounded(value, 0)
    text = rounded(value, min(2 - math.floor(math.log10(abs(value))), MOST_DIGITS))
    return text.rstrip("0").rstrip(".")


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def p_value(p: float) -> str:
    """The p value of a test, to a thousandth."""
    return "<0.001" if p < 0.001 else rounded(p, 3)


def stated_p(p: float) -> str:
    """The p value of a test within a sentence, to a ten-thousandth: ``p = 0.0123``, ``p < 0.0001``."""
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.4f}"


def listed(names: Iterable[str], word: str = "and") -> str:
    """``one``, ``one and two``, ``one, two and three``."""
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last


def listed_or(names: Iterable[str]) -> str:
    """``one``, ``one or two``, ``one, two or three``."""
    return listed(names, "or")


def few(names: Sequence[str], most: int = 3) -> str:
    """The first names, and the number of the others: ``a, b, c and 4 more``."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(plain, names[:most])) + more


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def comma_list(text: str) -> list[str]:
    """The items between the commas of an option, without blanks and empty items.

    >>> comma_list("1, 10,,max")
    ['1', '10', 'max']
    """
    return [word for word in map(str.strip, text.split(",")) if word]


def nearest(name: str, known: Iterable[str]) -> str:
    """The known names nearest to a mistyped one, or a list of all.

    >>> nearest("bankng77", ["banking77", "trec"])
    'did you mean banking77?'
    """
    known = sorted(known)
    return close(name, known) or f"known: {few(known, LONG_LIST)}"


def close(name: str, known: Iterable[str]) -> str:
    """Suggest the closest known name, ignoring case; empty if none is close.

    >>> close("Labels", ["text", "label"])
    'did you mean label?'
    """
    written = {one.casefold(): one for one in sorted(known, reverse=True)}
    found = get_close_matches(name.casefold(), sorted(written), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(plain(written[one]) for one in found)}?" if found else ""


def plain(text: object) -> str:
    """A name unchanged, or quoted if it would not be recognisable as one."""
    name = str(text)
    return name if name.isprintable() and name.strip() else repr(name)


def short(value: object) -> str:
    """A value for an error message: short, on one line."""
    if isinstance(value, int) and value.bit_length() > HUGE_BITS:
        return "a huge number"
    if isinstance(value, str | int | float | None):
        shown = repr(value)
        return shown if len(shown) <= 60 else f"{shown[:60]}…"
    return "a mapping" if isinstance(value, dict) else f"a {type(value).__name__}"


def one_line(message: str) -> str:
    """A message on one line, truncated if it is very long."""
    line = " ".join(message.split())
    return line if len(line) <= 400 else f"{line[:400]}…"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if the message is empty."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
