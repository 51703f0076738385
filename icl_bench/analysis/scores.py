"""Scores: the one number of a prediction by which the points of its task are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.store import SCORES

if TYPE_CHECKING:
    import pandas as pd

ACCURACY = "accuracy"
COLUMNS = {ACCURACY: "correct"} | {name: name for name in SCORES}
"""Metric -> the column of predictions that it is the mean of, the preferred first."""
TITLES = {ACCURACY: "accuracy", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L",
          "bertscore": "BERTScore"}  # fmt: skip
"""Metric -> what it is called."""


def scored(frame: pd.DataFrame, value: str | None = None) -> pd.DataFrame:
    """Return predictions with ``score``, a share of 1, and ``metric``, of which it is the score.

    A task has one metric: accuracy where some answer is right or wrong; otherwise, for free text,
    the score that most of its predictions have, the first of ``icl_bench.store.SCORES`` among
    equals. A prediction without it has no score. Predictions that have both columns are returned
    as they are, so that parts of a folder keep the metrics of the whole. With ``value``, the score
    is that column.
    """
    if value is not None:
        names = {column: metric for metric, column in COLUMNS.items()}
        return frame.assign(score=frame[value], metric=names.get(value, value))
    if {"score", "metric"} <= set(frame.columns):
        return frame
    there = {name: frame[column].notna() for name, column in COLUMNS.items() if column in frame}
    counts = frame[["task"]].assign(**there).groupby("task", observed=True).sum()
    chosen = {name: _metric(row) for name, row in counts.to_dict("index").items()}
    metric = frame["task"].map(chosen).astype("category")
    score = np.full(len(frame), np.nan)
    for name in set(chosen.values()):
        rows = (metric == name).to_numpy()
        score[rows] = frame.loc[rows, COLUMNS[name]].to_numpy(dtype=float)
    return frame.assign(score=score, metric=metric)


def _metric(counts: Mapping[Any, int]) -> str:
    """The metric of a task, from how many of its predictions have each."""
    return ACCURACY if counts.get(ACCURACY) else str(max(counts, key=counts.__getitem__))


def metrics(frame: pd.DataFrame) -> dict[str, str]:
    """Task -> metric, of predictions with both columns of :func:`scored`."""
    first = frame.drop_duplicates("task")
    return dict(zip(first["task"].astype(object), first["metric"].astype(object), strict=True))


def measure(table: pd.DataFrame) -> str:
    """What the scores of a table are called, or "score" where it has several ``metric``."""
    names = set(table["metric"].astype(object))
    return title(names.pop()) if len(names) == 1 else "score"


def title(metric: str) -> str:
    """What a metric is called; that of a column that is none of ours is the column's name."""
    return TITLES.get(metric, metric)
