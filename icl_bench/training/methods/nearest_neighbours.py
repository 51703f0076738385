"""Nearest neighbours among the examples by sentence embeddings, without a language model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.training.methods.classifiers import fitted_probabilities
from icl_bench.training.methods.on_embeddings import OnEmbeddings

NEIGHBOUR_COUNTS = (1, 3, 5, 10)
"""Candidate numbers of neighbours."""


class NearestNeighbours(OnEmbeddings):
    """Votes of the most similar examples."""

    name = "knn"
    backend = "knn"

    def classify(
        self, train: np.ndarray, labels: np.ndarray, test: np.ndarray, keep: Path | None
    ) -> tuple[np.ndarray, Mapping[str, Any]]:
        """See ``OnEmbeddings``."""
        probabilities, number = neighbours(train, labels, test, len(self.run.task.data.labels), keep)
        return probabilities, {"neighbours": number}


def neighbours(
    train: np.ndarray, labels: np.ndarray, test: np.ndarray, count: int, keep: Path | None = None
) -> tuple[np.ndarray, int]:
    """Probabilities of each label, ``(test, count)``, and the number of neighbours that vote.

    Votes are weighted by cosine similarity. The number maximises leave-one-out accuracy on the
    examples; the smallest wins a tie. ``keep`` is a folder for the classifier.
    """
    from sklearn.neighbors import KNeighborsClassifier

    similar = train @ train.T
    np.fill_diagonal(similar, -np.inf)
    order = np.argsort(-similar, axis=1, kind="stable")[:, : max(NEIGHBOUR_COUNTS)]
    best, number = -1.0, 1
    for tried in (n for n in NEIGHBOUR_COUNTS if n < len(train)):
        nearest = order[:, :tried]
        votes = np.zeros((len(train), count))
        weights = np.take_along_axis(similar, nearest, axis=1) + 0.001
        for column in range(tried):
            votes[np.arange(len(train)), labels[nearest[:, column]]] += weights[:, column]
        right = float((votes.argmax(axis=1) == labels).mean())
        if right > best:
            best, number = right, tried
    model = KNeighborsClassifier(number, weights=weight, metric="cosine")
    return fitted_probabilities(model, train, labels, test, count, keep), number


def weight(distances: np.ndarray) -> np.ndarray:
    """The weights of neighbours at these cosine distances; a named function, so that the classifier can be stored."""
    return 1.001 - distances
