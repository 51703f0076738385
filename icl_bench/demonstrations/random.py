"""Random selection: draw j is one permutation of the training set, and k-shot takes its first k.

So a smaller k's demonstrations begin a larger k's (Bertsch et al. 2025, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from icl_bench.demonstrations.interface import Pool, SharedSelector
from icl_bench.seeds import generator


@dataclass(frozen=True)
class Random(SharedSelector):
    """The first k of a draw."""

    name = "random"

    def choose(self, pool: Pool, draw: int, k: int) -> np.ndarray:
        """See ``SharedSelector``."""
        return pool.drawn(draw)[:k]


@dataclass(frozen=True)
class First(SharedSelector):
    """The first k of the pool, in file order: for demonstrations with a deliberate order."""

    name = "first"
    drawn = False

    def choose(self, pool: Pool, draw: int, k: int) -> np.ndarray:
        """See ``SharedSelector``."""
        del draw
        return pool.rows[:k]


def draw(n_train: int, seed: int, draw: int) -> np.ndarray:
    """Return the permutation ``(n_train,)`` of all training rows for one draw."""
    return generator(seed, "draw", draw).permutation(n_train)
