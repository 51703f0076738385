"""The one score by which the points of a task are compared, and the names of all scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.errors import CellError
from icl_bench.metrics.interface import Measure, Metric
from icl_bench.registry import METRICS

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

ACCURACY = "accuracy"
LARGEST_SCORE = 1.001
"""Scores are shares of 1, but for what rounding adds; some may be below 0, but not below -1."""


@cache
def usable_metrics() -> Mapping[str, type[Metric]]:
    """All metrics by name. A plugin whose scores or numbers have the name of another's is skipped."""
    found: dict[str, type[Metric]] = {}
    taken: set[str] = set()
    for name, metric in METRICS.items():
        names = {*metric.of_many, *(word for m in metric.measures for word in (m.name, m.column))}
        if name in METRICS.added() and (same := sorted(names & taken)):
            METRICS.skip(name, f"has the score of another metric, {same[0]}")
            continue
        taken |= names
        found[name] = metric
    return found


@cache
def measures() -> Mapping[str, Measure]:
    """The scores of single answers that all metrics have, by name, the preferred first."""
    return {m.name: m for metric in usable_metrics().values() for m in metric.measures}


@cache
def columns_by_score() -> Mapping[str, str]:
    """Name of a score -> the column of predictions that holds it, the preferred first."""
    return {m.name: m.column for m in measures().values()}


@cache
def score_columns() -> tuple[str, ...]:
    """The columns of predictions that hold scores other than ``correct``."""
    return tuple(column for name, column in columns_by_score().items() if name != ACCURACY)


@cache
def numbers_of_many() -> Mapping[str, str]:
    """The numbers that metrics make of many answers at once: column -> title."""
    return {name: text for metric in usable_metrics().values() for name, text in metric.of_many.items()}


@cache
def corpus_numbers() -> Mapping[str, str]:
    """Those of free text, of all answers of a cell as one corpus: column -> title."""
    free = [metric for metric in usable_metrics().values() if metric.answers != "labels"]
    return {name: text for metric in free for name, text in metric.of_many.items()}


def metrics_of(names: Sequence[str]) -> list[Metric]:
    """The metrics that a task names. Raises ``KeyError`` for one that is not known."""
    return [METRICS[name]() for name in names]


def checked_scores(column: str, values: ArrayLike, rows: int) -> np.ndarray:
    """What a metric has returned for a column, ``(rows,)`` float64.

    Raises ``CellError`` where that is not one share of 1 for each answer: curves would cut a
    percentage to 1, and nobody would see it.
    """
    found = np.asarray(values, dtype=float)
    if found.shape != (rows,):
        raise CellError(f"metric {column}: {rows} answers have scores of shape {found.shape}")
    wrong = ~(np.abs(found) <= LARGEST_SCORE)
    if wrong.any():
        raise CellError(
            f"metric {column}: scores are shares of 1 (no percentages, no gaps), and one is {found[wrong][0]:g}"
        )
    return found


def scored(frame: pd.DataFrame, first: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return predictions with ``score``, a share of 1, and ``metric``, of which it is the score.

    A task has one metric: the one that ``first`` names for it, where some prediction has it;
    else accuracy, where some answer is right or wrong; else, for free text, the score that most of
    its predictions have, the first of :func:`measures` among equals. A prediction without it has no
    score. Predictions that have both columns are returned as they are, so that parts of a folder
    keep the metrics of the whole.
    """
    known = measures()
    if {"score", "metric"} <= set(frame.columns):
        return frame
    there = {m.name: frame[m.column].notna() for m in known.values() if m.column in frame}
    counts = frame[["task"]].assign(**there).groupby("task", observed=True).sum()
    chosen = {
        name: _metric(row, (first or {}).get(str(name), ACCURACY)) for name, row in counts.to_dict("index").items()
    }
    metric = frame["task"].map(chosen).astype("category")
    score = np.full(len(frame), np.nan)
    for name in set(chosen.values()):
        rows = (metric == name).to_numpy()
        score[rows] = frame.loc[rows, known[name].column].to_numpy(dtype=float)
    return frame.assign(score=score, metric=metric)


def _metric(counts: Mapping[Any, int], first: str) -> str:
    """The metric of a task, from how many of its predictions have each."""
    for name in (first, ACCURACY):
        if counts.get(name):
            return name
    most = str(max(counts, key=counts.__getitem__))
    return most if counts[most] else ACCURACY


def first_measures(metrics_of_tasks: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Task -> the score that its points are compared by, from the metrics that each task names.

    That is the first score of single answers. Tasks that have none are left out, and so are those
    whose first metric is not known here or cannot be used.
    """
    found = {}
    for task, names in metrics_of_tasks.items():
        known = [metric for name in names[:1] if (metric := METRICS.get(name)) is not None]
        if of := [m.name for metric in known for m in metric.measures]:
            found[task] = of[0]
    return found


def all_golds(frame: pd.DataFrame) -> list[Sequence[str]]:
    """The right answers of each prediction (:func:`golds_of`)."""
    if "golds" not in frame:
        return [(str(gold),) for gold in frame["gold"]]
    return [golds_of(several, gold) for several, gold in zip(frame["golds"], frame["gold"], strict=True)]


def golds_of(several: Any, gold: Any) -> Sequence[str]:
    """The right answers of a prediction, by its columns ``golds`` and ``gold``: one where the first
    is missing. An import may hold them as JSON; what it may hold else is passed over.
    """
    if isinstance(several, str):
        try:
            several = json.loads(several)
        except (ValueError, RecursionError):
            several = None
    found = several if isinstance(several, list | tuple | np.ndarray) else ()
    texts = [text for text in found if isinstance(text, str)]
    return texts if texts and len(texts) == len(found) else (str(gold),)


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
    known = measures().get(metric)
    return known.title if known else metric
