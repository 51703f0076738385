"""Selection: how demonstrations are chosen from the pool. ``choice`` says in which ways.

What all queries share comes from ``random``, ``centroids`` or ``balanced``; what is a query's own
from a retriever (``bm25``, ``bertscore``, ``dense``), which ranks the whole pool for each query:
:func:`nearest` takes the first k of a ranking, and ``hybrid`` those that are not shown already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np


class Ranking(NamedTuple):
    """How similar every demonstration of the pool is to one query."""

    scores: np.ndarray
    """``(pool,)`` float64, larger means more similar."""
    related: np.ndarray
    """``(pool,)`` bool: whether the demonstration is retrieved at all."""


class Retriever(Protocol):
    """A measure of similarity that ranks the pool for each test example."""

    def fit(self, demonstrations: Sequence[str]) -> None:
        """Take in the pool's texts."""

    def rank(self, queries: Sequence[str]) -> Iterator[Ranking]:
        """Rank the pool for each query (a test example's input text), in the order given."""


def nearest(ranking: Ranking, k: int, rng: np.random.Generator) -> np.ndarray:
    """Choose the k most similar demonstrations, the most similar first: ``(k,)`` pool indices.

    Equally similar ones keep the pool's order. Where fewer than k are related, the rest is drawn
    at random from the others (Bertsch et al., section 3.1), none of them twice. With a generator of
    the same seed, the choice for k begins the choice for every larger k.

    Raises ValueError if k is negative or larger than the pool.
    """
    if not 0 <= k <= len(ranking.scores):
        raise ValueError(f"cannot choose {k} of {len(ranking.scores)} demonstrations")
    related = np.flatnonzero(ranking.related)
    chosen = related[np.argsort(-ranking.scores[related], kind="stable")]
    if len(chosen) < k:
        chosen = np.concatenate([chosen, rng.permutation(np.flatnonzero(~ranking.related))])
    return chosen[:k]
