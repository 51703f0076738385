"""Prints a check against a baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from icl_bench.analysis.baseline_check import Check, point_name
from icl_bench.analysis.regression import PAIR, Overall
from icl_bench.analysis.words import UNPERTURBED, USUAL_ORDERS
from icl_bench.cli.output.fitting import ColumnHead, TableCell, print_table
from icl_bench.cli.output.tables import print_lines
from icl_bench.demonstrations.selector_spec import cautions
from icl_bench.metrics.scores import title
from icl_bench.wording import DASH, counted, percent, plain, rounded, short, stated_p

SHOWN_FLIPS = 5
"""Changed predictions shown for each point; ``--json`` has all of them."""


STYLES = {"loss": "bold red", "small loss": "yellow"}
"""Verdict -> its colour."""


NAME_HEADS = {
    "perturbation": ColumnHead("perturbation", "name"),
    "select": ColumnHead("select", "name", bare=True),
    "order": ColumnHead("order", "name", usual=USUAL_ORDERS),
    "attention": ColumnHead("attention", "name"),
    "score": ColumnHead("score", "name"),
    "variant": ColumnHead("variant", "name"),
}


def print_check(check: Check, console: Console) -> None:
    """Print the compared points, differences between the runs, changed predictions, and the verdict."""
    for (task, model), group in check.points.groupby(["task", "model"], observed=True):
        _print(f"{task} · {model}", group, console)
        print_lines(console, *cautions(group["select"]))
    for text in (*_changes(check), *_prompts(check), *_alone(check), *_torn(check), *_flips(check)):
        _line(console, text)
    for text in check.notes:
        _line(console, text)
    if check.overall.points > 1 and not math.isnan(check.overall.p):
        _line(console, _overall(check.overall), style=STYLES.get(check.overall.verdict, ""))
    _line(console, _verdict(check), style="green" if check.passed else "bold red")


def _line(console: Console, text: str, style: str = "") -> None:
    # unwrapped lines outside a terminal, so that logs can be searched
    console.print(text, style=style, soft_wrap=not console.is_terminal)


def _print(title: str, group: Any, console: Console) -> None:
    """The points of a task and model."""
    further = [name for name in ("attention", "score") if set(group[name]) - {"full", "correct"}]
    several = bool(group.duplicated(["perturbation", "select", "order", "attention", "k"]).any())
    perturbed = ["perturbation"] if group["perturbation"].notna().any() else []
    named = [*perturbed, "select", "order", *further, *(["variant"] if several else [])]
    heads = [
        *(NAME_HEADS[name] for name in named),
        ColumnHead("k", "key"),
        ColumnHead("draws", "count"),
        ColumnHead("test rows", "count"),
        *map(ColumnHead, ("baseline %", "now %", "diff.", "95% interval", "p (Holm)")),
        ColumnHead("verdict", "text"),
    ]
    rows: list[list[TableCell]] = [
        [
            *(_named(row, name) for name in named),
            *(f"{row[name]:,}" for name in ("k", "draws", "rows")),
            percent(row["base_mean"]),
            percent(row["mean"]),
            percent(row["difference"], "+"),
            f"{percent(row['ci_low'], '+')} to {percent(row['ci_high'], '+')}",
            DASH if math.isnan(row["p_holm"]) else rounded(row["p_holm"], 4),
            Text(row["verdict"], STYLES.get(row["verdict"], "")),
        ]
        for row in group.to_dict("records")
    ]
    print_table(console, heads, rows, names=[title])


def _named(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if name == "score":
        if not isinstance(value, str):
            return DASH
        return "accuracy" if value == "correct" else title(value)
    return str(value if isinstance(value, str) or name != "perturbation" else UNPERTURBED)


def _changes(check: Check) -> Iterator[str]:
    """Facts that differ between baseline and run, once for all variants."""
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
        yield from dict.fromkeys(f"{where}: {check.name_alone(row)}" for row in points.to_dict("records"))


def _torn(check: Check) -> Iterator[str]:
    """Points that were not compared, or not with all their predictions."""
    for row in check.points.to_dict("records"):
        if row["verdict"] == "no score":
            yield f"not compared: {point_name(row)}: no prediction has a score on both sides"
        elif row["left_out"]:
            count = counted(row["left_out"], "prediction")
            yield f"left out: {point_name(row)}: {count} without a score on one side"
        if row["missing"]:
            count = counted(row["missing"], "prediction")
            yield f"missing now: {point_name(row)}: {count} of the baseline"


def _flips(check: Check) -> Iterator[str]:
    if check.flips.empty:
        return
    for row in check.points.to_dict("records"):
        if row["score"] != "correct" or not row["lost"] + row["gained"]:
            continue
        yield f"{point_name(row)}: {row['lost']:,} right → wrong, {row['gained']:,} wrong → right"
        of_point = (check.flips[PAIR] == [row[name] for name in PAIR]).all(axis=1)
        for flip in check.flips[of_point].head(SHOWN_FLIPS).to_dict("records"):
            yield (
                f"  {flip['change']}: draw {flip['draw']}, {plain(flip['test_id'])}: "
                f"{short(flip['before'])} → {short(flip['now'])}, right is {short(flip['gold'])}"
            )
        if more := max(int(of_point.sum()) - SHOWN_FLIPS, 0):
            yield f"  and {more:,} more (--json has all)"


def _overall(overall: Overall) -> str:
    limits = f"{percent(overall.ci_low, '+')} to {percent(overall.ci_high, '+')}"
    return (
        f"all {overall.points:,} points together, {counted(overall.rows, 'test row')}: "
        f"{percent(overall.base_mean)}% before, {percent(overall.mean)}% now, "
        f"{percent(overall.difference, '+')} points (95% {limits}), {stated_p(overall.p)}: "
        f"{overall.verdict}"
    )


def _verdict(check: Check) -> str:
    points = check.overall.points
    lost = int((check.points["verdict"] == "loss").sum())
    size = f"larger than {100 * check.tolerance:g} points"
    rule = f"{size} (Holm-corrected p up to {check.overall.alpha_points:g})"
    if lost:
        return f"FAILED: {lost} of {counted(points, 'point')} with a significant loss {rule}"
    if check.lost:
        return f"FAILED: a significant loss {size} in all {points:,} points together (p up to {check.overall.alpha:g})"
    if not check.passed:
        return f"INCOMPLETE: the run lacks {check.lacking} of the baseline"
    return f"passed: no significant loss {rule} in {counted(points, 'point')}"
