"""How text from data is shown as it is, in each medium where some of it would be read as markup.

HTML itself is escaped by the template's autoescape; what stands in a page's script goes through
:func:`in_script`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from icl_bench.wording import plain

COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""What a terminal obeys instead of showing it, but for line breaks and tabs, and what neither UTF-8
nor XML can hold."""


ENDS_SCRIPT = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
"""What could end a script element or a line of a program, as JSON's own escapes."""


def visible(text: str) -> str:
    r"""Text with its control characters written out.

    A terminal would obey them, and in an SVG file they are errors.

    >>> visible("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return COMMANDS.sub(lambda found: repr(found[0])[1:-1], text)


def all_visible(value: Any) -> Any:
    """The same for every text in a JSON value."""
    if isinstance(value, dict):
        return {key: all_visible(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [all_visible(inner) for inner in value]
    return visible(value) if isinstance(value, str) else value


def in_markdown(value: object) -> str:
    r"""A value as a cell of a Markdown table: on one line, and nothing in it is markup.

    >>> in_markdown("[a]_b|c")
    '\\[a\\]\\_b\\|c'
    """
    text = " ".join(plain(value).split())
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, entity)
    text = re.sub(r"([\\`*\[\]|~$])", r"\\\1", text)
    # between letters or digits, as in trec_fine, an underscore is no markup
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def in_script(value: Any) -> str:
    """A value as JSON that can stand inside a script element. Raises ``ValueError`` for NaN."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(ENDS_SCRIPT)


def no_formula(text: str) -> str:
    """A text of a CSV cell, with an apostrophe in front if a spreadsheet would run it as a formula.

    Numbers stay: ``-1`` is one. https://owasp.org/www-community/attacks/CSV_Injection
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def formula_of(text: str) -> str:
    """The text that :func:`no_formula` made this of."""
    return text[1:] if text.startswith("'") and no_formula(text[1:]) == text else text


_FORMULA = re.compile(r"'*(?:\s*[=+@\uff1d\uff0b\uff0d\uff20-]|[\t\r])")
# an apostrophe that stood there gets another one, so that it can be taken off again
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
