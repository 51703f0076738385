"""Free text that equals the right answer letter by letter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from icl_bench.metrics.interface import Measure, Metric

if TYPE_CHECKING:
    import numpy as np


class ExactText(Metric):
    """Whether an answer is the right one as it stands.

    What makes no difference (case, punctuation, patterns) is for the task to say, in
    ``answer.ignore``: with that, it is the ``exact_match`` of lm-evaluation-harness.
    """

    answers = "text"
    measures = (Measure("exact_text", "exact_text", "exact text"),)

    def score(self, gold: Sequence[str], said: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        import numpy as np

        pairs = zip(gold, said, strict=True)
        return {"exact_text": np.array([right == text for right, text in pairs], dtype=float)}
