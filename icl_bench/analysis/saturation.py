"""Saturation: how sure its point is, and which share of the context window it takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.curves import SATURATED, saturation
from icl_bench.analysis.statistics.bootstrap import means, resample
from icl_bench.analysis.statistics.grid import Grid, grids, partition
from icl_bench.results.cells import SETTING

if TYPE_CHECKING:
    import pandas as pd

CHANCES = [*SETTING, "k", "accuracy", "chance", "saturated", "rows", "left_out"]


SHARES = ["k", "best_k", "max_k", "within_window", "share_of_tested", "prompt_tokens", "window",
          "share_of_window"]  # fmt: skip


ALL_LABELS = "all"
"""What the column ``label_space`` says where no label is left out."""


def saturation_chances(
    frame: pd.DataFrame, rng: np.random.Generator, resamples: int = 1000
) -> pd.DataFrame:
    """How often each k is the saturation point when draws and test examples are resampled.

    The point itself is :func:`icl_bench.analysis.curves.saturation`'s (Bertsch et al. 2025,
    appendix A). All ks of a curve share the test examples that they have in common, and are
    resampled together.

    Columns: the setting, k, accuracy, chance (the share of resamples in which this k is the
    point; 1 over a curve), saturated (whether it is the point of the sample itself), rows (test
    examples) and left_out (predictions on others, or in incomplete draws).
    """
    import pandas as pd

    frame = frame.loc[frame["correct"].notna(), [*SETTING, "k", "draw", "test_id", "correct"]]
    correct = frame["correct"].to_numpy(dtype=float)
    keys, found = grids(frame, [*SETTING, "k"])
    tables = []
    for at in partition(keys, SETTING)[1]:
        parts = _common([found[place] for place in at])
        accuracy, chance = _chances(parts, correct, rng, resamples)
        used = np.array([part.rows.size for part in parts])
        there = np.array([found[place].predictions for place in at])
        tables.append(keys.iloc[at].assign(
            accuracy=accuracy, chance=chance, rows=len(parts[0].tests), left_out=there - used
        ))  # fmt: skip
    if not tables:
        return pd.DataFrame(columns=CHANCES)
    table = pd.concat(tables, ignore_index=True)
    point = saturation(table)[[*SETTING, "k"]].assign(saturated=True)
    table = table.merge(point, on=[*SETTING, "k"], how="left")
    return table.assign(saturated=table["saturated"].notna())[CHANCES]


def _common(points: list[Grid]) -> list[Grid]:
    """The complete parts, on the test examples that all of them have."""
    points = [point.whole() for point in points]
    tests = reduce(np.intersect1d, [point.tests for point in points])
    return [
        point.take(np.arange(len(point.draws)), np.flatnonzero(np.isin(point.tests, tests)))
        for point in points
    ]


def _chances(
    points: list[Grid], correct: np.ndarray, rng: np.random.Generator, resamples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies, and chances of being the saturation point, ``(k,)``; NaN without examples."""
    if not len(points[0].tests):
        nothing = np.full(len(points), np.nan)
        return nothing, nothing
    draws = reduce(np.union1d, [point.draws for point in points])
    counts = resample(rng, resamples, len(draws), len(points[0].tests))
    accuracy = np.array([correct[point.rows].mean() for point in points])
    again = np.empty((len(points), resamples))
    for number, point in enumerate(points):
        own = counts
        if len(point.draws) < len(draws):  # points of fewer draws are resampled among these
            of_draws = resample(rng, resamples, len(point.draws), 1).draws
            own = counts._replace(draws=of_draws)
        again[number] = means(correct[point.rows], own)
    first = (again >= SATURATED * again.max(axis=0)).argmax(axis=0)
    return accuracy, np.bincount(first, minlength=len(points)) / resamples


def context_shares(frame: pd.DataFrame, windows: Mapping[str, int]) -> pd.DataFrame:
    """Which share of the context a curve needs until it is saturated (Bertsch et al., table 4).

    ``windows`` gives the tokens of each model's context window. Where the frame has a column
    ``label_space``, which part of the label space a row belongs to ("all" or missing for the
    whole), each part has a curve of its own.

    Columns: the setting, label_space if given; k, best_k, max_k and within_window of
    :func:`icl_bench.analysis.curves.saturation`; share_of_tested, k over max_k: the study's
    figure, whose largest k filled the window; prompt_tokens (mean at that k), window, and
    share_of_window, the quotient of these two. What is not known is NaN.
    """
    import pandas as pd

    if "label_space" in frame:
        labels = frame["label_space"].astype(object).fillna(ALL_LABELS)
        parts = {
            name: context_shares(part.drop(columns="label_space"), windows)
            for name, part in frame.groupby(labels)
        }
        columns = [*SETTING, "label_space", *SHARES]
        if not parts:
            return pd.DataFrame(columns=columns)
        table: pd.DataFrame = pd.concat(parts, names=["label_space"]).reset_index("label_space")
        return table[columns]
    curve = _curve(frame[frame["correct"].notna()])
    tokens = curve.drop(columns="accuracy")
    table = saturation(curve).merge(tokens, on=[*SETTING, "k"], how="left")
    window = table["model"].astype(object).map(dict(windows)).astype(float)
    return table.assign(
        share_of_tested=table["k"] / table["max_k"],
        window=window,
        share_of_window=table["prompt_tokens"] / window,
    )[[*SETTING, *SHARES]]


def _curve(frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracy and mean prompt tokens of each point, over its complete part."""
    keys, found = grids(frame, [*SETTING, "k"])
    columns = {"accuracy": "correct", "prompt_tokens": "prompt_tokens"}
    for name, column in columns.items():
        values = (
            frame[column].to_numpy(dtype=float) if column in frame else np.full(len(frame), np.nan)
        )
        keys[name] = np.array([values[point.whole().rows].mean() for point in found], dtype=float)
    return keys


def label_spaces(
    shares: pd.DataFrame, halves: Mapping[str, str], measure: str = "share_of_tested"
) -> pd.DataFrame:
    """Saturation with all labels, and with half of them, mean of subsets (Bertsch et al., table 4).

    ``shares`` is :func:`context_shares`' table and ``measure`` one of its columns. A curve belongs
    to a half where ``halves`` names its task (task of the half -> task with all labels), or where
    its ``label_space`` is another than "all".

    Columns: task, model, select, order, attention, full, half, and subsets, the number of halves.
    Tasks without a half, or whose half has no full counterpart, are left out.

    Raises ValueError if a curve is there in several variants, which must not be averaged.
    """
    task = shares["task"].astype(object)
    labels = shares.get("label_space", ALL_LABELS)
    half = task.isin(halves) | (labels != ALL_LABELS)
    curve = [name for name in SETTING if name != "variant"]
    twice = shares[shares.assign(label_space=labels).duplicated([*curve, "label_space"])]
    if len(twice):
        raise ValueError(f"several variants of {', '.join(twice[curve].iloc[0])}")
    table = shares[curve].astype(object).assign(task=task.replace(dict(halves)), of=shares[measure])
    full = table[~half].rename(columns={"of": "full"})
    means = table[half].groupby(curve)["of"].agg(half="mean", subsets="size").reset_index()
    return full.merge(means, on=curve)
