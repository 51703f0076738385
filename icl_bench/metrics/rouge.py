"""ROUGE of free text, by the package rouge-score (Bertsch et al. 2025, section 2)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from icl_bench.metrics.interface import Measure
from icl_bench.metrics.word_rule import WordRule
from icl_bench.unicode_words import words
from icl_bench.wording import counted

if TYPE_CHECKING:
    import numpy as np


class Rouge(WordRule):
    """ROUGE-1, ROUGE-2 and ROUGE-L F1, with stemming.

    rouge-score reads only the letters a to z and digits. In other languages, words follow Unicode; in scripts without
    spaces, they are characters.
    """

    measures = (
        Measure("rouge1", "rouge1", "ROUGE-1"),
        Measure("rouge2", "rouge2", "ROUGE-2"),
        Measure("rougeL", "rougeL", "ROUGE-L"),
    )
    _wordless = 0

    def fit(self, answers: Sequence[str]) -> None:
        """See ``Metric``."""
        super().fit(answers)
        has_word = words if self._unicode else re.compile("[A-Za-z0-9]").search
        self._wordless = sum(not has_word(text) for text in dict.fromkeys(answers))

    def notes(self) -> Sequence[str]:
        """See ``Metric``."""
        count = self._wordless
        return [f"rouge: {counted(count, 'right answer')} without a word: every answer scores 0"] if count else []

    def score(self, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``. An empty text scores 0."""
        import numpy as np
        from rouge_score.rouge_scorer import RougeScorer

        names = [measure.name for measure in self.measures]
        scorer = RougeScorer(names, tokenizer=_tokenizer(unicode=self.takes_unicode(gold)))
        scores = [scorer.score(*pair) for pair in zip(gold, predictions, strict=True)]
        return {name: np.array([score[name].fmeasure for score in scores], dtype=float) for name in names}


def _tokenizer(*, unicode: bool) -> Any:
    """rouge-score's tokenizer with its stemmer, or a tokenizer of Unicode words that stems ASCII words."""
    from rouge_score.tokenizers import DefaultTokenizer

    reference = DefaultTokenizer(use_stemmer=True)
    return _UnicodeTokenizer(reference) if unicode else reference


class _UnicodeTokenizer:
    """A tokenizer of Unicode words. Equals the reference on ASCII text."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def tokenize(self, text: str) -> list[str]:
        """The words of a text. ASCII words are stemmed."""
        return [part for word in words(text) for part in (self._reference.tokenize(word) if word.isascii() else [word])]
