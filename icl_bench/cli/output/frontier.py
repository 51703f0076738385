"""Prints ``summary --frontier``: a table for each task and model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from icl_bench.analysis.frontier import frontier_of_folder, leading
from icl_bench.analysis.query_cost import MEASURES, QUERIES, Prices, check_queries
from icl_bench.analysis.statistics.paired import ALPHA
from icl_bench.analysis.summary import records
from icl_bench.analysis.words import USUAL_ORDERS, rows_left_out_notes, variant_names
from icl_bench.cli.output.fitting import ColumnHead, TableCell, print_table
from icl_bench.cli.output.tables import print_json, print_lines
from icl_bench.cli.output.terminal import console
from icl_bench.cli.output.working import watched, working
from icl_bench.metrics.scores import measure
from icl_bench.models.attention_patterns import FULL
from icl_bench.results.storage import Place
from icl_bench.wording import DASH, counted_queries, percent, three_digits

if TYPE_CHECKING:
    import pandas as pd

COST_COLUMNS: Mapping[str, tuple[str, float]] = {
    "tokens": ("tokens", 1.0),
    "operations": ("GFLOP", 1e9),
    "seconds": ("seconds", 1.0),
    "money": ("money, per 1,000", 1e-3),
}
"""Measure -> title of its column, and its unit."""


def print_frontier(
    results: Place, queries: int | None, price: str | None, only: Mapping[str, str], *, json: bool
) -> None:
    """Print every point with its costs and verdict, cheapest first. Raises ``UserError``."""
    prices = Prices.parse(price) if price is not None else None
    number = QUERIES if queries is None else queries
    check_queries(number)
    with working() as say:
        table = frontier_of_folder(watched(results, say), number, prices, only)
    if json:
        price_record = vars(prices) if prices else None
        print_json({"queries": number, "prices": price_record, "frontier": records(table)})
        return
    first = leading(table, prices)
    costs = [name for name in MEASURES if table[name].notna().any()]
    for (task, model), part in table.groupby(["task", "model"], sort=True):
        title = f"{task} · {model}, for {counted_queries(number)}"
        _print(part.sort_values([first, "score"]), title, costs, first)
    print_lines(
        console(),
        f"by {first}: dominated: another point costs no more and scores more; on the frontier: no other point that "
        f"costs no more scores as much (p of {ALPHA:g} or less, corrected for the number of points)",
    )
    compared = table[first].notna() & ~table["other_tests"]
    if single := int((compared & table[f"verdict_{first}"].isna()).sum()):
        print_lines(
            console(),
            f"{single} of {len(table)} points have a single draw, which says nothing of other demonstrations, and no "
            "verdict; try --draws 3",
        )
    if table["other_tests"].any():
        count = int(table["other_tests"].sum())
        print_lines(console(), f"{count} of {len(table)} points have other test examples and are not compared")
    print_lines(console(), *rows_left_out_notes(table))


VERDICT_STYLES = {"on the frontier": "green", "dominated": "red"}
"""Verdict -> its colour."""


def _print(part: pd.DataFrame, title: str, costs: Sequence[str], first: str) -> None:
    heads = [
        ColumnHead("point", "name", bare=True),
        ColumnHead("k", "key"),
        ColumnHead("draws", "count"),
        ColumnHead(f"{measure(part)} %"),
        ColumnHead("95% interval"),
        *(ColumnHead(COST_COLUMNS[name][0]) for name in costs),
        ColumnHead(f"by {first}", "text"),
    ]
    rows = [{str(name): value for name, value in row.items()} for row in part.to_dict("records")]
    alike = Counter((_name(row), row["k"]) for row in rows)
    variants = variant_names(part["variant"])
    cells: list[list[TableCell]] = []
    for row in rows:
        name, verdict = _name(row), row[f"verdict_{first}"] or DASH
        label = f"{name}, {variants[str(row['variant'])]}" if alike[name, row["k"]] > 1 else name
        cells.append(
            [
                label,
                f"{row['k']:,}",
                f"{row['draws']}",
                percent(row["score"]),
                f"{percent(row['ci_low'])} – {percent(row['ci_high'])}",
                *(_amount(row[name] / COST_COLUMNS[name][1]) for name in costs),
                Text(verdict, VERDICT_STYLES.get(verdict, "dim")),
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
