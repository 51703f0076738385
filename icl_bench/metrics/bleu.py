"""BLEU of free text (Papineni et al. 2002), as sacrebleu computes it (Post 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar

from icl_bench.metrics.interface import Measure, Metric

if TYPE_CHECKING:
    import numpy as np


class ReferenceMetric(Metric):
    """Base of sacrebleu's metrics: a score of each answer, and one of a cell's answers as a corpus.

    Several right answers become references; sacrebleu combines them.
    """

    answers = "text"

    def scorer(self, *, corpus: bool) -> Any:
        """The object of sacrebleu that scores a corpus, or single answers."""
        raise NotImplementedError

    def score(self, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        return self.score_golds([(text,) for text in gold], predictions)

    def score_golds(self, golds: Sequence[Sequence[str]], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        import numpy as np

        (measure,), scorer = self.measures, self.scorer(corpus=False)
        pairs = zip(predictions, golds, strict=True)
        scores = [scorer.sentence_score(text, list(references)).score / 100 for text, references in pairs]
        return {measure.column: np.array(scores)}

    def score_many(self, cell: np.ndarray, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        return self.score_many_golds(cell, [(text,) for text in gold], predictions)

    def score_many_golds(
        self, cell: np.ndarray, golds: Sequence[Sequence[str]], predictions: Sequence[str]
    ) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        import numpy as np

        (name,), scorer, scores = self.of_many, self.scorer(corpus=True), []
        for number in range(int(cell.max()) + 1):
            rows = np.flatnonzero(cell == number).tolist()
            # sacrebleu takes first references, then second ones, and so on; None stands for a missing one
            references = list(map(list, zip_longest(*(golds[row] for row in rows))))
            scores.append(scorer.corpus_score([predictions[row] for row in rows], references).score / 100)
        return {name: np.array(scores)}


class Bleu(ReferenceMetric):
    """BLEU of each answer, and of a cell's answers as one corpus."""

    measures = (Measure("bleu", "bleu", "BLEU"),)
    of_many: ClassVar[Mapping[str, str]] = {"corpus_bleu": "corpus BLEU"}

    def scorer(self, *, corpus: bool) -> Any:
        """See ``ReferenceMetric``."""
        return _bleu(effective_order=not corpus)


@lru_cache
def _bleu(*, effective_order: bool) -> Any:
    """``effective_order`` skips n-gram orders longer than the answer, as is usual for single sentences."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(effective_order=effective_order)
