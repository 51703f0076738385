"""Prints ``summary --frontier``: a table for each task and model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from icl_bench.analysis.across_models import compared_within, compares_models
from icl_bench.analysis.frontier import frontier_of_folder, leading
from icl_bench.analysis.query_cost import MEASURES, QUERIES, check_queries
from icl_bench.analysis.statistics.paired import ALPHA
from icl_bench.analysis.summary import records
from icl_bench.analysis.words import USUAL_ORDERS, rows_left_out_notes, variant_names
from icl_bench.cli.output.fitting import ColumnHead, TableCell, print_table
from icl_bench.cli.output.tables import print_json, print_lines, top_rows
from icl_bench.cli.output.terminal import console
from icl_bench.cli.output.working import watched, working
from icl_bench.metrics.scores import measure
from icl_bench.models.attention_patterns import FULL
from icl_bench.models.prices import TOKENS, Prices, given_prices
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
    results: Place,
    queries: int | None,
    price: str | None,
    only: Mapping[str, str],
    *,
    across: str | None = None,
    top: int | None = None,
    json: bool,
) -> None:
    """Print every point with its costs and verdict, cheapest first. Raises ``UserError``.

    If there are more points than ``top``, those on the frontier precede undecided and dominated ones, and higher scores
    precede lower ones.
    """
    prices = given_prices(price)
    number = QUERIES if queries is None else queries
    check_queries(number)
    models = compares_models(across)
    with working() as say:
        table = frontier_of_folder(watched(results, say), number, prices, only, models)
    if json:
        record = {"queries": number, "prices": price_record(prices, table), "across": across}
        print_json(record | {"frontier": records(table)})
        return
    first = leading(table, prices, models)
    costs = [name for name in MEASURES if table[name].notna().any()]
    if models:
        table = table.assign(named=table["model"].astype(str) + " · ")
    for key, part in table.groupby(compared_within(models), sort=True):
        title = f"{' · '.join(map(str, key))}{', all models' if models else ''}, for {counted_queries(number)}"
        ranks = part[f"verdict_{first}"].astype(object).map({verdict: rank for rank, verdict in enumerate(VERDICTS)})
        ranked = part.assign(rank=ranks.fillna(len(VERDICTS)), below=-part["score"]).sort_values([first, "score"])
        shown, more = top_rows(ranked, top, ["rank", "below"])
        _print(shown, title, costs, first)
        print_lines(console(), *more)
    print_lines(
        console(),
        f"by {first}: dominated: another point costs no more and scores more; on the frontier: no other point that "
        f"costs no more scores as much (p of {ALPHA:g} or less, corrected for the number of points)",
    )
    compared = table[first].notna() & ~table["other_tests"]
    if single := int((compared & table[f"verdict_{first}"].isna()).sum()):
        print_lines(
            console(),
            f"{single} of {len(table)} points have a single draw, which does not show the effect of other "
            "demonstrations, so they have no verdict; try --draws 3",
        )
    if table["other_tests"].any():
        count = int(table["other_tests"].sum())
        print_lines(console(), f"{count} of {len(table)} points have other test rows and are not compared")
    print_lines(console(), *rows_left_out_notes(table))
    if prices is not None:
        print_lines(console(), *price_lines(prices, table))


def price_record(prices: Prices | None, table: pd.DataFrame) -> dict[str, Any] | None:
    """The prices as JSON: the given ones, and with ``auto`` those of each model of a frontier or advice."""
    if prices is None:
        return None
    return prices.given | ({"auto": True, "models": table.attrs["prices"]} if prices.auto else {})


def price_lines(prices: Prices, table: pd.DataFrame) -> list[str]:
    """A line for each model with prices from the table, with their currency and day."""
    return [
        f"prices of {model}, US dollars per million tokens: {prices_in_words(of_model)} ({of_model['origin']})"
        for model, of_model in table.attrs["prices"].items()
        if prices.auto and "origin" in of_model
    ]


def prices_in_words(given: Mapping[str, Any]) -> str:
    """Token prices in the syntax of ``--price``."""
    return ",".join(f"{name}={given[name]:g}" for name in (*TOKENS, "write") if name in given)


VERDICTS = ("on the frontier", "undecided", "dominated")
"""Verdicts, the most important first."""

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
    rows = [{"named": "", **{str(name): value for name, value in row.items()}} for row in part.to_dict("records")]
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
                f"{percent(row['ci_low'])} to {percent(row['ci_high'])}",
                *(_amount(row[name] / COST_COLUMNS[name][1]) for name in costs),
                Text(verdict, VERDICT_STYLES.get(verdict, "dim")),
            ]
        )
    print_table(console(), heads, cells, names=[title])


def _name(row: Mapping[str, Any]) -> str:
    order = "" if row["order"] in USUAL_ORDERS else f", {row['order']}"
    read = "" if row["attention"] == str(FULL) else f", {row['attention']}"
    rung = "" if row["cascade"] is None else f", cascade {row['cascade']}"
    return f"{row['named']}{row['select']}{order}{read}{rung}"


def _amount(value: float) -> str:
    return DASH if math.isnan(value) else three_digits(value)
