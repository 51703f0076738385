"""ROUGE of free text, by the package rouge-score (Bertsch et al. 2025, section 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from icl_bench.metrics.interface import Measure, Metric

if TYPE_CHECKING:
    import numpy as np


class Rouge(Metric):
    """ROUGE-1, ROUGE-2 and ROUGE-L F1, with stemming."""

    answers = "text"
    measures = (
        Measure("rouge1", "rouge1", "ROUGE-1"),
        Measure("rouge2", "rouge2", "ROUGE-2"),
        Measure("rougeL", "rougeL", "ROUGE-L"),
    )

    def score(self, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``. An empty text scores 0."""
        import numpy as np
        from rouge_score.rouge_scorer import RougeScorer

        names = [measure.name for measure in self.measures]
        scorer = RougeScorer(names, use_stemmer=True)
        scores = [scorer.score(*pair) for pair in zip(gold, predictions, strict=True)]
        return {name: np.array([score[name].fmeasure for score in scores], dtype=float) for name in names}
