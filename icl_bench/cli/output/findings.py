"""Findings as ``summary`` prints them: small tables below the curves, where there is a finding."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.columns import Column
from icl_bench.analysis.finding import Finding, Printed
from icl_bench.analysis.words import cautions_of, comparison_notes, with_reasons
from icl_bench.cli.output.summary import print_summary, setting_numbers
from icl_bench.cli.output.tables import empty_table, print_lines
from icl_bench.metrics.scores import ACCURACY, measure, title
from icl_bench.models.attention_patterns import FULL
from icl_bench.registry import FINDINGS
from icl_bench.wording import DASH, p_value, percent, rounded, three_digits

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from icl_bench.analysis.findings import Findings
    from icl_bench.results.storage import Place

Row = Mapping[str, Any]


METRIC, SETTING = Column("metric", "metric"), Column("setting", "setting")


def shown(column: Column, row: Row) -> str:
    """A value as a cell of the terminal; with an ``upper`` column, both limits."""
    value = _shown(column, row[column.name])
    if not column.upper or value == DASH:
        return value
    return f"{value} to {_shown(column, row[column.upper])}"


def _shown(column: Column, value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    if isinstance(value, str):
        return value
    match column.kind:
        case "share":
            return percent(value / column.unit)
        case "points":
            return percent(value / column.unit, "+")
        case "p":
            return p_value(value)
        case "count":
            return rounded(value / column.unit, 0)
        case "number":
            return three_digits(value / column.unit)
        case "flag":
            return "yes" if value else "no"
    return str(value)


def print_findings(findings: Findings, console: Console, asked: Collection[str] = ()) -> None:
    """The curves, then each table that has rows, with those that options ``asked`` for.

    Where there is other attention than full, each curve has a table of its own with its name in
    the title: patterns are long.
    """
    print_summary(findings.summary, console, order=False)
    if findings.context.stored.predictions.empty and not findings.summary.failed:
        print_lines(console, "no predictions; losses of long texts: icl-bench report")
        return
    numbers = setting_numbers(findings.summary)
    for finding, printed in _printed(asked):
        table = printed.rows(findings.context.table(finding.name))
        if len(table):
            heading, columns = _measured(printed.heading, finding.in_terminal(), table)
            _print(heading, columns, table, numbers, console)
    print_lines(
        console,
        "label bias, confusions, demonstrations, cost and single predictions: icl-bench report; "
        "all numbers: --json",
    )


def _printed(options: Collection[str]) -> list[tuple[Finding, Printed]]:
    """The findings that are printed, in their order, and how."""
    there = [(finding, finding.printed) for finding in FINDINGS.values() if finding.printed]
    asked = [both for both in there if both[1].option in ("", *options)]
    return sorted(asked, key=lambda both: (both[1].option, both[1].place))


def _print(
    heading: str, columns: Sequence[Column], table: pd.DataFrame, numbers: Mapping[str, int],
    console: Console,
) -> None:  # fmt: skip
    compared = any(column.name == "advice" for column in columns)
    notes = [*(comparison_notes(table) if compared else []), *cautions_of(table)]
    table, columns = _numbered(with_reasons(table) if compared else table, columns, numbers)
    for named, kept, part in _parts(heading, columns, table):
        console.print(named, style="bold")
        console.print(_table(kept, part))
    print_lines(console, *notes)


def print_advice(
    results: Place, asked: str, only: Mapping[str, str | None], *, queries: int | None = None,
    price: str | None = None, json: bool,
) -> None:  # fmt: skip
    """What to prompt with for a budget, with the test behind it; as JSON every point's verdict."""
    from icl_bench.analysis.advice import Budget, advise_folder, lines
    from icl_bench.analysis.query_cost import Prices
    from icl_bench.analysis.summary import records
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console

    budget = Budget.parse(asked, queries, None if price is None else Prices.parse(price))
    table = advise_folder(results, budget, {n: v for n, v in only.items() if v is not None})
    if json:
        print_json({"budget": str(budget), "advice": records(table)})
    else:
        console().print("\n".join(lines(table, budget)), soft_wrap=True)


def _measured(
    heading: str, columns: Sequence[Column], frame: pd.DataFrame
) -> tuple[str, Sequence[Column]]:
    """Heading and columns with what the scores are; as a column where not all are accuracy."""
    if "metric" not in frame:
        return heading.format(score=title(ACCURACY)), columns
    several = (frame["metric"] != ACCURACY).any() and any(c.name == "difference" for c in columns)
    if several:
        at = [column.name for column in columns].index("k") + 1
        columns = [*columns[:at], METRIC, *columns[at:]]
    return heading.format(score=measure(frame)), columns


def _numbered(
    frame: pd.DataFrame, columns: Sequence[Column], numbers: Mapping[str, int]
) -> tuple[pd.DataFrame, Sequence[Column]]:
    """With the setting before the first number, where rows are of several."""
    if "metric" in frame:
        frame = frame.assign(metric=frame["metric"].map(title))
    if "variant" not in frame or not set(frame["variant"]) & numbers.keys():
        return frame, columns
    at = _first_number(columns)
    number = frame["variant"].astype(object).map(lambda variant: str(numbers.get(variant, DASH)))
    return frame.assign(setting=number), [*columns[:at], SETTING, *columns[at:]]


def _first_number(columns: Sequence[Column]) -> int:
    return next((at for at, c in enumerate(columns) if c.kind != "text"), len(columns))


def _parts(
    heading: str, columns: Sequence[Column], frame: pd.DataFrame
) -> Iterator[tuple[str, Sequence[Column], pd.DataFrame]]:
    """The table as it is or, with other attention than full, by curve: heading, columns, rows."""
    if "attention" not in frame or set(frame["attention"]) <= {str(FULL)}:
        yield heading, columns, frame
        return
    at = _first_number(columns)
    names = [column for column in columns[:at] if column != SETTING]
    kept = [column for column in columns[:at] if column == SETTING]
    for key, part in frame.groupby([column.name for column in names], observed=True):
        told = f"{heading} ({', '.join(map(str, key))})"
        yield told, [*kept, Column("attention", "attention"), *columns[at:]], part


def _score_of(frame: pd.DataFrame) -> str:
    """What the scores of a table are, for its columns' titles."""
    return measure(frame) if "metric" in frame else title(ACCURACY)


def _table(columns: Sequence[Column], frame: pd.DataFrame) -> Table:
    table = empty_table()
    for column in columns:
        table.add_column(
            column.brief.format(score=_score_of(frame)),
            justify="left" if column.kind == "text" else "right",
            overflow="fold",
            no_wrap=column.name == "attention",
        )
    rows: Any = frame.to_dict("records")
    for row in rows:
        table.add_row(*(shown(column, row) for column in columns))
    return table
