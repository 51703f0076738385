"""Accuracy: the share of right labels, from the column ``correct``, which every run stores."""

from __future__ import annotations

from icl_bench.metrics.interface import Measure, Metric


class Accuracy(Metric):
    """Whether an answer is the right label (Bertsch et al. 2025, section 2)."""

    answers = "labels"
    is_right = True
    measures = (Measure("accuracy", "correct", "accuracy"),)
