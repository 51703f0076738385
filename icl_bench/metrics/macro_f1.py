"""Macro-F1 of labels (Bertsch et al. 2025, section 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from icl_bench.metrics.interface import Metric

if TYPE_CHECKING:
    import numpy as np


class MacroF1(Metric):
    """The mean F1 over the labels that the test examples have.

    A predicted label that no test example has does not have an F1; predicting it costs recall of
    the right label. Equals scikit-learn's ``f1_score(labels=<labels of gold>, average="macro",
    zero_division=0)``.
    """

    answers = "labels"
    needs_common_labels = True
    of_many: ClassVar[Mapping[str, str]] = {"macro_f1": "macro-F1"}

    def score_many(self, cell: np.ndarray, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        return {"macro_f1": _macro_f1(cell, gold, predictions)}


def _macro_f1(cell: Any, gold: Any, predictions: Any) -> np.ndarray:
    """Return macro-F1 ``(cells,)`` of predictions in any order. ``cell`` is each one's cell, from 0."""
    import numpy as np
    import pandas as pd

    cell = np.asarray(cell)
    actual, labels = pd.factorize(np.asarray(gold, dtype=object))
    said = np.asarray(predictions, dtype=object)
    # as objects: an index of strings would copy every text
    predicted = pd.Index(labels, dtype=object).get_indexer(pd.Index(said, dtype=object))
    shape = (int(cell.max()) + 1, len(labels))

    def count(code: np.ndarray, where: np.ndarray) -> np.ndarray:
        flat = np.bincount(cell[where] * shape[1] + code[where], minlength=shape[0] * shape[1])
        return flat.reshape(shape)

    support = count(actual, actual >= 0)
    hits = count(actual, actual == predicted)
    f1 = 2 * hits / np.maximum(support + count(predicted, predicted >= 0), 1)
    has_support = support > 0
    return np.asarray((f1 * has_support).sum(axis=1) / has_support.sum(axis=1))
