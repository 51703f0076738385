"""Findings as ``summary`` prints them: small tables below the curves, where there is a finding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.markup import escape

from icl_bench.analysis.attention import differences
from icl_bench.cli.output.summary import print_summary, setting_numbers
from icl_bench.cli.output.tables import DASH, empty_table, print_lines, share
from icl_bench.metrics import ACCURACY, measure, title
from icl_bench.models.attention_patterns import FULL
from icl_bench.report.tables import said

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from icl_bench.analysis.findings import Findings

Row = Mapping[str, Any]


class Column(NamedTuple):
    """A column as it is printed."""

    name: str
    text: Callable[[Row], str]
    right: bool = True


def points(value: Any) -> str:
    """A difference of shares, in points of a percentage, with its sign."""
    return share(value, "+")


def _of(name: str, right: bool = False) -> Column:
    return Column(name, lambda row: str(row[name]), right)


def _interval(of: Callable[[Any], str]) -> Column:
    return Column("95% interval", lambda row: f"{of(row['ci_low'])} to {of(row['ci_high'])}")


def _share(name: str, column: str) -> Column:
    return Column(name, lambda row: share(row[column]))


def _number(name: str, column: str, unit: float = 1.0) -> Column:
    """A quantity with three digits, or all before the point."""

    def text(row: Row) -> str:
        value = row[column] / unit
        return DASH if math.isnan(value) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    return Column(name, text)


def _queries(name: str, column: str, known: str) -> Column:
    """A number of queries, given the cost of one that must be known for it."""

    def text(row: Row) -> str:
        if math.isnan(row[known]):
            return DASH
        return "never" if math.isnan(row[column]) else f"{row[column]:,.0f}"

    return Column(name, text)


def _chance(p: Any) -> str:
    return DASH if p is None or math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"


def _better(row: Row) -> str:
    """Which attention is better: the patterns themselves are long."""
    if not isinstance(row["advice"], str):
        return "no telling"
    return str(row["kind"] if row["advice"] == row["attention"] else row["advice"])


_K = Column("k", lambda row: f"{row['k']:,}")


_METRIC = Column("metric", lambda row: title(row["metric"]), right=False)


_CURVE = (_of("task"), _of("model"), _of("select"), _of("order"))


_POINT = (_of("task"), _of("model"), _of("select"), _K)


_DIFFERENCE = (
    Column("difference", lambda row: points(row["difference"])),
    _interval(points),
    Column("p (Holm)", lambda row: _chance(row["p_holm"])),
    Column("better", lambda row: row["advice"] if isinstance(row["advice"], str) else "no telling",
           right=False),
)  # fmt: skip


TABLES: Mapping[str, tuple[str, Sequence[Column]]] = {
    "order_sensitivity": (
        "order: predictions that change when the demonstrations are reordered, %",
        (*_POINT, _share("changed", "changed"), _interval(share)),
    ),
    "noise_floor": (
        "noise: predictions that change when the same prompt is run again, %",
        (_of("task"), _of("model"), _K, _share("changed", "changed"), _interval(share)),
    ),
    "sorting_penalty": (
        "sorting: {score} of by-label less that of drawn, points",
        (*_POINT, *_DIFFERENCE),
    ),
    "retrieval_gain": (
        "selection: {score} less that of random selection, points",
        (*_POINT, *_DIFFERENCE),
    ),
    "training_gain": (
        "training: {score} less that of a prompt with the same examples, points",
        (_of("task"), _of("model"), Column("method", lambda row: str(row["select"]), right=False),
         _K, *_DIFFERENCE),
    ),
    "attention_patterns": (
        "attention: {score} less that of full attention, points; work of the prefill, % of full's",
        (*_CURVE, _K, Column("points", lambda row: points(row["difference"])), *_DIFFERENCE[1:3],
         Column("better", _better, right=False), _share("work\n%", "prefix_flops_of_full")),
    ),
    "teaching": (
        "demonstrations: {score} less that of plain ones, points",
        (_of("task"), _of("model"), Column("shown", lambda row: str(row["teaching"]), right=False),
         _of("select"), _of("order"), _K, *_DIFFERENCE),
    ),
    "models": (
        "models: {score} less that of the base model, points",
        (_of("task"), _of("model"), _of("base_model"), _of("select"), _of("order"), _K,
         *_DIFFERENCE),
    ),
    "label_spaces": (
        "half of the labels: saturation k over the largest tested k, %",
        (*_CURVE, _share("all labels", "full"), _share("half", "half"), _of("subsets", right=True)),
    ),
    "copying": (
        "copying: accuracy on queries that are among the demonstrations, %",
        (*_CURVE, _K, _share("accuracy", "accuracy"), _interval(share)),
    ),
    "calibration_error": (
        "calibration: expected calibration error, %",
        (*_CURVE, _K, _share("error", "error"), _interval(share)),
    ),
}  # fmt: skip
"""Table of ``Findings`` -> its title and columns; the others are in the JSON and the report.

