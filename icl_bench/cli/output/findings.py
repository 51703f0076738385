"""Prints findings for ``summary``: small tables below the curves."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.columns import COLUMNS, POINT, Column
from icl_bench.analysis.finding import Finding
from icl_bench.analysis.label_probabilities import missing_scores
from icl_bench.analysis.questions import by_question
from icl_bench.analysis.words import (
    USUAL_ORDERS,
    cautions_of,
    comparison_notes,
    curve_notes,
    rows_left_out_notes,
    with_reasons,
)
from icl_bench.cli.output.answers import print_answers
from icl_bench.cli.output.fitting import ColumnHead, TableCell, print_table
from icl_bench.cli.output.summary import print_summary, setting_numbers
from icl_bench.cli.output.tables import print_lines, print_notes, top_rows
from icl_bench.metrics.scores import ACCURACY, measure, title
from icl_bench.models.attention_patterns import FULL
from icl_bench.registry import FINDINGS
from icl_bench.results.storage import Place
from icl_bench.wording import DASH, p_value, percent, rounded, three_digits

if TYPE_CHECKING:
    import pandas as pd

TableRow = Mapping[str, Any]

SettingNumbers = Mapping[tuple[str, str, str], int]
"""Task, model and variant -> the number of the setting."""


METRIC, SETTING = Column("metric", "metric"), Column("setting", "setting")


BASE_SETTING = Column("base_setting", "setting of the base", short="base\nsetting")


BARE = ("task", "model", "select", "perturbation", "attention")
"""Columns whose values need no column name."""


USUAL: Mapping[str, Sequence[str]] = {"order": USUAL_ORDERS, "attention": (str(FULL),)}
"""Column -> values that are not shown."""


def shown(column: Column, row: TableRow) -> str:
    """A value as text of a table cell; with an ``upper`` column, both limits."""
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


def print_findings(findings: Findings, console: Console, options: Collection[str] = (), top: int | None = None) -> None:
    """Print the recommended settings and the curves, then each non-empty table, by its question.

    Tables of ``options`` are included. ``top`` is the maximum number of rows of a table.
    """
    print_answers(findings, console)
    print_summary(findings.summary, console, order=False, top=top)
    if not len(findings.context.stored.rows) and not findings.summary.failed and findings.races.empty:
        print_lines(console, "no predictions; losses of long texts: icl-bench report")
        return
    numbers = setting_numbers(findings.summary)
    for question, names in by_question(finding.name for finding in _printed(options)):
        title = question
        for name in names:
            if print_finding(FINDINGS[name], findings, console, numbers, title=title, top=top):
                title = ""
    for cells in findings.summary.partial:
        console.print(cells.in_words(), soft_wrap=not console.is_terminal)
    print_lines(
        console,
        *missing_scores(findings.context.stored),
        *findings.context.rows_apart,
        "label bias, confusions, demonstrations, cost and single predictions: icl-bench report; all numbers: --json",
    )


def print_finding(
    finding: Finding,
    findings: Findings,
    console: Console,
    numbers: SettingNumbers,
    *,
    title: str = "",
    top: int | None = None,
) -> bool:
    """Print the table of one finding below a title, if it has rows. Returns whether it has.

    ``numbers`` are as for :func:`laid_out`. If there are more rows than ``top``, those with the smallest p are printed.
    """
    assert finding.printed is not None
    printed = False
    with FINDINGS.skipping(finding.name):
        table = finding.printed.rows(findings.context.table(finding.name))
        if len(table):
            first, more = top_rows(table, top, [name for name in ("p_holm",) if name in table])
            heading, heads, cells = laid_out(finding, first, numbers)
            notes = comparison_notes(table) if _compares(finding) else curve_notes(table)
            print_table(console, heads, cells, above=title, heading=heading)
            print_notes(console, *more, *notes, *finding.printed.notes(findings.context), *cautions_of(table))
            printed = True
    return printed


def made_for(options: Collection[str]) -> list[str]:
    """Names of the findings that ``print_findings`` prints with these options."""
    first = ["answers", "curves", "saturation", "order_sensitivity", "perturbed_curves"]
    return list(dict.fromkeys([*first, *(finding.name for finding in _printed(options))]))


def _printed(options: Collection[str]) -> list[Finding]:
    """The findings to print."""
    return [one for one in FINDINGS.values() if one.printed and one.printed.option in ("", *options)]


def _compares(finding: Finding) -> bool:
    return any(column.name == "advice" for column in finding.in_terminal())


def laid_out(
    finding: Finding, table: pd.DataFrame, numbers: SettingNumbers
) -> tuple[str, list[ColumnHead], list[list[TableCell]]]:
    """Heading, columns and cells of a finding's printed rows.

    ``numbers`` are the numbers of the variants' settings, if a task and model have several.
    """
    assert finding.printed is not None
    heading, columns = _measured(finding.printed.heading, finding.in_terminal(), table)
    table = with_reasons(table) if _compares(finding) else table
    table, columns = _numbered(table, columns, numbers)
    columns = _with_ways(table, columns)
    at, score = _first_number(columns), _score_of(table)
    heads = [_head(column, score, place < at) for place, column in enumerate(columns)]
    rows: Any = table.to_dict("records")
    return heading, heads, [[styled(column, row) for column in columns] for row in rows]


def _with_ways(table: pd.DataFrame, columns: Sequence[Column]) -> Sequence[Column]:
    """Add order and attention if some row has an unusual value."""
    at, present = _first_number(columns), {column.name for column in columns}
    lacking = [
        COLUMNS[name]
        for name, usual in USUAL.items()
        if name in table and name not in present and not {*map(str, table[name])} <= {*usual}
    ]
    return [*columns[:at], *lacking, *columns[at:]]


def _head(column: Column, score: str, name: bool) -> ColumnHead:
    """The head of a column; with ``name`` its values distinguish rows."""
    title = column.brief.format(score=score)
    if name:
        return ColumnHead(title, "name", bare=column.name in BARE, usual=USUAL.get(column.name, ()))
    if column.kind == "text":
        return ColumnHead(title, "text", below=column.name == "reason")
    if column.kind == "count":
        return ColumnHead(title, "key" if column.name == "k" else "count")
    return ColumnHead(title)


def styled(column: Column, row: TableRow) -> TableCell:
    """A value as a table cell, coloured if it is the verdict of a comparison."""
    text = shown(column, row)
    if column.name != "advice":
        return text
    if text == DASH:
        return Text(text, "dim")
    # without a test the column has the reason
    tested = row.get("p_holm") is not None and not math.isnan(row["p_holm"])
    better = row.get("difference", 0) > 0
    return Text(text, ("green" if better else "red") if tested else "")


def print_advice(
    results: Place,
    budget_text: str,
    only: Mapping[str, str],
    *,
    queries: int | None,
    price: str | None,
    across: str | None = None,
    json: bool,
) -> None:
    """Print the advice for a budget with its test; as JSON, every point's verdict."""
    from icl_bench.analysis.across_models import compares_models
    from icl_bench.analysis.advice import Budget, advise_folder, lines
    from icl_bench.analysis.summary import records
    from icl_bench.cli.output.frontier import price_lines, price_record
    from icl_bench.cli.output.working import watched, working
    from icl_bench.models.prices import given_prices

    prices = given_prices(price)
    budget = Budget.parse(budget_text, queries, prices, compares_models(across))
    with working() as say:
        table = advise_folder(watched(results, say), budget, only)
    record = {"budget": str(budget), "prices": price_record(prices, table), "across": across}
    texts = [*lines(table, budget), *(price_lines(prices, table) if prices else []), *rows_left_out_notes(table)]
    _print_texts(record | {"advice": records(table)}, texts, json=json)


