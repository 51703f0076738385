"""Moderation: the variance of a point's few draws, estimated with those of the other points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from icl_bench.analysis.statistics.special import inverse_trigamma

LEAST = 0.02
"""The minimum ratio of mean squares, because the true ratio is never below 1."""


ALIKE = 0.25
"""Assumed squared correlation of points' draws if two draws cannot show it."""


class DrawSquares(NamedTuple):
    """The variance of one point's draws."""

    draws: float
    """Mean square by draws."""
    residual: float
    """Mean square of the residual."""
    freedom: float
    """Degrees of freedom of the first."""


WORTH = 0.5
"""The counted fraction of the degrees of freedom that points give each other, because few draws estimate them with a
large error. With a fraction of 1, if points truly differ, the frontier had a wrong verdict in 7 to 9% of simulated
sweeps.
"""


GAINED = 4
"""The maximum factor on a point's own degrees of freedom. Without this bound the frontier of 30 points had a wrong
verdict in 8% of simulated sweeps.
"""


def moderated(
    of_points: Sequence[DrawSquares], means: Sequence[np.ndarray], sizes: Sequence[float] | None = None
) -> list[DrawSquares]:
    """Return the moderated squares of each point's draws, in order.

    ``means`` has the means of each point's draws, ``(draws,)``. ``sizes`` has each point's number of demonstrations;
    draws differ less with more of them.

    The ratio of the mean squares by draws and of the residual is moderated, because it depends less on a point's
    accuracy than a variance does. Its logarithm varies around a common value, by chance and truly. With ``sizes`` that
    value depends on their logarithm: linearly from four points, quadratically from eight. Each ratio is shrunk towards
    it in proportion to its chance variation, and gains degrees of freedom (Smyth 2004, Stat. Appl. Genet. Mol. Biol.
    3:3, sections 3 and 6); with ``sizes`` these are bounded (``WORTH``, ``GAINED``).

    Degrees of freedom are at most those of all points together. Points with the same draws are correlated: n points
    count as ``n / (1 + (n - 1) r^2)`` with the mean squared correlation of their draws' means.

    A point is not changed if its residual is 0 or its draws have equal means (as for near-copies of a prompt), and no
    point is changed if fewer than two remain.
    """
    from icl_bench.analysis.statistics.special import digamma, polygamma

    at = [place for place, squares in enumerate(of_points) if squares.draws > 1e-9 * squares.residual > 0]
    if len(at) < 2:
        return list(of_points)
    freedom = np.array([of_points[place].freedom for place in at])
    residual = np.array([of_points[place].residual for place in at])
    ratio = (np.array([of_points[place].draws for place in at]) / residual).clip(LEAST, None)
    logarithm = np.log(ratio) - digamma(freedom / 2) + np.log(freedom / 2)
    design = np.ones((len(at), 1))
    over = np.log1p([0 if sizes is None else sizes[place] for place in at])
    if len(at) >= 4 and np.ptp(over) > 0:
        # the ratio falls to 1, where draws do not differ, and no further: not a straight line
        design = np.vander(over - over.mean(), 2 if len(at) < 8 or len(set(over)) < 4 else 3)
    fitted = design @ np.linalg.lstsq(design, logarithm, rcond=None)[0]
    scatter = float(((logarithm - fitted) ** 2).sum()) / (len(at) - design.shape[1])
    by_nature = scatter - float(polygamma(1, freedom / 2).mean())
    most = _all_together([means[place] for place in at])
    prior = min(2 * inverse_trigamma(by_nature) if by_nature > 0 else math.inf, most)
    common = np.exp(fitted + digamma(prior / 2) - math.log(prior / 2)).clip(1.0, None)
    if sizes is not None:
        prior, most = WORTH * prior, WORTH * most
    shrunk = (prior * common + freedom * ratio) / (prior + freedom)
    total = np.maximum(np.minimum(prior + freedom, most), freedom)
    if sizes is not None:
        total = np.minimum(total, GAINED * freedom)
    after = list(of_points)
    for number, place in enumerate(at):
        after[place] = DrawSquares(
            float(shrunk[number] * residual[number]), float(residual[number]), float(total[number])
        )
    return after


def _all_together(means: Sequence[np.ndarray]) -> float:
    """Degrees of freedom of all points together; those with equal numbers of draws are correlated."""
    of_count: dict[int, list[np.ndarray]] = {}
    for mean in means:
        of_count.setdefault(len(mean), []).append(mean - mean.mean())
    return sum((draws - 1) * _independent(np.array(parts)) for draws, parts in of_count.items())


def _independent(means: np.ndarray) -> float:
    """The effective number of independent points among ``(points, draws)``, each centred at 0."""
    norms = np.sqrt((means**2).sum(axis=1))
    unit = means[norms > 0] / norms[norms > 0, None]
    count, draws = unit.shape
    alike = ALIKE
    if count > 1 and draws > 2:
        pairs = ((unit.T @ unit) ** 2).sum() - count  # squared correlations, each pair twice
        by_chance = 1 / (draws - 1)
        alike = (float(pairs) / (count * (count - 1)) - by_chance) / (1 - by_chance)
    return len(means) / (1 + (len(means) - 1) * min(max(alike, 0.0), 1.0))
