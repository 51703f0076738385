"""The curves of a results folder as tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from icl_bench.analysis.missing import in_words, not_at_random
from icl_bench.analysis.saturation import saturation_said
from icl_bench.analysis.words import curve_notes
from icl_bench.cli.output.tables import empty_table, print_lines
from icl_bench.demonstrations.selector_spec import cautions
from icl_bench.metrics.scores import SCORES, STORED_SCORES, corpus_numbers, title
from icl_bench.models.attention_patterns import FULL
from icl_bench.results.cells import SETTING, CellSpec
from icl_bench.wording import DASH, counted, percent

if TYPE_CHECKING:
    from rich.console import Console

    from icl_bench.analysis.summary import Summary

PERTURBED = ["task", "model", "teaching"]
"""What tells tables of perturbed demonstrations apart."""


def print_summary(summary: Summary, console: Console, order: bool = True) -> None:
    """One table per task and model, in percent, with what is to be said of its curves below.

    That is where they saturate and, with ``order``, how much the demonstrations' order matters.
    Cells that failed come last.
    """
    sensitivity = summary.order_sensitivity if order else summary.order_sensitivity.iloc[:0]
    shots = summary.curves.groupby(SETTING, observed=True)["k"].nunique().rename("shots")
    saturation = summary.saturation.merge(shots.reset_index(), on=SETTING)
    saturation = saturation[saturation["shots"] > 1]  # nobody asks it of a single k
    for (task, model), group in summary.curves.groupby(["task", "model"], observed=True):
        named, settings = numbered_settings(group, summary.settings)
        console.print(_curve_table(f"{task} · {model}", group, settings))
        print_lines(
            console,
            *named,
            *_gaps(group, settings),
            *curve_notes(group),
            *(_saturation(row, settings) for row in _here(saturation, task, model)),
            *(_sensitivity(row, settings) for row in _here(sensitivity, task, model)),
            *cautions(group["select"]),
        )
    for (task, model, perturbation), group in summary.taught.groupby(PERTURBED, observed=True):
        named, settings = numbered_settings(group, summary.settings)
        name = f"{task} · {model}, perturbed demonstrations: {perturbation}"
        console.print(_curve_table(name, group, settings))
        said = [*named, *_gaps(group, settings), *curve_notes(group)]
        print_lines(console, *said, *cautions(group["select"]))
    if summary.failed:
        console.print(f"{counted(len(summary.failed), 'cell')} failed:")
        print_lines(console, *(f"{CellSpec(**f['spec'])}: {f['reason']}" for f in summary.failed))


def numbered_settings(group: Any, settings: Mapping[str, str]) -> tuple[list[str], dict[str, int]]:
    """Lines that name the settings of a table, and the number of each, where there are several."""
    texts = {v: settings.get(v, "") for v in group["variant"].unique()}
    named = list(dict.fromkeys(text for text in texts.values() if text))
    if len(set(texts.values())) == 1:
        return named, {}
    # variants that differ only in what one of them has no use for are one setting
    numbers = {v: named.index(text) + 1 for v, text in texts.items() if text}
    return [f"setting {number}: {text}" for number, text in enumerate(named, 1)], numbers


def setting_numbers(summary: Summary) -> dict[str, int]:
    """Variant -> its number in the printed curves, where a task and model have several."""
    numbers: dict[str, int] = {}
    for table, by in ((summary.taught, PERTURBED), (summary.curves, PERTURBED[:2])):
        for _, group in table.groupby(by, observed=True):
            numbers |= numbered_settings(group, summary.settings)[1]
    return numbers


def _here(frame: Any, task: Any, model: Any) -> Iterator[Any]:
    rows: Iterator[Any] = frame[(frame["task"] == task) & (frame["model"] == model)].itertuples()
    return rows


def _setting(variant: str, settings: Mapping[str, int]) -> str:
    return f", setting {settings[variant]}" if variant in settings else ""


def _way(row: Any) -> str:
    """The selection, the order and, where it is not full, the attention."""
    attention = "" if row.attention == str(FULL) else f", {row.attention}"
    return f"{row.select}, {row.order}{attention}"


def _gaps(group: Any, settings: Mapping[str, int]) -> Iterator[str]:
    """What points lack, and whether they lack it at random."""
    rows: Iterator[Any] = group.itertuples()
    for row in rows:
        name = f"{_way(row)}{_setting(row.variant, settings)}, k={row.k}"
        if row.missing:
            yield f"{name}: {counted(row.missing, 'prediction')} missing or without a score"
        if row.left_out:
            count = counted(row.left_out, "prediction")
            yield f"{name}: {count} left out: no test row in common with the other draws"
    torn: Iterator[Any] = not_at_random(group).itertuples()
    for row in torn:
        name = f"{_way(row)}{_setting(row.variant, settings)}"
        yield f"{name}: {in_words(row.gap_difference, row.gap_p)}"


def _saturation(row: Any, settings: Mapping[str, int]) -> str:
    return f"{_way(row)}{_setting(row.variant, settings)}: {saturation_said(row)}"


def _sensitivity(row: Any, settings: Mapping[str, int]) -> str:
    attention = "" if row.attention == str(FULL) else f", {row.attention}"
    name = f"{row.select}{attention}{_setting(row.variant, settings)}, k={row.k}"
    return (
        f"{name}: {percent(row.changed)}% ({percent(row.ci_low)}% to {percent(row.ci_high)}%) of "
        "the predictions change with the demonstrations' order"
    )


LABEL_SCORES = {"accuracy\n%": "accuracy", "macro\nF1 %": "macro_f1", "invalid\n%": "invalid"}
"""Scores of labels as they are printed -> their columns."""


def _curve_table(name: str, group: Any, settings: Mapping[str, int]) -> Table:
    free_text = group["accuracy"].isna().all()
    table = empty_table(name)
    ways = ["select", "order"]
    if set(group["attention"]) != {str(FULL)}:
        ways.append("attention")
    for column in ways:
        table.add_column(column, overflow="fold")
    for column in ("k", "draws", "test\nrows"):
        table.add_column(column, justify="right")
    scores = {} if free_text else dict(LABEL_SCORES)
    there = [score for score in SCORES if group[score].notna().any()]
    if free_text:  # an import without any has the columns that every file has
        scores |= {_title(score): score for score in there or STORED_SCORES}
        many = {n: text for n, text in corpus_numbers().items() if group[n].notna().any()}
        scores |= {_title(text): name for name, text in many.items()}
        scores |= {"invalid\n%": "invalid"} if group["invalid"].notna().any() else {}
    else:
        scores |= {_title(score): score for score in there}
    metric = group["metric"].iloc[0]  # the interval is its own
    first, *others = sorted(scores, key=lambda name: scores[name] != metric)
    table.add_column(first, justify="right")
    table.add_column("95%\ninterval", justify="right", no_wrap=True)
    for column in others:
        table.add_column(column, justify="right")
    if settings:
        table.add_column("setting", justify="right")
    for row in group.to_dict("records"):
        cells = [
            *(str(row[column]) for column in (*ways, "k", "draws", "test_rows")),
            percent(row[scores[first]]),
            f"{percent(row['ci_low'])} {DASH} {percent(row['ci_high'])}",
            *(percent(row[scores[column]]) for column in others),
        ]  # fmt: skip
        if settings:
            cells.append(str(settings.get(row["variant"], "")))
        table.add_row(*cells)
    return table


def _title(score: str) -> str:
    """What a score is called, on two lines where it is long: ``BERT`` above ``Score``."""
    return re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])| ", "\n", title(score))
