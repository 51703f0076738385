"""Continue a curve over k: a level and a slope that both change at random from one doubling to the next.

The log-odds of a score are a Gaussian process over log2 k: a random walk, and the integral of a
slope that returns to 0 (an Ornstein-Uhlenbeck process; its integral's covariance is that of Taylor,
Cumberland & Sy 1994, JASA 89:727). A slope thus lasts for a while and is then damped, as in the
damped trends of Gardner & McKenzie (1985, Management Science 31:1237). The process is symmetric:
curves fall as easily as they rise, and a flat curve stays flat in the median. How much level and
slope change is unknown; a small grid of values is averaged by how well each explains the curve
(Rasmussen & Williams 2006, Gaussian Processes for Machine Learning, sections 2.2 and 5.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

WALK = (0.01, 0.2)
"""Standard deviation of the random walk after one doubling, in log-odds."""

SLOPE = (0.06, 0.25, 0.5)
"""Standard deviation of the slope, in log-odds a doubling."""

MEMORY = (3.0, 9.0)
"""After how many doublings the correlation of slopes is 1/e."""

CELLS = np.array(list(product(WALK, SLOPE, MEMORY)))
"""``(cells, 3)``, all equally likely beforehand."""

LEVEL = 2.0
"""Standard deviation of the curve's first value, in log-odds."""

UNSTEADY = 0.05
"""The variance of a point, as a share of a binomial mean's, where nothing else says that it varies."""


@dataclass(frozen=True)
class Continuation:
    """What a curve may be at some k: mixtures of normal distributions of log-odds."""

    weights: np.ndarray
    """Of the cells: ``(cells,)``."""
    means: np.ndarray
    """``(cells, ks)``."""
    variances: np.ndarray
    """Of the curve itself: ``(cells, ks)``."""
    noise: float
    """Variance of what is seen about the curve."""
    tests: int

    def reached(self, score: float) -> np.ndarray:
        """The chance that the curve itself is at ``score`` or above: ``(ks,)``."""
        return 1 - self._below(_log_odds(score, self.tests), self.variances)

    def quantile(self, share: float) -> np.ndarray:
        """The score below which a share of what may be seen lies: ``(ks,)``."""
        # by bisection: a mixture's quantiles have no closed form
        low, high = np.full(self.means.shape[1], -30.0), np.full(self.means.shape[1], 30.0)
        for _ in range(40):
            middle = (low + high) / 2
            under = self._below(middle, self.variances + self.noise) < share
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        return _score(middle, self.tests)

    def _below(self, log_odds: float | np.ndarray, variances: np.ndarray) -> np.ndarray:
        from icl_bench.analysis.statistics.special import ndtr

        return np.asarray(self.weights @ ndtr((log_odds - self.means) / np.sqrt(variances)))


def continuation(
    ks: np.ndarray, means: np.ndarray, covariance: np.ndarray, tests: int, ahead: np.ndarray
) -> Continuation:
    """Continue the curve of the mean scores at ``ks``, ``(points,)`` each, to the ks ``ahead``.

    ``covariance`` is that of the means by chance, ``(points, points)``: over draws and over test
    examples, of which there are ``tests``. The same test examples are asked at all k, so that only
    what differences of neighbouring points vary by counts, half for either point. The points ahead
    are seen with the noise of the last one.
    """
    log_odds = _log_odds(means, tests)
    share = (means * tests + 0.5) / (tests + 1)
    binomial = share * (1 - share)
    noise = _own_variances(covariance) / binomial**2 + UNSTEADY / (tests * binomial)
    at, to = np.log2(ks / ks[0]), np.log2(ahead / ks[0])
    root = np.linalg.cholesky(_covariances(at, at) + np.diag(noise))
    inverse = np.linalg.inv(root)
    left, shared = inverse @ log_odds, inverse @ _covariances(at, to)
    evidence = -0.5 * (left**2).sum(axis=1) - np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    weights = np.exp(evidence - evidence.max())
    before = np.stack([_covariances(x, x)[:, 0, 0] for x in to[:, None]], axis=1)
    return Continuation(
        weights / weights.sum(),
        (left[:, None] @ shared)[:, 0],
        before - (shared**2).sum(axis=1),
        float(noise[-1]),
        tests,
    )


def _covariances(at: np.ndarray, to: np.ndarray) -> np.ndarray:
    """Of the curve's values at two sets of places in doublings: ``(cells, at, to)``."""
    walk, slope, memory = CELLS.T[:, :, None, None]
    at, to = at[:, None], to[None]
    common = np.minimum(at, to)
    apart = np.exp(-at / memory) + np.exp(-to / memory) - 1 - np.exp(-np.abs(at - to) / memory)
    values: np.ndarray = LEVEL**2 + walk**2 * common + (slope * memory) ** 2 * (2 * common / memory + apart)
    return values


def _own_variances(covariance: np.ndarray) -> np.ndarray:
    """What each mean varies by on its own: half of the variance of its differences to its neighbours."""
    variances = np.diagonal(covariance)
    halves = (variances[1:] + variances[:-1]) / 2 - np.diagonal(covariance, 1)
    return (np.append(halves[0], halves) + np.append(halves, halves[-1])) / 2


def _log_odds(score: float | np.ndarray, tests: int) -> np.ndarray:
    """Finite for all or none right, too (half an example each: Haldane 1956, Ann. Hum. Genet. 20:309)."""
    return np.log((score * tests + 0.5) / (tests - score * tests + 0.5))


def _score(log_odds: np.ndarray, tests: int) -> np.ndarray:
    share = 1 / (1 + np.exp(-log_odds))
    return ((share * (tests + 1) - 0.5) / tests).clip(0, 1)
