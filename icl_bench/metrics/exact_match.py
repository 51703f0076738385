"""Exact match of free answers (Rajpurkar et al. 2016)."""

from __future__ import annotations

import re
import string

from icl_bench.metrics.interface import Measure, TextMetric

PUNCTUATION = str.maketrans("", "", string.punctuation)


class ExactMatch(TextMetric):
    """Whether an answer is the right one, ignoring case, articles, punctuation and white space."""

    measures = (Measure("exact_match", "exact_match", "exact match"),)
    compares_empty = True

    def score_one(self, gold: str, prediction: str) -> float:
        """See ``TextMetric``."""
        return normalised(gold) == normalised(prediction)


def normalised(text: str) -> str:
    """A text as SQuAD's evaluation script compares it: lower case, without ASCII punctuation and the
    articles a, an, the, with one blank between words.
    """
    bare = text.lower().translate(PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())
