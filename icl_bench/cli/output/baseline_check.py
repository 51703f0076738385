"""A check against a baseline as the terminal shows it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from icl_bench.analysis.baseline_check import point_name
from icl_bench.analysis.regression import PAIR
from icl_bench.analysis.words import UNPERTURBED
from icl_bench.cli.output.tables import empty_table, print_lines
from icl_bench.demonstrations.selector_spec import cautions
from icl_bench.metrics.scores import title
from icl_bench.wording import DASH, counted, percent, plain, rounded, short

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from icl_bench.analysis.baseline_check import Check

SHOWN = 5
"""Examples shown of each point; ``--json`` has all of them."""


STYLES = {"loss": "bold red", "small loss": "yellow"}


def print_check(check: Check, console: Console) -> None:
    """The compared points, what they have in common or not, what flipped, and the verdict."""
    for (task, model), group in check.points.groupby(["task", "model"], observed=True):
        console.print(_table(f"{task} · {model}", group))
        print_lines(console, *cautions(group["select"]))
    for text in (*_changes(check), *_prompts(check), *_alone(check), *_flips(check)):
        _line(console, text)
    _line(console, _verdict(check), style="" if check.passed else "bold red")


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, soft_wrap=True)


def _table(title: str, group: Any) -> Table:
    table = empty_table(title)
    further = [name for name in ("attention", "score") if set(group[name]) - {"full", "correct"}]
    several = bool(group.duplicated(["teaching", "select", "order", "attention", "k"]).any())
    perturbed = ["teaching"] if group["teaching"].notna().any() else []
    named = [*perturbed, "select", "order", *further, *(["variant"] if several else [])]
    for name in named:
        table.add_column("demonstrations" if name == "teaching" else name, overflow="fold")
    for name in ("k", "draws", "test\nrows", "baseline\n%", "now\n%", "differ-\nence",
                 "95%\ninterval", "p\n(Holm)"):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=name.startswith("95"))
    table.add_column("verdict")
    for row in group.to_dict("records"):
        verdict, style = row["verdict"], STYLES.get(row["verdict"], "")
        table.add_row(
            *(_named(row, name) for name in named),
            str(row["k"]), str(row["draws"]), str(row["rows"]),
            percent(row["base_mean"]), percent(row["mean"]), percent(row["difference"], "+"),
            f"{percent(row['ci_low'], '+')} {DASH} {percent(row['ci_high'], '+')}",
            DASH if math.isnan(row["p_holm"]) else rounded(row["p_holm"], 4),
            Text(verdict, style),
        )  # fmt: skip
    return table


def _named(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if name == "score":
        return DASH if value is None else "accuracy" if value == "correct" else title(value)
    return str(value if isinstance(value, str) or name != "teaching" else UNPERTURBED)


def _changes(check: Check) -> Iterator[str]:
    """What computed the answers, where it is not the same; alike in several variants: once."""
    texts = (
        f"differs: {plain(c['fact'])}: {_fact(c['before'])} in the baseline, {_fact(c['now'])} now"
        for c in check.changes
    )
    yield from dict.fromkeys(texts)


def _fact(value: Any) -> str:
    return "none" if value is None else plain(value) if isinstance(value, str) else short(value)


def _prompts(check: Check) -> Iterator[str]:
    others = check.points[check.points["other_prompts"] > 0]
    if len(others):
        count = counted(int(others["other_prompts"].sum()), "prediction")
        yield f"differs: the prompts' token ids, in {count} of {counted(len(others), 'point')}"


def _alone(check: Check) -> Iterator[str]:
    sides = (("only in the baseline", check.only_baseline), ("only now", check.only_results))
    for where, points in sides:
        yield from dict.fromkeys(f"{where}: {point_name(row)}" for row in points.to_dict("records"))
    if left_out := int(check.points["left_out"].sum()):
        yield f"left out: {counted(left_out, 'prediction')}, not in all draws"


def _flips(check: Check) -> Iterator[str]:
    for row in check.points.to_dict("records"):
        if row["score"] != "correct" or not row["lost"] + row["gained"]:
            continue
        yield f"{point_name(row)}: {row['lost']:,} right → wrong, {row['gained']:,} wrong → right"
        here = (check.flips[PAIR] == [row[name] for name in PAIR]).all(axis=1)
        for flip in check.flips[here].head(SHOWN).to_dict("records"):
            yield (
                f"  {flip['change']}: draw {flip['draw']}, {plain(flip['test_id'])}: "
                f"{short(flip['before'])} → {short(flip['now'])}, right is {short(flip['gold'])}"
            )
        if more := max(int(here.sum()) - SHOWN, 0):
            yield f"  and {more:,} more (--json has all)"


def _verdict(check: Check) -> str:
    judged = check.points[check.points["verdict"] != "no score"]
    lost = int((judged["verdict"] == "loss").sum())
    rule = f"larger than {100 * check.tolerance:g} points (Holm-corrected p up to {check.alpha:g})"
    if lost:
        return f"FAILED: {lost} of {counted(len(judged), 'point')} with a significant loss {rule}"
    if judged.empty:
        return "nothing was compared: no point has a score on both sides"
    return f"passed: no significant loss {rule} in {counted(len(judged), 'point')}"