``{score}`` stands for what a table of comparisons compares.
"""


COST: Mapping[str, tuple[str, Sequence[Column]]] = {
    "cost": (
        "cost of a query, and of a training",
        (*_CURVE, _K, _number("prompt\ntokens", "prompt_tokens"),
         _number("cached", "cached_tokens"), _number("seconds", "seconds"),
         _number("GFLOP,\ncached", "query_flops", 1e9), _number("GFLOP,\nnot", "whole_flops", 1e9),
         _number("training\nseconds", "training_seconds"),
         _number("training\nTFLOP", "training_flops", 1e12)),
    ),
    "break_even": (
        "queries until training is cheaper than a prompt of as many examples",
        (_of("task"), _of("model"), Column("method", lambda row: str(row["select"]), right=False),
         _K, _of("beside"), _queries("by operations", "queries", "base_flops"),
         _queries("by seconds", "queries_by_seconds", "base_seconds")),
    ),
}  # fmt: skip
"""The same for ``--cost``."""


def print_findings(findings: Findings, console: Console, cost: bool = False) -> None:
    """The curves, then each table that has rows; with ``cost`` also what it took.

    Where there is other attention than full, each curve has a table of its own with its name in
    the title: patterns are long.
    """
    print_summary(findings.summary, console, order=False)
    numbers = setting_numbers(findings.summary)
    tables = dict(findings.tables())
    tables["attention_patterns"] = differences(findings.attention_patterns)
    for name, (text, columns) in ({**TABLES, **COST} if cost else TABLES).items():
        if len(tables[name]):
            told, shown = _measured(text, columns, tables[name])
            numbered = _numbered(shown, tables[name], numbers)
            for named, kept, part in _parts(told, numbered, tables[name]):
                console.print(named, style="bold", highlight=False)
                console.print(_printed(kept, part))
            print_lines(console, *said(tables[name]))
    print_lines(
        console,
        "label bias, confusions, demonstrations, cost and single predictions: icl-bench report; "
        "all numbers: --json",
    )


def print_advice(results: Path, asked: str, only: Mapping[str, str | None], *, json: bool) -> None:
    """What to prompt with for a budget, with the test behind it; as JSON every point's verdict."""
    from icl_bench.analysis.advice import Budget, advise_folder, lines
    from icl_bench.analysis.summary import records
    from icl_bench.cli.output.tables import print_json

    budget = Budget.parse(asked)
    table = advise_folder(results, budget, {n: v for n, v in only.items() if v is not None})
    if json:
        print_json({"budget": str(budget), "advice": records(table)})
    else:
        print("\n".join(lines(table, budget)))


def _measured(
    text: str, columns: Sequence[Column], frame: pd.DataFrame
) -> tuple[str, Sequence[Column]]:
    """Title and columns with what is compared; as a column only where it is not all accuracy."""
    if "metric" not in frame:
        return text, columns
    if (frame["metric"] != ACCURACY).any():
        at = columns.index(_K) + 1
        columns = [*columns[:at], _METRIC, *columns[at:]]
    return text.format(score=measure(frame)), columns


def _numbered(
    columns: Sequence[Column], frame: pd.DataFrame, numbers: Mapping[str, int]
) -> Sequence[Column]:
    """The columns with the setting before the first number, where rows are of several."""
    if "variant" not in frame or not set(frame["variant"]) & numbers.keys():
        return columns
    at = [column.right for column in columns].index(True)
    setting = Column("setting", lambda row: str(numbers.get(row["variant"], DASH)), right=False)
    return [*columns[:at], setting, *columns[at:]]


def _parts(
    text: str, columns: Sequence[Column], frame: pd.DataFrame
) -> Iterator[tuple[str, Sequence[Column], pd.DataFrame]]:
    """The table as it is or, with other attention than full, by curve: title, columns, rows."""
    if "attention" not in frame or set(frame["attention"]) <= {str(FULL)}:
        yield text, columns, frame
        return
    at = [column.right for column in columns].index(True)
    names = [column.name for column in columns[:at] if column.name in frame]
    kept = [column for column in columns[:at] if column.name not in names]
    for key, part in frame.groupby(names, observed=True):
        told = f"{text} ({', '.join(map(str, key))})"
        yield told, [*kept, _of("attention"), *columns[at:]], part


def _printed(columns: Sequence[Column], frame: pd.DataFrame) -> Table:
    table = empty_table()
    for column in columns:
        table.add_column(
            column.name,
            justify="right" if column.right else "left",
            overflow="fold",
            no_wrap=column.name == "attention",
        )
    rows: Any = frame.to_dict("records")
    for row in rows:
        table.add_row(*(escape(column.text(row)) for column in columns))
    return table
