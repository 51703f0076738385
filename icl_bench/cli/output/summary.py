"""The curves of a results folder as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from icl_bench.cli.output.tables import DASH, empty_table, print_lines, share
from icl_bench.demonstrations.selector_spec import cautions
from icl_bench.models.attention_patterns import FULL
from icl_bench.results.cells import SETTING, CellSpec
from icl_bench.wording import counted

if TYPE_CHECKING:
    from rich.console import Console

    from icl_bench.analysis.summary import Summary

TAUGHT = ["task", "model", "teaching"]
"""What tells tables of changed demonstrations apart."""


def print_summary(summary: Summary, console: Console, order: bool = True) -> None:
    """One table per task and model, in percent, with what is to be said of its curves below.

    That is where they saturate and, with ``order``, how much the demonstrations' order matters.
    Cells that failed come last.
    """
    sensitivity = summary.order_sensitivity if order else summary.order_sensitivity.iloc[:0]
    shots = summary.curves.groupby(SETTING, observed=True)["k"].nunique().rename("shots")
    saturation = summary.saturation.merge(shots.reset_index(), on=SETTING)
    saturation = saturation[saturation["shots"] > 1]  # a single k says nothing of it
    for (task, model), group in summary.curves.groupby(["task", "model"], observed=True):
        named, settings = numbered_settings(group, summary.settings)
        console.print(_curve_table(f"{task} · {model}", group, settings))
        print_lines(
            console,
            *named,
            *(_left_out(row, settings) for row in group.itertuples() if row.left_out),
            *(_saturation(row, settings) for row in _here(saturation, task, model)),
            *(_sensitivity(row, settings) for row in _here(sensitivity, task, model)),
            *cautions(group["select"]),
        )
    for (task, model, teaching), group in summary.taught.groupby(TAUGHT, observed=True):
        named, settings = numbered_settings(group, summary.settings)
        title = f"{task} · {model}, demonstrations {teaching}"
        console.print(_curve_table(title, group, settings))
        print_lines(console, *named, *cautions(group["select"]))
    if summary.failed:
        console.print(f"{counted(len(summary.failed), 'cell')} failed:", highlight=False)
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
    for table, by in ((summary.taught, TAUGHT), (summary.curves, TAUGHT[:2])):
        for _, group in table.groupby(by, observed=True):
            numbers |= numbered_settings(group, summary.settings)[1]
    return numbers


def _here(frame: Any, task: Any, model: Any) -> Iterator[Any]:
    rows: Iterator[Any] = frame[(frame["task"] == task) & (frame["model"] == model)].itertuples()
    return rows


def _setting(variant: str, settings: Mapping[str, int]) -> str:
    return f", setting {settings[variant]}" if variant in settings else ""


def _way(row: Any) -> str:
    """How demonstrations were chosen, ordered and, where it is not in full, read."""
    read = "" if row.attention == str(FULL) else f", {row.attention}"
    return f"{row.select}, {row.order}{read}"


def _left_out(row: Any, settings: Mapping[str, int]) -> str:
    name = f"{_way(row)}{_setting(row.variant, settings)}, k={row.k}"
    return f"{name}: {counted(row.left_out, 'prediction')} left out: not in all draws"


def _saturation(row: Any, settings: Mapping[str, int]) -> str:
    name = f"{_way(row)}{_setting(row.variant, settings)}"
    if row.within_window:
        return f"{name}: saturated at k={row.k} (95% of the best, which is at k={row.best_k})"
    return f"{name}: not saturated within the tested k (the last is {row.max_k})"


def _sensitivity(row: Any, settings: Mapping[str, int]) -> str:
    read = "" if row.attention == str(FULL) else f", {row.attention}"
    name = f"{row.select}{read}{_setting(row.variant, settings)}, k={row.k}"
    return (
        f"{name}: {row.changed:.1%} ({row.ci_low:.1%} to {row.ci_high:.1%}) of the predictions "
        "change with the demonstrations' order"
    )


def _curve_table(title: str, group: Any, settings: Mapping[str, int]) -> Table:
    free_text = group["accuracy"].isna().all()
    table = empty_table(title)
    ways = ["select", "order"]
    if set(group["attention"]) != {str(FULL)}:
        ways.append("attention")
    for name in ways:
        table.add_column(name, overflow="fold")
    for name in ("k", "draws", "test\nrows"):
        table.add_column(name, justify="right")
    scores = (
        {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeL", "BERT\nScore": "bertscore"}
        if free_text
        else {"accuracy\n%": "accuracy", "macro\nF1 %": "macro_f1", "invalid\n%": "invalid"}
    )
    metric = group["metric"].iloc[0]  # the interval is its own
    first, *others = sorted(scores, key=lambda title: scores[title] != metric)
    table.add_column(first, justify="right")
    table.add_column("95%\ninterval", justify="right", no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    if settings:
        table.add_column("setting", justify="right")
    for row in group.to_dict("records"):
        cells = [
            *(str(row[name]) for name in (*ways, "k", "draws", "test_rows")),
            share(row[scores[first]]), f"{share(row['ci_low'])} {DASH} {share(row['ci_high'])}",
            *(share(row[scores[name]]) for name in others),
        ]  # fmt: skip
        if settings:
            cells.append(str(settings.get(row["variant"], "")))
        table.add_row(*map(escape, cells))
    return table
