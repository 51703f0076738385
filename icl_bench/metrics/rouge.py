"""ROUGE of free text (Bertsch et al. 2025, section 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from icl_bench.metrics.interface import Measure, Metric

if TYPE_CHECKING:
    import numpy as np

ROUGE = ("rouge1", "rouge2", "rougeL")


class Rouge(Metric):
    """ROUGE-1, ROUGE-2 and ROUGE-L F1, with stemming."""

    answers = "text"
    measures = (
        Measure("rouge1", "rouge1", "ROUGE-1"),
        Measure("rouge2", "rouge2", "ROUGE-2"),
        Measure("rougeL", "rougeL", "ROUGE-L"),
    )

    def score(self, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        return rouge(gold, predictions)


def rouge(gold: Sequence[str], predictions: Sequence[str]) -> dict[str, np.ndarray]:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L F1 of each example, ``(test,)``, with stemming.

    The package rouge-score of Bertsch et al. 2025, section 2. An empty text scores 0.
    """
    import numpy as np
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE), use_stemmer=True)
    scores = [scorer.score(*pair) for pair in zip(gold, predictions, strict=True)]
    return {kind: np.array([score[kind].fmeasure for score in scores], dtype=float) for kind in ROUGE}
