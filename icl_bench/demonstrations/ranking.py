"""Rankings of the pool for a query: the first k, or a query's own part after shared demonstrations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icl_bench.errors import ChoiceError


class Ranking(NamedTuple):
    """The similarity of every demonstration of the pool to one query."""

    scores: np.ndarray
    """``(pool,)`` float64, larger means more similar."""
    related: np.ndarray
    """``(pool,)`` bool: whether the demonstration can be retrieved."""


def most_similar(ranking: Ranking, k: int, rng: np.random.Generator) -> np.ndarray:
    """Choose the k most similar demonstrations, the most similar first: ``(k,)`` pool indices.

    Equally similar ones keep the pool's order. If fewer than k are related, the rest is drawn at
    random without replacement from the others (Bertsch et al., section 3.1). With a generator of
    the same seed, the selection for k begins the selection for every larger k.

    Raises ValueError if k is negative or larger than the pool.
    """
    if not 0 <= k <= len(ranking.scores):
        raise ValueError(f"cannot choose {k} of {len(ranking.scores)} demonstrations")
    related = np.flatnonzero(ranking.related)
    distance = -ranking.scores[related]
    if 0 < k < len(related):  # only those up to the k-th are sorted
        near = distance <= np.partition(distance, k - 1)[k - 1]
        related, distance = related[near], distance[near]
    ranked = related[np.argsort(distance, kind="stable")]
    if len(ranked) < k:
        ranked = np.concatenate([ranked, rng.permutation(np.flatnonzero(~ranking.related))])
    return ranked[:k]


def own_part(
    ranking: Ranking, alike: np.ndarray, shared: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Choose the ``count`` most similar that are not shared (Golchin et al. 2025): ``(count,)``, most similar last.

    ``shared`` holds pool indices, as the result does. ``alike`` numbers the pool's distinct demonstrations from 0,
    ``(pool,)``: equal text and label, equal number. Only one of each number is chosen, and none that equals a shared
    one. If fewer than ``count`` are related to the query, the rest is chosen at random and comes first (see
    :func:`most_similar`, also for ``rng``).

    Raises ``ChoiceError`` if the pool has too few distinct ones.
    """
    different = int(alike.max()) + 1
    repeating = len(alike) - different
    enough = min(len(shared) + count + repeating, len(alike))
    ranked = most_similar(ranking, enough, rng)
    unshown = ranked[~np.isin(alike[ranked], alike[shared])]
    _, first = np.unique(alike[unshown], return_index=True)
    if len(first) < count:
        raise ChoiceError(
            f"--select hybrid:{count}: at k={len(shared) + count:,} the pool has {len(first):,} "
            f"demonstrations that are not shown already, of {different:,} different ones; "
            f"ask for at most {different:,}"
        )
    own: np.ndarray = unshown[np.sort(first)[:count]]
    return own[::-1]
