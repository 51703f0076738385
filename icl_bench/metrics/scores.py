"""The score that the points of a task are compared by, and the names of all scores."""

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
"""Scores are shares of 1, plus rounding errors. Some may be below 0, but not below -1."""


@cache
def usable_metrics() -> Mapping[str, type[Metric]]:
    """All metrics by name. Skips a plugin whose scores or numbers have the name of another metric's."""
    metrics: dict[str, type[Metric]] = {}
    taken_names: set[str] = set()
    for name, metric in METRICS.items():
        names = {*metric.of_many, *(word for m in metric.measures for word in (m.name, m.column))}
        if name in METRICS.added() and (clashes := sorted(names & taken_names)):
            METRICS.skip(name, f"has the score of another metric, {clashes[0]}")
            continue
        taken_names |= names
        metrics[name] = metric
    return metrics


@cache
def measures() -> Mapping[str, Measure]:
    """The scores of single answers of all metrics, by name, the preferred first."""
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
    """The numbers that metrics compute from many answers: column -> title."""
    return {name: text for metric in usable_metrics().values() for name, text in metric.of_many.items()}


@cache
def corpus_numbers() -> Mapping[str, str]:
    """The numbers of free text that treat a cell's answers as one corpus: column -> title."""
    free = [metric for metric in usable_metrics().values() if metric.answers != "labels"]
    return {name: text for metric in free for name, text in metric.of_many.items()}


def metrics_of(names: Sequence[str]) -> list[Metric]:
    """The metrics that a task names. Raises ``KeyError`` for an unknown name."""
    return [METRICS[name]() for name in names]


def checked_scores(column: str, values: ArrayLike, rows: int) -> np.ndarray:
    """Check the scores that a metric returned for a column, and return them: ``(rows,)`` float64.

    Raises ``CellError`` unless there is one share of 1 for each answer. A percentage would be clipped to 1 in curves
    silently.
    """
    scores = np.asarray(values, dtype=float)
    if scores.shape != (rows,):
        raise CellError(f"metric {column}: {rows} answers have scores of shape {scores.shape}")
    wrong = ~(np.abs(scores) <= LARGEST_SCORE)
    if wrong.any():
        raise CellError(
            f"metric {column}: scores must be shares from 0 to 1 (no percentages, no gaps), and one is "
            f"{scores[wrong][0]:g}"
        )
    return scores


def scored(frame: pd.DataFrame, first: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return predictions with the columns ``metric`` and ``score``, a share of 1.

    A task has one metric: the one that ``first`` names for it, if some prediction has it; else accuracy, if some answer
    is right or wrong; else, for free text, the score that most of its predictions have (on ties, the first of
    :func:`measures`). A prediction without it has an empty score. Predictions that already have both columns are
    returned unchanged, so parts of a folder keep the metrics of the whole folder.
    """
    all_measures = measures()
    if {"score", "metric"} <= set(frame.columns):
        return frame
    scored_rows = {m.name: frame[m.column].notna() for m in all_measures.values() if m.column in frame}
    counts = frame[["task"]].assign(**scored_rows).groupby("task", observed=True).sum()
    metric_of_task = {
        name: _metric(row, (first or {}).get(str(name), ACCURACY)) for name, row in counts.to_dict("index").items()
    }
    metric = frame["task"].map(metric_of_task).astype("category")
    score = np.full(len(frame), np.nan)
    for name in set(metric_of_task.values()):
        rows = (metric == name).to_numpy()
        score[rows] = frame.loc[rows, all_measures[name].column].to_numpy(dtype=float)
    return frame.assign(score=score, metric=metric)


def _metric(counts: Mapping[Any, int], first: str) -> str:
    """The metric of a task, from the number of its predictions that have each metric."""
    for name in (first, ACCURACY):
        if counts.get(name):
            return name
    most = str(max(counts, key=counts.__getitem__))
    return most if counts[most] else ACCURACY


def first_measures(metrics_of_tasks: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Task -> the score by which its points are compared: the first measure of its first metric.

    Omits tasks whose first metric has no measure, is unknown or cannot be used.
    """
    first = {}
    for task, names in metrics_of_tasks.items():
        metrics = [metric for name in names[:1] if (metric := METRICS.get(name)) is not None]
        if names_of_measures := [m.name for metric in metrics for m in metric.measures]:
            first[task] = names_of_measures[0]
    return first


def all_golds(frame: pd.DataFrame) -> list[Sequence[str]]:
    """The right answers of each prediction (:func:`golds_of`)."""
    if "golds" not in frame:
        return [(str(gold),) for gold in frame["gold"]]
    return [golds_of(several, gold) for several, gold in zip(frame["golds"], frame["gold"], strict=True)]


def has_several_right(frame: pd.DataFrame) -> bool:
    """Whether some prediction has its own list of right answers (``golds``)."""
    return "golds" in frame and bool(frame["golds"].notna().any())


def right_labels(frame: pd.DataFrame) -> pd.Series:
    """The right label of each prediction of a label; of several right ones (``golds``), the predicted one if it is
    among them.
    """
    if not has_several_right(frame):
        return frame["gold"]
    right = frame["correct"].fillna(value=False).astype(bool)
    return frame["gold"].astype(object).mask(right, frame["prediction"].astype(object))


def golds_of(several: Any, gold: Any) -> Sequence[str]:
    """The right answers of a prediction: its column ``golds``, or ``gold`` if that is missing.

    An import may hold ``golds`` as JSON. Anything else that is not a list of texts is ignored.
    """
    if isinstance(several, str):
        try:
            several = json.loads(several)
        except (ValueError, RecursionError):
            several = None
    values = several if isinstance(several, list | tuple | np.ndarray) else ()
    texts = [text for text in values if isinstance(text, str)]
    return texts if texts and len(texts) == len(values) else (str(gold),)


def metrics(frame: pd.DataFrame) -> dict[str, str]:
    """Task -> metric, of predictions with both columns of :func:`scored`."""
    first = frame.loc[~frame["task"].duplicated(), ["task", "metric"]]
    return dict(zip(first["task"].astype(object), first["metric"].astype(object), strict=True))


def measure(table: pd.DataFrame) -> str:
    """The title of a table's scores, or "score" if it has several metrics."""
    names = set(table["metric"].astype(object))
    return title(names.pop()) if len(names) == 1 else "score"


def title(metric: str) -> str:
    """The title of a metric. For an unknown column, its name."""
    measure = measures().get(metric)
    return measure.title if measure else metric
