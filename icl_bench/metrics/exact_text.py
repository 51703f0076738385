"""Free text that equals the right answer character by character."""

from __future__ import annotations

from icl_bench.metrics.interface import Measure, TextMetric


class ExactText(TextMetric):
    """Whether an answer equals the right one without normalisation.

    A task file lists what to ignore (case, punctuation, patterns) in ``answer.ignore``. With that,
    this metric is the ``exact_match`` of lm-evaluation-harness.
    """

    is_right = True
    measures = (Measure("exact_text", "exact_text", "exact text"),)

    def score_one(self, gold: str, prediction: str) -> float:
        """See ``TextMetric``."""
        return gold == prediction
