"""Tables and JSON as commands print them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from rich import box
from rich.padding import Padding
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console


def print_json(value: object) -> None:
    """Print indented JSON on standard output, in letters that its encoding has."""
    plain = not (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(value, indent=1, ensure_ascii=plain, default=str))


def empty_table(title: str | None = None) -> Table:
    """An empty table, narrow enough for a terminal of 80 columns."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def print_lines(console: Console, *texts: str) -> None:
    """Plain lines below a table, broken at words and indented."""
    for text in texts:
        console.print(Padding(text, (0, 0, 0, 2)))
