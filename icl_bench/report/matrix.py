"""The page's first picture: tasks by models, each with its best point, saturation point and gain of selection."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.findings.saturation import saturation_text
from icl_bench.analysis.words import too_little
from icl_bench.metrics.scores import title
from icl_bench.report.naming import Naming, point_name, unshuffled
from icl_bench.wording import counted, percent

if TYPE_CHECKING:
    import pandas as pd

WIDTH, HEIGHT = 132, 40
"""The size of a small curve, in the units of its picture."""


PADDING = 3
"""Padding of a small curve for its line width."""


@dataclass(frozen=True)
class Line:
    """A small curve: its points in the picture's units, and its colour in other charts."""

    series: str
    slot: int
    points: Sequence[tuple[float, float]]

    @property
    def path(self) -> str:
        """The points in SVG format."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points)


@dataclass(frozen=True)
class Entry:
    """One task and model in a few words. Texts without data are empty."""

    task: str
    model: str
    score: str
    """The best score, or the data that the highest one lacks."""
    interval: str
    measure: str
    where: str
    """Its point."""
    saturated: str
    """The k at which the curve of the best point reaches 95% of its best score."""
    selection: str
    """The gain of selection over random demonstrations."""
    lines: Sequence[Line]


@dataclass(frozen=True)
class Matrix:
    """Entries by task and model; pairs that were not run have none."""

    tasks: Sequence[str]
    models: Sequence[str]
    entries: Mapping[tuple[str, str], Entry]

    @property
    def with_random(self) -> bool:
        """Whether some small picture also has the curve of random demonstrations."""
        return any(len(entry.lines) > 1 for entry in self.entries.values())

    def get(self, task: str, model: str) -> Entry | None:
        """The entry of a pair."""
        return self.entries.get((task, model))


def matrix(findings: Findings, naming: Naming) -> Matrix:
    """The entry of each task and model, from the tables."""
    tables = {
        "curves": unshuffled(naming.named(findings.curves)),
        "best": naming.named(findings.best_points),
        "saturation": unshuffled(naming.named(findings.saturation)),
        "selection": naming.named(findings.retrieval_gain),
    }
    entries, best = {}, tables["best"].drop_duplicates(["task", "model"])
    for task, model in zip(best["task"], best["model"], strict=True):
        own = {name: table[(table["task"] == task) & (table["model"] == model)] for name, table in tables.items()}
        entries[task, model] = _entry(own, naming)
    tasks, models = (sorted({key[place] for key in entries}) for place in (0, 1))
    return Matrix(tasks, models, entries)


def _entry(tables: Mapping[str, pd.DataFrame], naming: Naming) -> Entry:
    curves = tables["curves"]
    best = tables["best"].assign(rows=tables["best"]["test_rows"], all_rows=curves["test_rows"].max()).iloc[0]
    why = too_little(best.to_dict())
    at = point_name(best.to_dict())
    if best["tied"]:
        at += f" (tied with {counted(best['tied'], 'other')})"
    lines = _lines(curves, str(best["series"]), naming)
    if best["other_rows"]:
        at += f" (beside {counted(best['other_rows'], 'point')} on other test rows)"
    score, interval = f"{percent(best['score'])}%", ""
    if why:
        at = f"the highest: {at}; too little data to call it the best ({why})"
    else:
        interval = f"{percent(best['ci_low'])} to {percent(best['ci_high'])}"
    return Entry(
        str(best["task"]),
        str(best["model"]),
        score,
        interval,
        title(best["metric"]),
        at,
        _saturated(tables["saturation"], str(best["series"])),
        _gain(tables["selection"]),
        lines,
    )


def _saturated(table: pd.DataFrame, series: str) -> str:
    """The k at which the best point's curve reaches 95% of its best score."""
    row: Any
    for row in table[table["series"] == series].itertuples():
        return saturation_text(row) if row.spoken else ""
    return ""


def _gain(table: pd.DataFrame) -> str:
    """The gain of the selector with the largest one on average: at its first and its last k."""
    rows = table[table["difference"].notna()]
    rows = rows[[not too_little(row) for row in rows.to_dict("records")]]
    if rows.empty:
        return ""
    means = rows.groupby("series", sort=True)["difference"].mean()
    rows = rows[rows["series"] == means.idxmax()].sort_values("k")
    ends = [rows.iloc[0], *([rows.iloc[-1]] if len(rows) > 1 else [])]
    return f"{rows.iloc[0]['series']}: " + ", ".join(_difference(row) for row in ends)


def _difference(row: Any) -> str:
    decided = isinstance(row["advice"], str)
    size = percent(row["difference"], "+").replace("-", "\N{MINUS SIGN}")
    return f"{f'{size} points' if decided else 'not distinguishable'} at k = {row['k']:,}"


def _lines(curves: pd.DataFrame, best: str, naming: Naming) -> list[Line]:
    """The curve of the best point and that of random demonstrations, if they are curves."""
    random = curves[(curves["select"] == "random") & (curves["order"] == "drawn")]
    names = [*dict.fromkeys([*random["series"].head(1), best])]
    kept = curves[curves["series"].isin(names) & curves["score"].notna()]
    if kept.empty:
        return []
    ks = kept["k"]
    left, right = math.log1p(ks.min()), math.log1p(ks.max())
    lines = []
    for name in names:
        part = kept[kept["series"] == name].sort_values("k")
        points = [
            (_place(math.log1p(k), left, right, WIDTH), HEIGHT - _place(score, 0, 1, HEIGHT))
            for k, score in zip(part["k"], part["score"], strict=True)
        ]
        if len(points) > 1:
            slot = naming.hues.get(str(part["select"].iloc[0]), 0)
            lines.append(Line(name, slot, points))
    return lines


def _place(value: float, low: float, high: float, size: int) -> float:
    """The position of a value between two limits, inside the margins."""
    share = (value - low) / (high - low) if high > low else 0.5
    return PADDING + min(max(share, 0.0), 1.0) * (size - 2 * PADDING)
