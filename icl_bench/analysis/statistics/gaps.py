"""Means and mean squares of draws × test examples with missing scores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from icl_bench.analysis.statistics.mean_squares import MeanSquares, mean_squares


@dataclass(frozen=True)
class TwoWayLayout:
    """A two-way layout of scores ``(draws, test)``, NaN for gaps: sums of draw, test example and residual.

    Every draw and every test example needs a score. Without gaps these are plain means and mean squares.

    With gaps, missing scores differ from existing ones: a hard test example with gaps must not count less, and an
    example that only a good draw has must not count more. So test examples are fixed effects with equal weights, and
    draws are random effects (Henderson's mixed model equations; Searle, Casella & McCulloch 1992, Variance Components,
    section 7.6): an example's mean is corrected for the draws that it lacks, in proportion to the variance of draws
    beyond chance. If there is none, nothing is corrected, and a draw with few scores has little influence. This is
    unbiased if gaps are random by test example, by draw, or by both. It is biased if an answer is missing because of
    its content, or an example is missing in all draws.
    """

    scores: np.ndarray

    @cached_property
    def whole(self) -> bool:
        """Whether there are no gaps."""
        return not np.isnan(self.scores).any()

    @cached_property
    def mean(self) -> float:
        """The mean over draws and test examples."""
        return float(self.scores.mean() if self.whole else self.by_test.mean())

    @cached_property
    def by_test(self) -> np.ndarray:
        """The mean of each test example over draws, ``(test,)``."""
        if self.whole:
            return np.asarray(self.scores.mean(axis=0))
        fit = self._fit
        return np.asarray(fit.by_test - fit.effects @ fit.shares)

    @cached_property
    def by_draw(self) -> np.ndarray:
        """The mean of each draw, ``(draws,)``, adjusted to all test examples if there are gaps.

        A draw's missing scores are assumed to differ from the other draws as its existing ones do.
        """
        if self.whole:
            return np.asarray(self.scores.mean(axis=1))
        apart = self.scores - np.nanmean(self.scores, axis=0)
        return np.asarray(self.mean + np.nanmean(apart, axis=1))

    @cached_property
    def effects(self) -> np.ndarray:
        """The difference of each draw from the mean, ``(draws,)``; with gaps shrunk towards 0."""
        return self.scores.mean(axis=1) - self.mean if self.whole else self._fit.effects

    @cached_property
    def squares(self) -> MeanSquares:
        """Mean squares. Needs at least two draws.

        With gaps they are those of a complete layout whose mean has the same variance: the variance of the mean is
        ``(MS_draw + MS_test - MS_residual) / scores.size`` in both. The components by draws and of the rest are
        Henderson's method 3 (Searle, Casella & McCulloch 1992, section 5.5); the component of test examples is the
        variance of their means.
        """
        if self.whole:
            return mean_squares(self.scores)
        fit, size = self._fit, self.scores.size
        tests = len(self.by_test)
        of_draws = fit.of_draws * (fit.weights.sum(axis=1) ** 2).sum()
        of_draws += fit.residual * (fit.weights**2).sum()
        in_tests = fit.residual * (fit.shares**2).sum() / tests**2  # is included in their variance
        of_tests = self.by_test.var(ddof=min(1, tests - 1)) / tests
        return MeanSquares(size * of_draws, size * of_tests, size * in_tests)

    @cached_property
    def freedom(self) -> float:
        """Degrees of freedom of the mean square by draws: fewer than draws - 1 if some have few scores (Satterthwaite
        1946, Biometrics Bull. 2:110).
        """
        return len(self.scores) - 1 if self.whole else self._fit.freedom

    @cached_property
    def _fit(self) -> _Fit:
        return _fit(self.scores)


class _Fit(NamedTuple):
    by_test: np.ndarray
    """Plain means of test examples, ``(test,)``."""
    shares: np.ndarray
    """Weights of each draw in these means, ``(draws, test)``."""
    effects: np.ndarray
    """Effects of draws, ``(draws,)``."""
    weights: np.ndarray
    """Weights of each score in the mean, ``(draws, test)``."""
    of_draws: float
    """Variance component of draws; negative if they differ less than by chance."""
    residual: float
    """Variance component of the residual."""
    freedom: float


def _fit(scores: np.ndarray) -> _Fit:
    present = ~np.isnan(scores)
    number, known = present.sum(axis=0), np.where(present, scores, 0.0)
    if not (number.all() and present.any(axis=1).all()):
        raise ValueError("every draw and every test row needs a score")
    by_test, shares = known.sum(axis=0) / number, present / number
    within = np.where(present, known - by_test, 0.0)
    # the equations of draws after eliminating test examples, in their principal axes
    sizes, axes = np.linalg.eigh(np.diag(present.sum(axis=1)) - shares @ present.T)
    kept = sizes > 1e-9 * len(by_test)
    sizes, axes = sizes[kept], axes[:, kept]
    sums = axes.T @ within.sum(axis=1)
    explained = float((sums**2 / sizes).sum())
    total, left = float((within**2).sum()), int(number.sum()) - len(number)
    if left > len(sizes):
        residual = max(total - explained, 0.0) / (left - len(sizes))
        of_draws = (explained - len(sizes) * residual) / sizes.sum() if len(sizes) else 0.0
    else:  # draws share too few examples to distinguish their differences from chance
        residual, of_draws = total / left if left else 0.0, 0.0
    shrunk = sizes + residual / of_draws if of_draws > 0 else np.full(len(sizes), np.inf)
    correction = axes @ (axes.T @ shares.mean(axis=1) / shrunk)
    weights = np.where(present, 1 / (len(number) * number) - correction[:, None], 0.0)
    weights += present * (correction @ shares)
    freedom = float(sizes.sum() ** 2 / (sizes**2).sum()) if len(sizes) else 1.0
    return _Fit(by_test, shares, axes @ (sums / shrunk), weights, of_draws, residual, freedom)
