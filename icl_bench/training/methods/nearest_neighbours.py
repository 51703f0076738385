"""Nearest neighbours among the examples by sentence embeddings, without a language model."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.models.text_encoders import PACKAGED, SentenceEncoder
from icl_bench.results.stored_meta import TrainingMeta
from icl_bench.tasks.examples import Example
from icl_bench.training.examples import Examples
from icl_bench.training.interface import Learned, TrainingMethod
from icl_bench.training.methods.probe import fitted_probabilities

NEIGHBOUR_COUNTS = (1, 3, 5, 10)
"""Candidate numbers of neighbours."""


class NearestNeighbours(TrainingMethod):
    """Votes of the most similar examples."""

    name = "knn"
    backend = "knn"
    packages = ("sklearn",)
    has_architecture = False

    def facts(self, select: str) -> Mapping[str, Any]:
        """See ``TrainingMethod``."""
        del select
        return {"sentence_encoder": PACKAGED}

    def notes(self) -> list[str]:
        """See ``TrainingMethod``."""
        data = self.run.task.data
        return (
            SentenceEncoder.find().reading(self._inputs([*data.train, *data.test])).notes(PACKAGED, "embeds", hint="")
        )

    def _inputs(self, rows: Iterable[Example]) -> list[str]:
        names = self.run.task.data.spec.template.input_fields
        return [" ".join(row.fields[name] for name in names) for row in rows]

    def learn(self, examples: Examples, keep: Path | None) -> list[Learned]:
        """See ``TrainingMethod``."""
        del keep
        task, texts = self.run.task, self._inputs
        labels = np.array([row.label for row in examples.train])
        learnt = {row.id for row in examples.train}
        encoder = SentenceEncoder.find()
        encoder.load()  # not timed
        start = time.perf_counter()
        train = encoder.embed(texts(row for row in examples.shown if row.id in learnt))
        middle = time.perf_counter()
        queries = encoder.embed(texts(task.data.test))
        probabilities, number = neighbours(train, labels, queries, len(task.data.labels))
        return [
            Learned(
                self.name,
                probabilities,
                time.perf_counter() - middle,
                TrainingMeta(
                    method=self.name,
                    seconds=round(middle - start, 3),
                    sentence_encoder=PACKAGED,
                    neighbours=number,
                    labels_without_example=list(examples.missing),
                ),
            )
        ]


def neighbours(train: np.ndarray, labels: np.ndarray, test: np.ndarray, count: int) -> tuple[np.ndarray, int]:
    """Probabilities of each label, ``(test, count)``, and the number of neighbours that vote.

    Votes are weighted by cosine similarity. The number maximises leave-one-out accuracy on the
    examples; the smallest wins a tie.
    """
    from sklearn.neighbors import KNeighborsClassifier

    similar = train @ train.T
    np.fill_diagonal(similar, -np.inf)
    best, number = -1.0, 1
    for tried in (n for n in NEIGHBOUR_COUNTS if n < len(train)):
        nearest = np.argsort(-similar, axis=1, kind="stable")[:, :tried]
        votes = np.zeros((len(train), count))
        weights = np.take_along_axis(similar, nearest, axis=1) + 0.001
        for column in range(tried):
            votes[np.arange(len(train)), labels[nearest[:, column]]] += weights[:, column]
        right = float((votes.argmax(axis=1) == labels).mean())
        if right > best:
            best, number = right, tried
    model = KNeighborsClassifier(number, weights=lambda d: 1.001 - d, metric="cosine")
    return fitted_probabilities(model, train, labels, test, count), number
