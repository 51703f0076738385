"""Prints JSON, and lines below tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding

from icl_bench.cli.output import terminal

if TYPE_CHECKING:
    import pandas as pd


def print_json(value: object) -> None:
    """Print indented JSON on standard output, escaped if its encoding is not Unicode."""
    plain = not (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(value, indent=1, ensure_ascii=plain, default=str))


def print_records(records: Any, print_table: Callable[[Any, Console], None], *, json: bool) -> None:
    """Print records as a table made by a function, or as JSON."""
    if json:
        print_json(records)
    else:
        print_table(records, terminal.console())


def top_rows(
    table: pd.DataFrame, top: int | None, by: Sequence[str], *, largest: bool = False
) -> tuple[pd.DataFrame, list[str]]:
    """At most ``top`` rows in the table's order, and a note on the omitted rows.

    The rows with the smallest values of the columns ``by`` are kept (``largest``: with the largest); the first on ties.
    """
    if top is None or len(table) <= top:
        return table, []
    ranked = table.reset_index(drop=True)
    if by:
        ranked = ranked.sort_values(list(by), ascending=not largest, kind="stable")
    note = f"{len(table) - top:,} of {len(table):,} rows are not shown (--top)"
    return table.iloc[sorted(ranked.index[:top])], [note]


def print_lines(console: Console, *texts: str) -> None:
    """Print plain lines below a table, wrapped and indented."""
    for text in texts:
        console.print(Padding(text, (0, 0, 0, 2)))


def print_notes(console: Console, *texts: str) -> None:
    """Print lines below a table, followed by an empty line if there are any."""
    print_lines(console, *texts)
    if texts:
        console.print()
