"""F1 of the words of free answers (Rajpurkar et al. 2016)."""

from __future__ import annotations

from collections import Counter

from icl_bench.metrics.exact_match import ComparedWords
from icl_bench.metrics.interface import Measure


class F1(ComparedWords):
    """F1 of the words of an answer and of the right one, normalised as for exact match."""

    measures = (Measure("f1", "f1", "F1"),)

    def score_one(self, gold: str, prediction: str) -> float:
        """Harmonic mean of precision and recall of words, counted with repetitions.

        If a text has no words left: 1 if both have none, else 0 (Rajpurkar et al. 2018, SQuAD 2.0).
        """
        right, words = (text.split() for text in self.compared(gold, prediction))
        if not right or not words:
            return float(right == words)
        common = (Counter(right) & Counter(words)).total()
        return 2 * common / (len(right) + len(words))
