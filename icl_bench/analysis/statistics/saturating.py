"""Curves that rise and level off, fitted to means at some k: what is likely at others.

A score over k is a level without demonstrations and at most two rises, each logistic over log k: to
learn the labels takes few demonstrations, to have met something like each query takes many, and
either may come late (Banking-77 in Bertsch et al. 2025, figure 1, rises twice). One logistic rise
alone forecasts too narrowly there (docs/statistics.md). Where rises stand and how steep they are is
a grid; level and heights are linear, with a normal prior, so that their posterior has a closed form
in each of its cells (conjugate linear regression: Gelman et al. 2013, Bayesian Data Analysis,
section 14.8). Beyond what draws and test examples vary by, points scatter about the curve by an
unknown amount.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

PLACES = np.linspace(np.log(0.5), np.log(20_000), 28)
"""Log k of a rise's middle: from none to many demonstrations."""

APART = 1.0
"""How far apart, in log k, two rises are at least."""

STEEPNESS = (0.7, 1.4, 2.8)
"""Of a rise, over log k."""

SCATTER = (0.005, 0.015, 0.03)
"""Standard deviations of points about the curve, beside chance."""

MEAN, DEVIATION = np.array([0.2, 0.3, 0.3]), np.array([0.25, 0.3, 0.3])
"""Of the prior of the level and both heights, as shares of 1."""

LEAST_KEPT = 50
"""Of the sampled curves, how many have to be within 0 and 1 and rise."""


@cache
def _cells() -> np.ndarray:
    """Every place and steepness of both rises, and scatter: ``(cells, 5)``."""
    cells = [
        (first, steep, second, steep_too, scatter)
        for first, second in product(PLACES, PLACES)
        if second - first >= APART
        for steep, steep_too, scatter in product(STEEPNESS, STEEPNESS, SCATTER)
    ]
    return np.array(cells)


def _risen(k: np.ndarray | float, place: np.ndarray, steepness: np.ndarray) -> np.ndarray:
    """The share of a rise that is done at k."""
    share: np.ndarray = 1 / (1 + np.exp(-steepness * (np.log(k) - place)))
    return share


@dataclass(frozen=True)
class Curves:
    """Equally likely curves."""

    cells: np.ndarray
    """``(curves, 5)``."""
    heights: np.ndarray
    """Level without demonstrations and both rises: ``(curves, 3)``."""

    def at(self, k: float) -> np.ndarray:
        """Their values at k: ``(curves,)``."""
        first, steep, second, steep_too, _ = self.cells.T
        level, height, height_too = self.heights.T
        values: np.ndarray = level + height * _risen(k, first, steep) + height_too * _risen(k, second, steep_too)
        return values

    def seen(self, k: float, variance: float, rng: np.random.Generator) -> np.ndarray:
        """What would be seen at k, with the variance of a mean of draws and test examples."""
        spread = np.sqrt(self.cells[:, 4] ** 2 + variance)
        values: np.ndarray = (self.at(k) + rng.standard_normal(len(spread)) * spread).clip(0, 1)
        return values


def likely_curves(
    ks: np.ndarray, means: np.ndarray, covariance: np.ndarray, rng: np.random.Generator, number: int = 2000
) -> Curves | None:
    """Sample curves by how well they explain the means at ``ks``, ``(points,)`` each.

    ``covariance`` is that of the means by chance, ``(points, points)``. Curves that leave 0 to 1 or
    fall are thrown away. Returns None where next to none is left.
    """
    cells = _cells()
    rises = [_risen(ks[None], cells[:, [at]], cells[:, [at + 1]]) for at in (0, 2)]
    design = np.stack([np.ones_like(rises[0]), *rises], axis=2)
    precision = np.empty((len(cells), 3, 3))
    toward, evidence = np.empty((len(cells), 3)), np.empty(len(cells))
    for scatter in SCATTER:
        here = cells[:, 4] == scatter
        noise = covariance + scatter**2 * np.eye(len(ks))
        inverse = np.linalg.inv(noise)
        left = means - design[here] @ MEAN
        weighed = np.swapaxes(design[here], 1, 2) @ inverse
        precision[here] = weighed @ design[here] + np.diag(1 / DEVIATION**2)
        toward[here] = (weighed @ left[:, :, None])[:, :, 0]
        misfit = ((left @ inverse) * left).sum(axis=1)
        evidence[here] = -0.5 * (np.linalg.slogdet(noise)[1] + misfit)
    covariances = np.linalg.inv(precision)
    shift = (covariances @ toward[:, :, None])[:, :, 0]
    evidence += 0.5 * ((toward * shift).sum(axis=1) - np.linalg.slogdet(precision)[1])
    weights = np.exp(evidence - evidence.max())
    chosen = rng.choice(len(cells), size=8 * number, p=weights / weights.sum())
    roots = np.linalg.cholesky(covariances[chosen])
    normal = rng.standard_normal((8 * number, 3, 1))
    heights = MEAN + shift[chosen] + (roots @ normal)[:, :, 0]
    good = (heights >= 0).all(axis=1) & (heights.sum(axis=1) <= 1)
    if good.sum() < LEAST_KEPT:
        return None
    return Curves(cells[chosen[good][:number]], heights[good][:number])
