"""The query's own demonstrations behind those that all queries share (Golchin et al. 2025)."""

from __future__ import annotations

import numpy as np

from icl_bench.selection import Ranking, nearest


def own_part(
    ranking: Ranking, shared: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Choose the ``count`` most similar that are not shared: ``(count,)``, the most similar last.

    ``shared`` holds pool indices, as the result does. Where fewer are related to the query than are
    wanted, the rest is drawn at random and stands first (see :func:`nearest`, also on ``rng``).

    Raises ValueError if the pool has too few.
    """
    ranked = nearest(ranking, len(shared) + count, rng)
    own: np.ndarray = ranked[~np.isin(ranked, shared)][:count]
    return own[::-1]
