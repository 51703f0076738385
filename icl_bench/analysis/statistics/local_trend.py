"""Continue a curve over k: a slope that changes at random from one doubling to the next, and rare steps.

The log-odds of a score are a Gaussian process over log2 k: the integral of a slope that returns to 0 (an
Ornstein-Uhlenbeck process; its integral's covariance is that of Taylor, Cumberland & Sy 1994, JASA 89:727). A slope
thus persists for a while and is then damped, as in the damped trends of Gardner & McKenzie (1985, Management Science
31:1237). Steps occur at random, as in the level shifts of Chen & Tiao (1990, Journal of Business & Economic Statistics
8:83): at most one among the tested k, and at most one beyond them. The position of the step is unknown; the forecasts
for each gap between two k, and for no step, are averaged, weighted by their likelihood (Rasmussen & Williams 2006,
Gaussian Processes for Machine Learning, section 2.2). The process is symmetric: falling and rising are equally likely,
and a flat curve stays flat in the median. docs/statistics.md describes the choice of constants.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SLOPE = 0.25
"""Standard deviation of the slope, in log-odds per doubling."""

MEMORY = 4.0
"""The number of doublings after which the correlation of slopes is 1/e."""

STEP = 0.6
"""Standard deviation of a step, in log-odds."""

RATE = 0.125
"""Steps per doubling."""

LEVEL = 2.0
"""Standard deviation of the curve's first value, in log-odds."""

UNSTEADY = 0.05
"""Added to the variance of each point, as a share of a binomial mean's, because means of only right answers vary,
too.
"""


@dataclass(frozen=True)
class Continuation:
    """The predicted curve at some k: mixtures of normal distributions of log-odds."""

    weights: np.ndarray
    """Weights of the possible positions of steps: ``(places, ks)``."""
    means: np.ndarray
    """Means of the mixture: ``(places, ks)``."""
    variances: np.ndarray
    """Variances of the curve itself: ``(places, ks)``."""
    noise: float
    """Variance of an observation around the curve."""
    tests: int
    """The number of test examples of a mean score."""

    def reached(self, score: float) -> np.ndarray:
        """The chance that the curve itself is at or above ``score``: ``(ks,)``."""
        return 1 - self._below(_log_odds(score, self.tests), self.variances)

    def quantile(self, share: float) -> np.ndarray:
        """The score below which an observation falls with this chance: ``(ks,)``."""
        # bisection: the quantiles of a mixture have no closed form
        low, high = np.full(self.means.shape[1], -30.0), np.full(self.means.shape[1], 30.0)
        for _ in range(40):
            middle = (low + high) / 2
            under = self._below(middle, self.variances + self.noise) < share
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        return _score(middle, self.tests)

    def _below(self, log_odds: float | np.ndarray, variances: np.ndarray) -> np.ndarray:
        from icl_bench.analysis.statistics.special import ndtr

        return np.asarray((self.weights * ndtr((log_odds - self.means) / np.sqrt(variances))).sum(axis=0))


def continuation(
    ks: np.ndarray, means: np.ndarray, covariance: np.ndarray, tests: int, ahead: np.ndarray
) -> Continuation:
    """Continue the curve of the mean scores at ``ks``, ``(points,)`` each, to the ks ``ahead``.

    ``covariance`` is that of the means over draws and over test examples, ``(points, points)``, and ``tests`` the
    number of test examples. These are the same at all k, so their common variance is not noise: a point's own variance
    is half of that of its difference to a neighbouring point. The points ahead have the noise of the last one.
    """
    log_odds = _log_odds(means, tests)
    share = (means * tests + 0.5) / (tests + 1)
    binomial = share * (1 - share)
    noise = _own_variances(covariance) / binomial**2 + UNSTEADY / (tests * binomial)
    at, to = np.log2(ks / ks[0]), np.log2(ahead / ks[0])
    places = np.append(at[1:], np.inf)  # a step is at the first k after it; the last position is no step
    root = np.linalg.cholesky(_covariances(at, at, places) + np.diag(noise))
    inverse = np.linalg.inv(root)
    left, shared = inverse @ log_odds, inverse @ _covariances(at, to, places)
    evidence = -0.5 * (left**2).sum(axis=1) - np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    # the chance of one step in a gap, relative to that of none
    weights = np.append(np.expm1(RATE * np.diff(at)), 1) * np.exp(evidence - evidence.max())
    variances = np.diagonal(_covariances(to, to, places), axis1=1, axis2=2) - (shared**2).sum(axis=1)
    none = np.exp(-RATE * (to - at[-1]).clip(0))
    return Continuation(
        np.concatenate([weights[:, None] * none, weights[:, None] * (1 - none)]) / weights.sum(),
        np.tile((left[:, None] @ shared)[:, 0], (2, 1)),
        np.concatenate([variances, variances + STEP**2]),
        float(noise[-1]),
        tests,
    )


def _covariances(at: np.ndarray, to: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Covariances of the curve's values at two sets of doublings from its start, by a step's position: ``(places, at,
    to)``.
    """
    stepped = (at >= places[:, None])[:, :, None] & (to >= places[:, None])[:, None]
    at, to = at[:, None], to[None]
    common = np.minimum(at, to)
    sloping = 2 * common / MEMORY + np.exp(-at / MEMORY) + np.exp(-to / MEMORY) - 1 - np.exp(-np.abs(at - to) / MEMORY)
    values: np.ndarray = LEVEL**2 + (SLOPE * MEMORY) ** 2 * sloping + STEP**2 * stepped
    return values


def _own_variances(covariance: np.ndarray) -> np.ndarray:
    """Half of the mean variance of each mean's differences from its neighbours, ``(points,)``."""
    variances = np.diagonal(covariance)
    halves = (variances[1:] + variances[:-1]) / 2 - np.diagonal(covariance, 1)
    return np.asarray((np.append(halves[0], halves) + np.append(halves, halves[-1])) / 2)


def _log_odds(score: float | np.ndarray, tests: int) -> np.ndarray:
    """Log-odds of a score after adding half a right and half a wrong example (Haldane 1956, Ann. Hum. Genet.
    20:309).
    """
    return np.asarray(np.log((score * tests + 0.5) / (tests - score * tests + 0.5)))


def _score(log_odds: np.ndarray, tests: int) -> np.ndarray:
    share = 1 / (1 + np.exp(-log_odds))
    return np.asarray(((share * (tests + 1) - 0.5) / tests).clip(0, 1))
