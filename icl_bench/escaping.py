"""Escapes text from data for each medium in which parts of it would be interpreted as markup.

HTML is escaped by the template's autoescape, and data in a page's script by :func:`in_script`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from icl_bench.wording import plain

COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Characters that a terminal interprets instead of showing, except line breaks and tabs, and characters that UTF-8 or
XML do not support.
"""


ENDS_SCRIPT = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
"""Characters that could end a script element or a line of a program, as JSON's escapes."""


def visible(text: str) -> str:
    r"""Text with its control characters written out.

    A terminal would interpret them, and in an SVG file they are errors.

    >>> visible("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return COMMANDS.sub(lambda found: repr(found[0])[1:-1], text)


def all_visible(value: Any) -> Any:
    """Make every text in a JSON value visible."""
    if isinstance(value, dict):
        return {key: all_visible(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [all_visible(inner) for inner in value]
    return visible(value) if isinstance(value, str) else value


def in_markdown(value: object) -> str:
    r"""A value as a cell of a Markdown table: on one line, without markup.

    >>> in_markdown("[a]_b|c")
    '\\[a\\]\\_b\\|c'
    """
    text = " ".join(plain(value).split())
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, entity)
    text = re.sub(r"([\\`*\[\]|~$])", r"\\\1", text)
    # between letters or digits, as in trec_fine, an underscore is not markup
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def in_script(value: Any) -> str:
    """A value as JSON that is safe inside a script element. Raises ``ValueError`` for NaN."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(ENDS_SCRIPT)


def no_formula(text: str) -> str:
    """A text of a CSV cell, with an apostrophe in front if a spreadsheet would run it as a formula.

    Numbers such as ``-1`` are not changed. https://owasp.org/www-community/attacks/CSV_Injection
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def formula_of(text: str) -> str:
    """The text from which :func:`no_formula` made this one."""
    return text[1:] if text.startswith("'") and no_formula(text[1:]) == text else text


_FORMULA = re.compile(r"'*(?:\s*[=+@\uff1d\uff0b\uff0d\uff20-]|[\t\r])")
# an existing apostrophe gets another one, so that it can be removed again
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
