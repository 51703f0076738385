"""The words of a text in any script, by Unicode's properties.

A word is a run of letters, their marks and digits. Scripts that write no spaces between words (Chinese,
Japanese, Thai, Lao, Khmer, Burmese, ...) have no words to find: their characters are taken instead,
one by one or as n-grams, as Lucene's ``CJKAnalyzer`` and the evaluation of MLQA do. A character is a grapheme
cluster: a letter with its marks (UAX #29).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

import regex

_IGNORABLE = regex.compile(r"[\p{Default_Ignorable_Code_Point}--\u200b]", regex.V1)
"""Joiners, soft hyphens, variation selectors: they change the appearance of a letter. The zero width space separates
words.
"""

_WORD = regex.compile(r"[\p{L}\p{Nd}][\p{L}\p{M}\p{Nd}]*")

_ASCII_WORD = re.compile(r"[A-Za-z0-9]+")
"""A word of ASCII letters and digits, a faster pattern."""

_LETTER = r"[[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Bopomofo}\p{Line_Break=Complex_Context}]&&[\p{L}\p{M}]]"
"""A letter or mark of a script without spaces. In Unicode, those of South East Asia have complex context (UAX #14)."""

_PARTS = regex.compile(rf"(?P<unspaced>{_LETTER}[{_LETTER}\p{{M}}]*)|(?:(?!{_LETTER})\X)+", regex.V1)

BEYOND_ASCII = regex.compile(r"[^\x00-\x7f]")
NOT_LATIN = regex.compile(r"[\p{L}--\p{Latin}]", regex.V1)
UNSPACED = regex.compile(_LETTER, regex.V1)
UNSPACED_OR_MARKED = regex.compile(rf"{_LETTER}|\p{{M}}", regex.V1)

SHARE = 0.02
"""The share of words above which Unicode's rule replaces a rule for one script. In French, German, Spanish or Italian,
4% of the words or more have letters beyond ASCII, in English under 1% (names, loan words).
"""


def words(text: str, size: int = 1) -> list[str]:
    """The words of a text, without case; of scripts without spaces, n-grams of ``size`` characters.

    Compatible spellings are unified (NFKC): composed and decomposed letters, full and half width.
    """
    return [part for word in _found(text) for part in segmented(folded(word), size)]


def folded(text: str) -> str:
    """A text without case, in NFKC."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def without_ignorable(text: str) -> str:
    """A text without characters that only change the appearance of others."""
    return text if text.isascii() else str(_IGNORABLE.sub("", text))


def segmented(word: str, size: int = 1) -> Iterator[str]:
    """Split a word where its script changes between one with and one without spaces.

    The latter become n-grams of ``size`` characters, or fewer if the part is shorter.
    """
    if word.isascii() or not UNSPACED.search(word):
        yield word
        return
    for part in _PARTS.finditer(word):
        if part["unspaced"] is None:
            yield part[0]
            continue
        characters = regex.findall(r"\X", part[0])
        for start in range(max(1, len(characters) - size + 1)):
            yield "".join(characters[start : start + size])


def spaced(text: str) -> str:
    """A text with blanks around every character of scripts without spaces."""
    if text.isascii():
        return text
    return str(_PARTS.sub(lambda part: f" {' '.join(segmented(part[0]))} " if part["unspaced"] else part[0], text))


def has_many(pattern: regex.Pattern[str], texts: Iterable[str], share: float = SHARE) -> bool:
    """Whether the pattern matches in at least this share of the words of texts. Each character of a script without
    spaces is a word.
    """
    total = matching = 0
    of_ascii = []
    for text in texts:
        if text.isascii():
            of_ascii.append(text)  # counted only if it matters
            continue
        for word in _found(text):
            parts = [bool(pattern.search(part)) for part in segmented(word)]
            total, matching = total + len(parts), matching + sum(parts)
    return matching > 0 and matching >= share * (total + sum(len(_ASCII_WORD.findall(text)) for text in of_ascii))


def _found(text: str) -> list[str]:
    found: list[str] = _WORD.findall(without_ignorable(text))
    return found
