"""F1 of the words of free answers (Rajpurkar et al. 2016)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from icl_bench.metrics.exact_match import normalised
from icl_bench.metrics.interface import Measure, Metric

if TYPE_CHECKING:
    import numpy as np


class F1(Metric):
    """F1 of the words of an answer and of the right one, normalised as for exact match."""

    answers = "text"
    measures = (Measure("f1", "f1", "F1"),)
    compares_empty = True

    def score(self, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        import numpy as np

        pairs = zip(gold, predictions, strict=True)
        return {"f1": np.array([word_f1(right, text) for right, text in pairs], dtype=float)}


def word_f1(gold: str, prediction: str) -> float:
    """Harmonic mean of precision and recall of words, counted with repetitions.

    If a text has no words left: 1 if both have none, else 0 (Rajpurkar et al. 2018, SQuAD 2.0).
    """
    right, words = normalised(gold).split(), normalised(prediction).split()
    if not right or not words:
        return float(right == words)
    common = (Counter(right) & Counter(words)).total()
    return 2 * common / (len(right) + len(words))
