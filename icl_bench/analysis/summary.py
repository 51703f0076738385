"""The numbers people look at first: curves over k, saturation, order sensitivity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.intervals import matrix, mean_interval
from icl_bench.errors import UserError
from icl_bench.store import SCORES, cell_files, read_meta, read_results, read_variants

if TYPE_CHECKING:
    import pandas as pd

SETTING = ["task", "model", "select", "order", "attention", "variant"]
"""Columns that are the same along one curve."""
SATURATED = 0.95


@dataclass(frozen=True)
class Summary:
    """Tidy tables of one results folder."""

    curves: pd.DataFrame
    saturation: pd.DataFrame
    order_sensitivity: pd.DataFrame
    settings: Mapping[str, str]
    """What tells a task's variants apart, by variant; empty where a task has one variant."""
    failed: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain lists of records; what is undefined is null."""
        return {
            "curves": _records(self.curves),
            "saturation": _records(self.saturation),
            "order_sensitivity": _records(self.order_sensitivity),
            "settings": dict(self.settings),
        }


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    text: str = frame.to_json(orient="records", double_precision=15)
    records: list[dict[str, Any]] = json.loads(text)
    return records


def curves(predictions: pd.DataFrame) -> pd.DataFrame:
    """Mean scores against k, one row per point of each curve.

    Columns: the setting, k, draws, test_rows, accuracy with ci_low and ci_high (95%, draws and
    test examples both random), macro_f1 (over the labels of the test rows' gold, mean of draws),
    invalid (share of answers that are no label), and for free text the means of its scores
    with the interval of the first of them that is there. Shares of 1.
    """
    import pandas as pd

    from icl_bench.metrics import label_scores

    points = [*SETTING, "k"]
    labelled = predictions[predictions["correct"].notna()]
    rows = [
        {**dict(zip(points, key, strict=True)), **_point(group)}
        for key, group in predictions.groupby(points, observed=True, sort=True)
    ]
    table = pd.DataFrame(rows, columns=[*points, *_POINT])
    if len(labelled):
        scores = label_scores(labelled, [*points, "draw"])
        means = scores.groupby(points, observed=True)[["macro_f1"]].mean()
        table = table.drop(columns="macro_f1").merge(means, on=points, how="left")
    return table[[*points, *_POINT]]


_POINT = ["draws", "test_rows", "accuracy", "ci_low", "ci_high", "macro_f1", "invalid", *SCORES]


def _point(group: pd.DataFrame) -> dict[str, Any]:
    """One point's numbers but macro-F1."""
    found: dict[str, Any] = dict.fromkeys(_POINT)
    found["draws"] = int(group["draw"].nunique())
    found["test_rows"] = int(group["test_id"].nunique())
    if group["correct"].notna().all():
        found["accuracy"], found["ci_low"], found["ci_high"] = mean_interval(matrix(group))
        found["invalid"] = float(1 - group["valid"].mean())
        return found
    for name in SCORES:
        if group[name].notna().all():
            values = matrix(group, name).clip(0, 1)
            found[name], low, high = mean_interval(values)
            if found["ci_low"] is None:
                found["ci_low"], found["ci_high"] = low, high
    return found


def saturation(curve: pd.DataFrame) -> pd.DataFrame:
    """Where each curve is saturated (paper 003, appendix A).

    ``k`` is the smallest tested number of demonstrations whose mean accuracy reaches 95% of the
    curve's maximum, ``best_k`` the one that has the maximum, ``max_k`` the largest tested. Where
    only the last tested k reaches it, ``within_window`` is false: it may lie beyond.
    """
    import pandas as pd

    rows = []
    known = curve[curve["accuracy"].notna()]
    for key, points in known.groupby(SETTING, observed=True, sort=True):
        points = points.sort_values("k")
        best = points["accuracy"].max()
        reached = points.loc[points["accuracy"] >= SATURATED * best, "k"]
        k, last = int(reached.iloc[0]), int(points["k"].iloc[-1])
        rows.append(
            {
                **dict(zip(SETTING, key, strict=True)),
                "k": k,
                "best_k": int(points.loc[points["accuracy"].idxmax(), "k"]),
                "max_k": last,
                "within_window": k < last,
            }
        )
    return pd.DataFrame(rows, columns=[*SETTING, "k", "best_k", "max_k", "within_window"])


def order_sensitivity(predictions: pd.DataFrame) -> pd.DataFrame:
    """Share of predictions that change when the same demonstrations are reordered, per k.

    Compares ``shuffled`` with ``drawn`` prompts of the same draw and test row, averaged over all
    pairs (paper 003, section 4, figure 4). One demonstration has one order: k=1 is left out.
    """
    group = [name for name in SETTING if name != "order"] + ["k"]
    pair = [*group, "draw", "test_id"]
    # plain strings: categories of the two sides need not agree
    plain = predictions.assign(**{c: predictions[c].astype(str) for c in SETTING})
    plain = plain[plain["k"] > 1]
    drawn = plain[plain["order"] == "drawn"][[*pair, "prediction"]]
    shuffled = plain[plain["order"].str.startswith("shuffled")][[*pair, "prediction"]]
    both = shuffled.merge(drawn, on=pair, suffixes=("", "_drawn"))
    both["changed"] = (both["prediction"] != both["prediction_drawn"]).astype(float)
    return both.groupby(group, as_index=False)["changed"].mean()


def summarise(predictions: pd.DataFrame) -> Summary:
    """All tables of a tidy frame of predictions (``icl_bench.read_results``)."""
    table = curves(predictions)
    return Summary(table, saturation(table), order_sensitivity(predictions), {})


def summarise_folder(results: Path, only: Mapping[str, str] | None = None) -> Summary:
    """Summarise a results folder, or what of it has these values (task, model).

    Raises ``UserError`` where nothing is left.
    """
    frame = read_results(results)
    for name, value in (only or {}).items():
        kept = frame[frame[name] == value]
        if kept.empty:
            there = ", ".join(sorted(frame[name].astype(str).unique()))
            raise UserError(f"results folder {results}: nothing of {name} {value!r} (has: {there})")
        frame = kept
    for name in frame.select_dtypes("category").columns:
        frame = frame.assign(**{name: frame[name].cat.remove_unused_categories()})
    tables = summarise(frame)
    return Summary(
        tables.curves,
        tables.saturation,
        tables.order_sensitivity,
        _settings(results, tables.curves),
    )


def _settings(results: Path, table: pd.DataFrame) -> dict[str, str]:
    """Name the variants of a task and model by the facts in which they differ."""
    facts = read_variants(cell_files(results))
    named: dict[str, str] = {}
    for _, group in table.groupby(["task", "model"], observed=True):
        variants = [v for v in group["variant"].unique() if v in facts]
        keys = sorted({key for v in variants for key in facts[v]})
        differing = [
            key for key in keys
            if len({json.dumps(facts[v].get(key), sort_keys=True) for v in variants}) > 1
        ]  # fmt: skip
        # one selector's encoder is no difference between settings
        differing = [key for key in differing if key != "encoder"]
        if differing:
            for v in variants:
                named[v] = ", ".join(f"{key}={_brief(facts[v].get(key))}" for key in differing)
    return named


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 24 else f"{text[:10]}..{text[-10:]}"


def read_failures(results: Path) -> list[dict[str, Any]]:
    """Cells that could not be computed, with their reasons."""
    return [json.loads(path.read_text()) for path in sorted(results.rglob("*.failed.json"))]


__all__ = ["Summary", "curves", "order_sensitivity", "read_meta", "saturation", "summarise"]
