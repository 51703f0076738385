"""BLEU of free text (Papineni et al. 2002), as sacrebleu computes it (Post 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from icl_bench.metrics.interface import Measure, Metric

if TYPE_CHECKING:
    import numpy as np


class OfReferences(Metric):
    """Base of sacrebleu's metrics: of each answer, and of all of a cell as one corpus.

    Several right answers are its references, by a rule of its own.
    """

    answers = "text"

    def scorer(self, *, corpus: bool) -> Any:
        """What of sacrebleu scores a corpus, or single answers."""
        raise NotImplementedError

    def score(self, gold: Sequence[str], said: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        return self.score_golds([(text,) for text in gold], said)

    def score_golds(self, golds: Sequence[Sequence[str]], said: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        (measure,) = self.measures
        return {measure.column: _sentence_scores(self.scorer(corpus=False), golds, said)}

    def score_many(self, cell: np.ndarray, gold: Sequence[str], said: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        return self.score_many_golds(cell, [(text,) for text in gold], said)

    def score_many_golds(
        self, cell: np.ndarray, golds: Sequence[Sequence[str]], said: Sequence[str]
    ) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        (name,) = self.of_many
        return {name: _corpus_scores(self.scorer(corpus=True), cell, golds, said)}


class Bleu(OfReferences):
    """BLEU of each answer, and of all of a cell as one corpus."""

    measures = (Measure("bleu", "bleu", "BLEU"),)
    of_many: ClassVar[Mapping[str, str]] = {"corpus_bleu": "corpus BLEU"}

    def scorer(self, *, corpus: bool) -> Any:
        """See ``OfReferences``."""
        return _bleu(effective_order=not corpus)


def _sentence_scores(scorer: Any, golds: Sequence[Sequence[str]], said: Sequence[str]) -> np.ndarray:
    """A share of 1 for each answer, ``(rows,)``, by one of sacrebleu's metrics."""
    import numpy as np

    pairs = zip(said, golds, strict=True)
    return np.array([scorer.sentence_score(text, list(of)).score / 100 for text, of in pairs])


def _corpus_scores(scorer: Any, cell: np.ndarray, golds: Sequence[Sequence[str]], said: Sequence[str]) -> np.ndarray:
    """A share of 1 for the answers of each cell together, ``(cells,)``.

    sacrebleu takes references by place: where a row has fewer than others, the rest is None.
    """
    import numpy as np

    scores = []
    for number in range(int(cell.max()) + 1):
        rows = np.flatnonzero(cell == number).tolist()
        most = max(len(golds[row]) for row in rows)
        places = [[_at(golds[row], place) for row in rows] for place in range(most)]
        scores.append(scorer.corpus_score([said[row] for row in rows], places).score / 100)
    return np.array(scores)


def _at(of: Sequence[str], place: int) -> str | None:
    return of[place] if place < len(of) else None


@lru_cache
def _bleu(*, effective_order: bool) -> Any:
    """``effective_order`` leaves out orders that a short answer has no words for, as is usual for
    single sentences.
    """
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(effective_order=effective_order)
