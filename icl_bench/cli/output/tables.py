"""Prints JSON, and lines below tables."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from rich.padding import Padding

if TYPE_CHECKING:
    from rich.console import Console


def print_json(value: object) -> None:
    """Print indented JSON on standard output, escaped if its encoding is not Unicode."""
    plain = not (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(value, indent=1, ensure_ascii=plain, default=str))


def print_lines(console: Console, *texts: str) -> None:
    """Print plain lines below a table, wrapped and indented."""
    for text in texts:
        console.print(Padding(text, (0, 0, 0, 2)))


def print_notes(console: Console, *texts: str) -> None:
    """Print lines below a table, followed by an empty line if there are any."""
    print_lines(console, *texts)
    if texts:
        console.print()
