"""The numbers people look at first: curves over k, saturation, order sensitivity."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.grid import grids
from icl_bench.analysis.intervals import mean_interval
from icl_bench.errors import UserError
from icl_bench.store import (
    IMPORTED,
    SCORES,
    failed_cells,
    no_results,
    read_results,
    read_variants,
    short_hash,
)

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
    """Variant -> what tells it from the other variants of its task and model, where there are."""
    failed: Sequence[Mapping[str, Any]] = ()
    """Cells that could not be computed: spec and reason of each."""

    def as_json(self) -> dict[str, Any]:
        """Plain lists of records; what is undefined is null."""
        return {
            "curves": _records(self.curves),
            "saturation": _records(self.saturation),
            "order_sensitivity": _records(self.order_sensitivity),
            "settings": dict(self.settings),
            "failed": [dict(failure) for failure in self.failed],
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
    with the interval of the first of them that is there. Shares of 1. Where a draw lacks test
    examples, a point is its largest part that is complete, and ``left_out`` the predictions
    outside of it.
    """
    import pandas as pd

    from icl_bench.metrics import label_scores

    points = [*SETTING, "k"]
    keys, found = grids(predictions, points)
    parts = [grid.whole() for grid in found]
    scores = {
        name: predictions[name].to_numpy(dtype=float)
        for name in ("correct", "valid", *SCORES)
        if name in predictions
    }
    rows = [
        {**dict(zip(points, key, strict=True)), **_point(part.rows, scores)}
        for key, part in zip(keys.itertuples(index=False), parts, strict=True)
    ]
    table = pd.DataFrame(rows, columns=[*points, *_POINT])
    table["left_out"] = [g.predictions - p.rows.size for g, p in zip(found, parts, strict=True)]
    if table["left_out"].any():
        predictions = predictions.iloc[np.sort(np.hstack([part.rows.ravel() for part in parts]))]
    labelled = predictions[predictions["correct"].notna()]
    if len(labelled):
        of_draws = label_scores(labelled, [*points, "draw"])
        means = of_draws.groupby(points, observed=True)[["macro_f1"]].mean()
        table = table.drop(columns="macro_f1").merge(means, on=points, how="left")
    return table[[*points, *_POINT]]


_POINT = ["draws", "test_rows", "accuracy", "ci_low", "ci_high", "macro_f1", "invalid", *SCORES,
          "left_out"]  # fmt: skip


def _point(rows: np.ndarray, scores: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """One point's numbers but macro-F1, from the positions of its predictions ``(draws, test)``."""
    found: dict[str, Any] = dict.fromkeys(_POINT)
    found["draws"], found["test_rows"] = rows.shape
    if not np.isnan(scores["correct"][rows]).any():
        found["accuracy"], found["ci_low"], found["ci_high"] = mean_interval(
            scores["correct"][rows]
        )
        found["invalid"] = float(1 - scores["valid"][rows].mean())
        return found
    for name in SCORES:
        if name in scores and not np.isnan(scores[name][rows]).any():
            found[name], low, high = mean_interval(scores[name][rows].clip(0, 1))
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
                "best_k": int(points["k"].iloc[int(points["accuracy"].argmax())]),
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
    return both.groupby(group)[["changed"]].mean().reset_index()


def summarise(predictions: pd.DataFrame) -> Summary:
    """All tables of a tidy frame of predictions (``icl_bench.read_results``)."""
    table = curves(predictions)
    return Summary(table, saturation(table), order_sensitivity(predictions), {})


def summarise_folder(results: Path, only: Mapping[str, str] | None = None) -> Summary:
    """Summarise a results folder, or what of it has these values (task, model).

    Raises ``UserError`` where there is neither a finished nor a failed cell left.
    """
    wanted = dict(only or {})
    failed = [f for f in failed_cells(results) if wanted.items() <= f["spec"].items()]
    try:
        frame = _those(read_results(results), wanted, results)
    except UserError:
        if not failed:
            raise
        frame = no_results()
    tables = summarise(frame)
    return replace(tables, settings=_settings(results, tables.curves), failed=failed)


def _those(frame: pd.DataFrame, wanted: Mapping[str, str], results: Path) -> pd.DataFrame:
    for name, value in wanted.items():
        kept = frame[frame[name] == value]
        if kept.empty:
            there = ", ".join(sorted(frame[name].astype(str).unique()))
            raise UserError(f"results folder {results}: nothing of {name} {value!r} (has: {there})")
        frame = kept
    for name in frame.select_dtypes("category").columns:
        frame = frame.assign(**{name: frame[name].cat.remove_unused_categories()})
    return frame


PLAINER = {"test": "test_rows", "pool": "pool_rows"}
"""Facts that are hashes -> facts that say the same to a reader, where their values differ too."""


def _settings(results: Path, table: pd.DataFrame) -> dict[str, str]:
    """Name the variants of a task and model by the facts in which they differ, or their origin."""
    facts = read_variants(results)
    named: dict[str, str] = {}
    for _, group in table.groupby(["task", "model"], observed=True):
        named |= _named({v: facts.get(v, {}) for v in group["variant"].unique()})
    return named


def _named(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Name the variants of one task and model; none where all are alike and run here."""
    run_here = {v: f for v, f in facts.items() if IMPORTED not in f}
    named = {
        v: ", ".join(f"{key}={_brief(value)}" for key, value in differing.items())
        for v, differing in _differing(run_here).items()
    }
    if len(run_here) == len(facts):
        return named
    named = dict.fromkeys(run_here, "run here") | named
    named |= {v: f"imported from {f[IMPORTED]}" for v, f in facts.items() if IMPORTED in f}
    several = {text for text, count in Counter(named.values()).items() if count > 1}
    return {v: f"{text}, variant {v}" if text in several else text for v, text in named.items()}


def _differing(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each variant the facts that are not the same in all; nothing where all are the same."""

    def kinds(key: str) -> int:
        return len({json.dumps(f.get(key), sort_keys=True) for f in facts.values()})

    # one selector's encoder is no difference between settings
    keys = sorted({key for f in facts.values() for key in f if key != "encoder"})
    keys = [key for key in keys if kinds(key) > 1 and kinds(PLAINER.get(key, "")) < kinds(key)]
    return {v: {key: f.get(key) for key in keys} for v, f in facts.items()} if keys else {}


def _brief(value: Any) -> str:
    text = short_hash(value) if isinstance(value, dict | list) else str(value)
    return text if len(text) < 16 else f"…{text[-8:]}"
