"""The query's own demonstrations behind those that all queries share (Golchin et al. 2025)."""

from __future__ import annotations

import numpy as np

from icl_bench.demonstrations.ranking import Ranking, nearest
from icl_bench.errors import ChoiceError


def own_part(
    ranking: Ranking, alike: np.ndarray, shared: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Choose the ``count`` most similar that are not shown yet: ``(count,)``, most similar last.

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
