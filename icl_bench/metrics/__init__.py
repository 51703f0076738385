"""Metrics: scores of answers, one file each, and how a task's points are compared by them."""

from __future__ import annotations

from icl_bench.metrics.macro_f1 import label_scores, macro_f1
from icl_bench.metrics.scores import (
    ACCURACY,
    COLUMNS,
    SCORES,
    STORED_SCORES,
    first_measures,
    measure,
    measures,
    metrics,
    metrics_of,
    numbers_of_many,
    score_columns,
    scored,
    title,
)

__all__ = [
    "ACCURACY",
    "COLUMNS",
    "SCORES",
    "STORED_SCORES",
    "first_measures",
    "label_scores",
    "macro_f1",
    "measure",
    "measures",
    "metrics",
    "metrics_of",
    "numbers_of_many",
    "score_columns",
    "scored",
    "title",
]
