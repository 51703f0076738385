"""chrF of free text (Popović 2015), as sacrebleu computes it (Post 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from icl_bench.metrics.bleu import corpus_scores, sentence_scores
from icl_bench.metrics.interface import Measure, Metric

if TYPE_CHECKING:
    import numpy as np


class Chrf(Metric):
    """chrF2 of each answer, and of all of a cell as one corpus; several references are
    sacrebleu's.
    """

    answers = "text"
    measures = (Measure("chrf", "chrf", "chrF"),)
    of_many: ClassVar[Mapping[str, str]] = {"corpus_chrf": "corpus chrF"}

    def score(self, gold: Sequence[str], said: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        return self.score_golds([(text,) for text in gold], said)

    def score_golds(
        self, golds: Sequence[Sequence[str]], said: Sequence[str]
    ) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        return {"chrf": sentence_scores(_chrf(), golds, said)}

    def score_many(
        self, cell: np.ndarray, gold: Sequence[str], said: Sequence[str]
    ) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        return self.score_many_golds(cell, [(text,) for text in gold], said)

    def score_many_golds(
        self, cell: np.ndarray, golds: Sequence[Sequence[str]], said: Sequence[str]
    ) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        return {"corpus_chrf": corpus_scores(_chrf(), cell, golds, said)}


@lru_cache
def _chrf() -> Any:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF()
