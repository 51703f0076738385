"""Mean squares of scores in a two-way layout, draws × test examples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class MeanSquares(NamedTuple):
    """Mean squares by draws, by test examples and of the residual, ``(...)`` each."""

    draws: Any
    tests: Any
    residual: Any

    @property
    def draws_differ(self) -> Any:
        """Whether draws differ by more than the residual."""
        return self.draws > self.residual


def mean_squares(scores: np.ndarray) -> MeanSquares:
    """Return the mean squares of scores ``(..., draws, test)`` (Searle, Casella & McCulloch 1992).

    Needs at least two draws. With a single test example, the mean square by tests is 0.
    """
    draws, test = scores.shape[-2:]
    by_draw = scores.mean(axis=-1, keepdims=True)
    by_test = scores.mean(axis=-2, keepdims=True)
    mean = scores.mean(axis=(-2, -1), keepdims=True)
    residual = scores - by_draw - by_test + mean
    of_tests = max(test - 1, 1)
    return MeanSquares(
        test * by_draw[..., 0].var(axis=-1, ddof=1),
        draws * by_test[..., 0, :].var(axis=-1, ddof=min(1, test - 1)),
        (residual**2).sum(axis=(-2, -1)) / ((draws - 1) * of_tests),
    )
