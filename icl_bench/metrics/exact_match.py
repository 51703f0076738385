"""Exact match of free answers (Rajpurkar et al. 2016)."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from icl_bench.metrics.interface import Measure, Metric

if TYPE_CHECKING:
    import numpy as np

_PUNCTUATION = str.maketrans("", "", string.punctuation)


class ExactMatch(Metric):
    """Whether an answer is the right one, ignoring case, articles, punctuation and white space."""

    answers = "text"
    measures = (Measure("exact_match", "exact_match", "exact match"),)
    compares_empty = True

    def score(self, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        import numpy as np

        pairs = zip(gold, predictions, strict=True)
        matches = [normalised(right) == normalised(text) for right, text in pairs]
        return {"exact_match": np.array(matches, dtype=float)}


def normalised(text: str) -> str:
    """A text as SQuAD's evaluation script compares it: lower case, without ASCII punctuation and the
    articles a, an, the, with one blank between words.
    """
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())
