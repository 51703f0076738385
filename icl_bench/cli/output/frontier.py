"""The frontier as ``summary --frontier`` prints it: a table for each task and model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from icl_bench.analysis.frontier import frontier_of_folder, leading
from icl_bench.analysis.query_cost import MEASURES, QUERIES, Prices, check_queries
from icl_bench.analysis.summary import records
from icl_bench.analysis.words import USUAL_ORDERS
from icl_bench.cli.output.fitting import Cell, Head, print_table
from icl_bench.cli.output.tables import print_json, print_lines
from icl_bench.cli.output.terminal import console
from icl_bench.cli.output.working import watched, working
from icl_bench.metrics.scores import measure
from icl_bench.models.attention_patterns import FULL
from icl_bench.wording import DASH, counted_queries, percent, three_digits

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.results.storage import Place

SHOWN: Mapping[str, tuple[str, float]] = {
    "tokens": ("tokens", 1.0),
    "operations": ("GFLOP", 1e9),
    "seconds": ("seconds", 1.0),
    "money": ("money, per 1,000", 1e-3),
}
"""Measure -> the title of its column, and what it is divided by."""


def print_frontier(
    results: Place, queries: int | None, price: str | None, only: Mapping[str, str | None], *, json: bool
) -> None:
    """Every point with its costs and verdict, the cheapest first. Raises ``UserError``."""
    prices = Prices.parse(price) if price is not None else None
    number = QUERIES if queries is None else queries
    check_queries(number)
    wanted = {name: value for name, value in only.items() if value is not None}
    with working() as say:
        table = frontier_of_folder(watched(results, say), number, prices, wanted)
    if json:
        asked = vars(prices) if prices else None
        print_json({"queries": number, "prices": asked, "frontier": records(table)})
        return
    first = leading(table, prices)
    there = [name for name in MEASURES if table[name].notna().any()]
    for (task, model), part in table.groupby(["task", "model"], sort=True):
        title = f"{task} · {model}, for {counted_queries(number)}"
        _print(part.sort_values([first, "score"]), title, there, first)
    print_lines(
        console(),
        f"by {first}: dominated, where another point costs no more and scores at least as much, in "
        "95% of resamples of draws and test examples; on the frontier, in 95% none does",
    )
    if (table["draws"] < 10).any():
        print_lines(console(), "with few draws this is too sure, and with one it says nothing of other demonstrations")
    if table["other_tests"].any():
        count = int(table["other_tests"].sum())
        print_lines(console(), f"{count} of {len(table)} points were asked other test examples and are not compared")


VERDICTS = {"on the frontier": "green", "dominated": "red"}
"""Verdict -> its colour."""


def _print(part: pd.DataFrame, title: str, there: Sequence[str], first: str) -> None:
    heads = [
        Head("point", "name", bare=True),
        Head("k", "key"),
        Head("draws", "count"),
        Head(f"{measure(part)} %"),
        Head("95% interval"),
        *(Head(SHOWN[name][0]) for name in there),
        Head(f"by {first}", "text"),
    ]
    rows = [{str(name): value for name, value in row.items()} for row in part.to_dict("records")]
    alike = Counter((_name(row), row["k"]) for row in rows)
    cells: list[list[Cell]] = []
    for row in rows:
        name, verdict = _name(row), row[f"verdict_{first}"] or DASH
        told = f"{name}, variant {row['variant']}" if alike[name, row["k"]] > 1 else name
        cells.append(
            [
                told,
                f"{row['k']:,}",
                f"{row['draws']}",
                percent(row["score"]),
                f"{percent(row['ci_low'])} – {percent(row['ci_high'])}",
                *(_amount(row[name] / SHOWN[name][1]) for name in there),
                Text(verdict, VERDICTS.get(verdict, "dim")),
            ]
        )
    print_table(console(), heads, cells, names=[title])


def _name(row: Mapping[str, Any]) -> str:
    order = "" if row["order"] in USUAL_ORDERS else f", {row['order']}"
    read = "" if row["attention"] == str(FULL) else f", {row['attention']}"
    rung = "" if row["cascade"] is None else f", cascade {row['cascade']}"
    return f"{row['select']}{order}{read}{rung}"


def _amount(value: float) -> str:
    return DASH if math.isnan(value) else three_digits(value)
