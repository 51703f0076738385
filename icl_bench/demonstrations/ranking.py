"""Rankings of the pool for a query, and the first k of one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Ranking(NamedTuple):
    """How similar every demonstration of the pool is to one query."""

    scores: np.ndarray
    """``(pool,)`` float64, larger means more similar."""
    related: np.ndarray
    """``(pool,)`` bool: whether the demonstration is retrieved at all."""


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
