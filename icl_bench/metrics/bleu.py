"""BLEU of free text (Papineni et al. 2002), as sacrebleu computes it (Post 2018)."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar

from icl_bench.metrics.interface import Measure, Metric
from icl_bench.metrics.word_rule import WordRule
from icl_bench.unicode_words import UNSPACED, spaced

if TYPE_CHECKING:
    import numpy as np


class ReferenceMetric(Metric):
    """Base of sacrebleu's metrics: a score of each answer, and one of a cell's answers as a corpus.

    Several right answers become references; sacrebleu combines them. Composed and decomposed letters are equal
    (NFC).
    """

    answers = "text"

    def scorer(self, golds: Sequence[Sequence[str]], *, corpus: bool) -> Any:
        """The object of sacrebleu that scores a corpus, or single answers, with these right answers."""
        raise NotImplementedError

    def score(self, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        return self.score_golds([(text,) for text in gold], predictions)

    def score_golds(self, golds: Sequence[Sequence[str]], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        import numpy as np

        (measure,), scorer = self.measures, self.scorer(golds, corpus=False)
        pairs = zip(map(_composed, predictions), golds, strict=True)
        scores = [scorer.sentence_score(text, [*map(_composed, texts)]).score / 100 for text, texts in pairs]
        return {measure.column: np.array(scores)}

    def score_many(self, cell: np.ndarray, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        return self.score_many_golds(cell, [(text,) for text in gold], predictions)

    def score_many_golds(
        self, cell: np.ndarray, golds: Sequence[Sequence[str]], predictions: Sequence[str]
    ) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        import numpy as np

        (name,), scores = self.of_many, []
        for number in range(int(cell.max()) + 1):
            rows = np.flatnonzero(cell == number).tolist()
            scorer = self.scorer([golds[row] for row in rows], corpus=True)
            # sacrebleu expects all first references, then all second ones, and so on; None for a missing one
            references = list(map(list, zip_longest(*(map(_composed, golds[row]) for row in rows))))
            scores.append(scorer.corpus_score([_composed(predictions[row]) for row in rows], references).score / 100)
        return {name: np.array(scores)}


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


class Bleu(WordRule, ReferenceMetric):
    """BLEU of each answer, and of a cell's answers as one corpus.

    sacrebleu's default words (``13a``) are separated by blanks. In answers of scripts without spaces, each
    character is a word: in Chinese, BLEU is sacrebleu's with ``tokenize="zh"``.
    """

    measures = (Measure("bleu", "bleu", "BLEU"),)
    of_many: ClassVar[Mapping[str, str]] = {"corpus_bleu": "corpus BLEU"}
    unicode_if = UNSPACED

    def scorer(self, golds: Sequence[Sequence[str]], *, corpus: bool) -> Any:
        """See ``ReferenceMetric``."""
        unicode = self.takes_unicode([text for texts in golds for text in texts])
        return _bleu(effective_order=not corpus, unicode=unicode)


@lru_cache
def _bleu(*, effective_order: bool, unicode: bool) -> Any:
    """``effective_order`` skips n-gram orders longer than the answer, as is usual for single sentences."""
    from sacrebleu.metrics.bleu import BLEU

    if not unicode:
        return BLEU(effective_order=effective_order)
    scorer = BLEU(effective_order=effective_order, tokenize="zh")
    chinese = scorer.tokenizer
    scorer.tokenizer = lambda line: chinese(spaced(line))
    return scorer
