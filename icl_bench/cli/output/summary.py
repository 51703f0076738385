"""Prints the curves of a results folder as tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from icl_bench.analysis.findings.saturation import saturation_text
from icl_bench.analysis.missing import in_words, not_at_random
from icl_bench.analysis.summary import Summary
from icl_bench.analysis.words import READS_TEST_INPUTS, USUAL_ORDERS, curve_notes
from icl_bench.cli.output.fitting import ColumnHead, print_table
from icl_bench.cli.output.tables import print_lines, print_notes, top_rows
from icl_bench.demonstrations.selector_spec import cautions
from icl_bench.metrics.scores import corpus_numbers, score_columns, title
from icl_bench.models.attention_patterns import FULL
from icl_bench.results.cells import SETTING
from icl_bench.wording import counted, percent

PERTURBED = ["task", "model", "perturbation"]
"""Columns that distinguish tables of perturbed demonstrations."""


def print_summary(summary: Summary, console: Console, order: bool = True, top: int | None = None) -> None:
    """Print one table per task and model, in percent, with notes on its curves below.

    If there are more rows than ``top``, those with the highest scores are printed. Notes are about saturation and, with
    ``order``, about the effect of the demonstrations' order. Failed cells come last.
    """
    sensitivity = summary.order_sensitivity if order else summary.order_sensitivity.iloc[:0]
    shots = summary.curves.groupby(SETTING, observed=True)["k"].nunique().rename("shots")
    saturation = summary.saturation.merge(shots.reset_index(), on=SETTING)
    saturation = saturation[saturation["shots"] > 1]  # saturation needs more than one k
    for (task, model), group in summary.curves.groupby(["task", "model"], observed=True):
        named, settings = numbered_settings(group, summary.settings)
        more = _print_curves([str(task), str(model)], group, settings, console, top)
        print_notes(
            console,
            *more,
            *named,
            *([READS_TEST_INPUTS] if any(ON_TEST_INPUTS.search(text) for text in named) else []),
            *_gaps(group, settings),
            *curve_notes(group),
            *(_saturation(row, settings) for row in _rows_of(saturation, task, model)),
            *(_sensitivity(row, settings) for row in _rows_of(sensitivity, task, model)),
            *cautions(group["select"]),
        )
    for (task, model, perturbation), group in summary.perturbed_curves.groupby(PERTURBED, observed=True):
        named, settings = numbered_settings(group, summary.settings)
        names = [str(task), f"{model}, perturbed demonstrations: {perturbation}"]
        more = _print_curves(names, group, settings, console, top)
        notes = [*more, *named, *_gaps(group, settings), *curve_notes(group)]
        print_notes(console, *notes, *cautions(group["select"]))
    if summary.failed:
        console.print(f"{counted(len(summary.failed), 'cell')} failed:")
        print_lines(console, *(f"{f.spec}: {f.reason}" for f in summary.failed))


ON_TEST_INPUTS = re.compile(r"\bcalibration=(prior=|batch(?!,of=))")
"""Suffix of the name of a setting whose calibration reads the inputs of test rows."""


def numbered_settings(group: Any, settings: Mapping[str, str]) -> tuple[list[str], dict[str, int]]:
    """Lines that name the settings of a table, and the number of each variant's, if there are several."""
    texts = {v: settings.get(v, "") for v in group["variant"].unique()}
    named = list(dict.fromkeys(text for text in texts.values() if text))
    if len(set(texts.values())) == 1:
        return named, {}
    # variants that differ only in facts that one of them does not use are one setting
    numbers = {v: named.index(text) + 1 for v, text in texts.items() if text}
    return [f"setting {number}: {text}" for number, text in enumerate(named, 1)], numbers


def setting_numbers(summary: Summary) -> dict[tuple[str, str, str], int]:
    """Task, model and variant -> number of its setting in the printed curves, if a task and model have several."""
    numbers: dict[tuple[str, str, str], int] = {}
    for table, by in ((summary.perturbed_curves, PERTURBED), (summary.curves, PERTURBED[:2])):
        for (task, model, *_), group in table.groupby(by, observed=True):
            own = numbered_settings(group, summary.settings)[1]
            numbers |= {(str(task), str(model), variant): number for variant, number in own.items()}
    return numbers


def _rows_of(frame: Any, task: Any, model: Any) -> Iterator[Any]:
    rows: Iterator[Any] = frame[(frame["task"] == task) & (frame["model"] == model)].itertuples()
    return rows


def _setting(variant: str, settings: Mapping[str, int]) -> str:
    return f", setting {settings[variant]}" if variant in settings else ""


def _way(row: Any) -> str:
    """The selection, the order and, if it is not full, the attention."""
    attention = "" if row.attention == str(FULL) else f", {row.attention}"
    return f"{row.select}, {row.order}{attention}"


def _gaps(group: Any, settings: Mapping[str, int]) -> Iterator[str]:
    """Missing predictions of points, and whether they are missing at random."""
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
    return f"{_way(row)}{_setting(row.variant, settings)}: {saturation_text(row)}"


def _sensitivity(row: Any, settings: Mapping[str, int]) -> str:
    attention = "" if row.attention == str(FULL) else f", {row.attention}"
    name = f"{row.select}{attention}{_setting(row.variant, settings)}, k={row.k}"
    return (
        f"{name}: {percent(row.changed)}% ({percent(row.ci_low)}% to {percent(row.ci_high)}%) of "
        "the predictions change with the demonstrations' order"
    )


LABEL_SCORES = {"accuracy": "accuracy %", "macro_f1": "macro F1 %", "invalid": "invalid %"}
"""Scores of labels -> their titles."""


WAYS = (
    ColumnHead("select", "name", bare=True),
    ColumnHead("order", "name", usual=USUAL_ORDERS),
    ColumnHead("attention", "name", usual=(str(FULL),)),
)
"""Columns that distinguish the curves of a task and model."""


def _print_curves(
    names: Sequence[str], group: Any, settings: Mapping[str, int], console: Console, top: int | None
) -> list[str]:
    """Print the points of a task and model's curves, in percent. Returns a note on those that are not printed."""
    scores = _scores(group)
    group, more = top_rows(group, top, ["score"], largest=True)
    first, *others = sorted(scores, key=lambda name: name != group["metric"].iloc[0])
    heads = [
        *WAYS,
        *[ColumnHead("setting", "name")] * bool(settings),
        ColumnHead("k", "key"),
        ColumnHead("draws", "count"),
        ColumnHead("test rows", "count"),
        ColumnHead(scores[first]),
        ColumnHead("95% interval"),
        *(ColumnHead(scores[name]) for name in others),
    ]
    rows = [
        [
            *(str(row[head.title]) for head in WAYS),
            *[str(settings.get(row["variant"], ""))] * bool(settings),
            *(f"{row[column]:,}" for column in ("k", "draws", "test_rows")),
            percent(row[first]),
            f"{percent(row['ci_low'])} to {percent(row['ci_high'])}",
            *(percent(row[column]) for column in others),
        ]
        for row in group.to_dict("records")
    ]
    print_table(console, heads, rows, names=names)
    return more


def _scores(group: Any) -> dict[str, str]:
    """Scores of the points -> their titles."""
    present = {score: title(score) for score in score_columns() if score in group and group[score].notna().any()}
    if group["accuracy"].notna().any():
        return {**LABEL_SCORES, **present}
    scores = present or {"score": "score"}  # an import may have none
    scores |= {n: text for n, text in corpus_numbers().items() if n in group and group[n].notna().any()}
    return scores | ({"invalid": "invalid %"} if group["invalid"].notna().any() else {})
