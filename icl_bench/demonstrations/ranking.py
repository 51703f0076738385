"""Rankings of the pool for a query: the first k of one, or a query's own part behind shared demonstrations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icl_bench.errors import ChoiceError


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


def own_part(
    ranking: Ranking, alike: np.ndarray, shared: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Choose the ``count`` most similar that are not shown yet (Golchin et al. 2025): ``(count,)``, most similar last.

    ``shared`` holds pool indices, as the result does. ``alike`` numbers the pool's different
    demonstrations from 0, ``(pool,)``: those of one text and label have one number. Of them only
    one is chosen, and none where a shared one is like it. Where fewer are related to the query than
    are wanted, the rest is drawn at random and stands first (see :func:`nearest`, also on ``rng``).

    Raises ``ChoiceError`` if the pool has too few different ones.
    """
    different = int(alike.max()) + 1
    repeating = len(alike) - different
    enough = min(len(shared) + count + repeating, len(alike))
    ranked = nearest(ranking, enough, rng)
    others = ranked[~np.isin(alike[ranked], alike[shared])]
    _, first = np.unique(alike[others], return_index=True)
    if len(first) < count:
        raise ChoiceError(
            f"--select hybrid:{count}: at k={len(shared) + count:,} the pool has {len(first):,} "
            f"demonstrations that are not shown already, of {different:,} different ones; "
            f"ask for at most {different:,}"
        )
    own: np.ndarray = others[np.sort(first)[:count]]
    return own[::-1]
