"""Exact match of free answers (Rajpurkar et al. 2016)."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import regex

from icl_bench.metrics.interface import Measure, TextMetric
from icl_bench.metrics.word_rule import WordRule
from icl_bench.unicode_words import folded, segmented, without_ignorable

if TYPE_CHECKING:
    import numpy as np

PUNCTUATION = str.maketrans("", "", string.punctuation)


class ComparedWords(TextMetric, WordRule):
    """Base of metrics that compare answers as SQuAD's script does.

    It removes only ASCII punctuation. In answers of other languages, all punctuation is removed, as in MLQA's script
    (Lewis et al. 2020).
    """

    compares_empty = True

    def score(self, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        return TextMetric.score(self.fitted(gold), gold, predictions)

    def form(self, answer: str) -> str:
        """See ``Metric``."""
        return self.compared(answer, "")[0]

    def compared(self, gold: str, prediction: str) -> tuple[str, str]:
        """Both texts, normalised."""
        normalise = normalised_unicode if self.takes_unicode([gold]) else normalised
        return normalise(gold), normalise(prediction)


class ExactMatch(ComparedWords):
    """Whether an answer is the right one, ignoring case, articles, punctuation and white space."""

    is_right = True
    measures = (Measure("exact_match", "exact_match", "exact match"),)

    def score_one(self, gold: str, prediction: str) -> float:
        """See ``TextMetric``."""
        right, text = self.compared(gold, prediction)
        return right == text


def normalised(text: str) -> str:
    """A text as SQuAD's evaluation script compares it: lower case, without ASCII punctuation and the
    articles a, an, the, with one blank between words.
    """
    return _bare(text.lower().translate(PUNCTUATION))


def normalised_unicode(text: str) -> str:
    """Normalise a text of any script: equal to :func:`normalised` on ASCII.

    Removes all of Unicode's punctuation. Compatible characters are unified (NFKC). Characters of scripts without spaces
    are separated.
    """
    bare = regex.sub(r"\p{P}", "", folded(without_ignorable(text)).translate(PUNCTUATION))
    return " ".join(part for word in _bare(bare).split() for part in segmented(word))


def _bare(text: str) -> str:
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())
