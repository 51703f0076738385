"""Tables and JSON as commands print them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from rich.padding import Padding

if TYPE_CHECKING:
    from rich.console import Console


def print_json(value: object) -> None:
    """Print indented JSON on standard output, in letters that its encoding has."""
    plain = not (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(value, indent=1, ensure_ascii=plain, default=str))


def print_lines(console: Console, *texts: str) -> None:
    """Plain lines below a table, broken at words and indented."""
    for text in texts:
        console.print(Padding(text, (0, 0, 0, 2)))


def print_notes(console: Console, *texts: str) -> None:
    """The same, with an empty line below where there are any."""
    print_lines(console, *texts)
    if texts:
        console.print()