def print_detectable(results: Place, points: float, only: Mapping[str, str], *, json: bool) -> None:
    """Print the differences that the results can show, and those of larger samples."""
    from icl_bench.analysis.detect import detect_folder, lines
    from icl_bench.analysis.summary import records
    from icl_bench.cli.output.working import watched, working

    with working() as say:
        table = detect_folder(watched(results, say), points, only)
    _print_texts({"detect": records(table)}, lines(table), json=json)


def _print_texts(record: Mapping[str, Any], texts: Iterable[str], *, json: bool) -> None:
    """Print sentences, one per line, or the record as JSON."""
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console

    if json:
        print_json(record)
    else:
        terminal = console()
        terminal.print("\n".join(texts), soft_wrap=not terminal.is_terminal)


def _measured(heading: str, columns: Sequence[Column], frame: pd.DataFrame) -> tuple[str, Sequence[Column]]:
    """Heading and columns with the metric's name; with a metric column if not all scores are accuracy."""
    if "metric" not in frame:
        return heading.format(score=title(ACCURACY)), columns
    several = (frame["metric"] != ACCURACY).any() and any(c.name == "difference" for c in columns)
    if several:
        at = [column.name for column in columns].index("k") + 1
        columns = [*columns[:at], METRIC, *columns[at:]]
    return heading.format(score=measure(frame)), columns


def _numbered(
    frame: pd.DataFrame, columns: Sequence[Column], numbers: SettingNumbers
) -> tuple[pd.DataFrame, Sequence[Column]]:
    """Add columns before the first number: the setting if rows are of several, and the base's if a curve has several
    bases.
    """
    if "metric" in frame:
        frame = frame.assign(metric=frame["metric"].map(title))
    more: list[Column] = []
    of = ["task", "model", "variant"]  # an imported variant may have several tasks
    rows = list(frame[of].itertuples(index=False, name=None)) if {*of} <= {*frame} else []
    if set(rows) & numbers.keys():
        more, frame = [SETTING], frame.assign(setting=[str(numbers.get(row, DASH)) for row in rows])
    point = [name for name in (*POINT, "perturbation") if name in frame]
    if "base_variant" in frame and frame.duplicated(point).any():  # some curve has several bases
        model = frame["base_model"] if "base_model" in frame else frame["model"]
        bases = list(zip(frame["task"], model, frame["base_variant"], strict=True))
        names = [str(numbers.get(base, base[-1])) for base in bases]
        if frame.assign(base_setting=names).duplicated([*point, "base_setting"]).any():
            names = [str(variant) for *_, variant in bases]
        more, frame = [*more, BASE_SETTING], frame.assign(base_setting=names)
    at = _first_number(columns)
    return frame, [*columns[:at], *more, *columns[at:]]


def _first_number(columns: Sequence[Column]) -> int:
    return next((at for at, c in enumerate(columns) if c.kind != "text"), len(columns))


def _score_of(frame: pd.DataFrame) -> str:
    """The name of a table's scores, for its columns' titles."""
    return measure(frame) if "metric" in frame else title(ACCURACY)
