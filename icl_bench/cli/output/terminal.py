"""The terminal that everything is printed on."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from icl_bench.escaping import visible


class Terminal(Console):
    """Shows text as it is: nothing in it is markup, an emoji's name or a control character.

    Styles are given beside the text (``print(text, style=...)``, ``Text(text, style)``).
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """All text that is printed, also that of tables and titles, comes by here."""
        return super().render_str(visible(text), **options)


def console(stderr: bool = False) -> Terminal:
    """The terminal; wide enough for tables where the output goes into a file."""
    known = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Terminal(stderr=stderr, width=None if known else 120, soft_wrap=False)
