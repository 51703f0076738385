"""Nearest neighbours among the examples by sentence embeddings, without a language model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.training.methods.classifiers import Fitted, fitted
from icl_bench.training.methods.on_embeddings import OnEmbeddings

NEIGHBOUR_COUNTS = (1, 3, 5, 10)
"""Candidate numbers of neighbours."""


class NearestNeighbours(OnEmbeddings):
    """Votes of the most similar examples."""

    name = "knn"
    backend = "knn"

    def classify(
        self, train: np.ndarray, labels: np.ndarray, test: np.ndarray, keep: Path | None
    ) -> tuple[Fitted, Mapping[str, Any]]:
        """See ``OnEmbeddings``."""
        found, number = neighbours(train, labels, test, len(self.run.task.data.labels), keep)
        return found, {"neighbours": number}


def neighbours(
    train: np.ndarray, labels: np.ndarray, test: np.ndarray, count: int, keep: Path | None = None
) -> tuple[Fitted, int]:
    """What the examples' votes say of the test rows, and the number of neighbours that vote; of ``count`` labels.

    Votes are weighted by cosine similarity (:func:`weight`). The number maximises leave-one-out accuracy on the
    examples; the smallest wins a tie. ``keep`` is a folder for the classifier.
    """
    from sklearn.neighbors import KNeighborsClassifier

    start = time.perf_counter()
    similar = train @ train.T
    np.fill_diagonal(similar, -np.inf)
    order = np.argsort(-similar, axis=1, kind="stable")[:, : max(NEIGHBOUR_COUNTS)]
    best, number = -1.0, 1
    for tried in (n for n in NEIGHBOUR_COUNTS if n < len(train)):
        nearest = order[:, :tried]
        votes = np.zeros((len(train), count))
        weights = _positive(np.take_along_axis(similar, nearest, axis=1) + 0.001)
        for column in range(tried):
            votes[np.arange(len(train)), labels[nearest[:, column]]] += weights[:, column]
        right = float((votes.argmax(axis=1) == labels).mean())
        if right > best:
            best, number = right, tried
    model = KNeighborsClassifier(number, weights=weight, metric="cosine")
    choosing = time.perf_counter() - start
    found = fitted(model, train, labels, test, count, keep)
    return found._replace(fit_seconds=choosing + found.fit_seconds), number


def weight(distances: np.ndarray) -> np.ndarray:
    """The weights of neighbours at these cosine distances; a named function, so that the classifier can be stored.

    Similarities below 0 are the smallest weights.
    """
    return _positive(1.001 - distances)


def _positive(similar: np.ndarray) -> np.ndarray:
    """Positive weights in the order of the similarities: sums of negative ones would turn votes around."""
    weights: np.ndarray = np.maximum(similar, 1e-6 * (2 + similar))
    return weights
