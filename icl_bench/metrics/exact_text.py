"""Free text that equals the right answer character by character."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from icl_bench.metrics.interface import Measure, Metric

if TYPE_CHECKING:
    import numpy as np


class ExactText(Metric):
    """Whether an answer equals the right one without normalisation.

    A task file lists what to ignore (case, punctuation, patterns) in ``answer.ignore``. With that,
    this metric is the ``exact_match`` of lm-evaluation-harness.
    """

    answers = "text"
    measures = (Measure("exact_text", "exact_text", "exact text"),)

    def score(self, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        import numpy as np

        pairs = zip(gold, predictions, strict=True)
        return {"exact_text": np.array([right == text for right, text in pairs], dtype=float)}
