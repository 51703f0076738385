"""The best of several points: how much others lose to it, and limits for its own mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from icl_bench.analysis.statistics.contrast import Contrast, contrast, judge
from icl_bench.analysis.statistics.draw_ratios import DrawSquares, moderated
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import Grid
from icl_bench.analysis.statistics.intervals import Interval, joined, mean_interval, variance_parts, wilson
from icl_bench.analysis.statistics.meeting import meet


class Candidate(NamedTuple):
    """One point among others."""

    grid: Grid
    """Its predictions; its draws are common with another's where their numbers are equal and ..."""
    source: str
    """... this is too: what the draws are of."""
    judged: bool = True
    """Whether its draws can speak for others: a single one of what is drawn cannot."""


class Losses(NamedTuple):
    """p values of points against the best, whichever that is; ``(points,)`` each."""

    large: np.ndarray
    """Of a loss of the margin or more: small where less is lost."""
    none: np.ndarray
    """Of no loss at all: small where the point is not the best."""


def losses(candidates: Sequence[Candidate], scores: np.ndarray, of: Sequence[int], margin: float) -> Losses:
    """Test how much the candidates in the places ``of`` lose against the best of all candidates.

    ``scores`` is a column of the frame whose rows the candidates' grids are.

    Which one is the best is not known. A point loses less than ``margin`` if it does so against
    each other one, so that ``large`` is the largest of the single p values and needs no correction
    for their number (Hsu 1984, Ann. Stat. 12:1136; an intersection-union test, Berger 1982,
    Technometrics 24:295). It is not the best if some other one is better: ``none`` is the smallest
    times their number (Bonferroni). Neither is corrected for the points ``of``.

    Single p values are one-sided, those of :func:`icl_bench.analysis.statistics.contrast.judge`;
    test examples are paired, and draws where both have some of one source in common
    (:func:`icl_bench.analysis.statistics.meeting.meet`). They are 1 where a candidate is not
    ``judged``, or where two have no score in common.
    """
    pairs = [(i, j) for i in of for j in range(len(candidates)) if j != i]
    if not pairs:
        return Losses(np.zeros(len(of)), np.ones(len(of)))
    testable = np.array([candidates[i].judged and candidates[j].judged for i, j in pairs])
    contrasts = [_beside(candidates[i], candidates[j], scores) for i, j in pairs]
    testable &= np.array([not math.isnan(c.difference) for c in contrasts])
    shifted = [c._replace(centre=c.centre + margin) for c in contrasts]
    large = np.where(testable, judge(shifted, "greater")[2], 1.0).reshape(len(of), -1)
    none = np.where(testable, judge(contrasts, "less")[2], 1.0).reshape(len(of), -1)
    return Losses(large.max(axis=1), np.minimum(none.min(axis=1) * none.shape[1], 1.0))


def _beside(candidate: Candidate, other: Candidate, scores: np.ndarray) -> Contrast:
    """Two candidates compared, in common draws where there are any."""
    met = meet(candidate.grid, other.grid, candidate.source == other.source)
    return contrast(met.point.values(scores), met.base.values(scores), met.matched)


def best_interval(points: Sequence[np.ndarray], level: float = 0.95) -> Interval:
    """Return the highest mean of points, ``(draws, test)`` each, and limits for that point's own.

    The highest of many means is too high, as that is what it was chosen for. So its lower limit is
    one of those that hold for all points at once (Bonferroni), with the draws' variance moderated
    (:func:`icl_bench.analysis.statistics.draw_ratios.moderated`): three draws alone have no useful
    limit at so small an error. The upper limit is that of the point alone: no true mean is higher
    than the truly best one's, so that a mean that was chosen for being high is hardly ever too
    low. The lower one is never closer than that of
    :func:`icl_bench.analysis.statistics.intervals.mean_interval`, which a single point has.

    Raises ValueError as that does.
    """
    best = int(np.argmax([TwoWayLayout(scores).mean for scores in points]))
    alone = mean_interval(points[best], level)
    upper = 1 - (1 - level) / 2 / len(points)
    if len(points[best]) == 1 or np.nanmax(points[best]) == np.nanmin(points[best]):
        return alone._replace(low=mean_interval(points[best], 2 * upper - 1).low)
    variance, quantile = _moderated_spread(points, best, upper)
    low = wilson(alone.mean, alone.mean * (1 - alone.mean) / variance, quantile).low
    return alone._replace(low=min(low, alone.low))


def _moderated_spread(points: Sequence[np.ndarray], at: int, upper: float) -> tuple[float, float]:
    """``intervals.spread`` of one point, its draws' variance moderated by those of the others."""
    drawn = [place for place, scores in enumerate(points) if len(scores) > 1]
    layouts = [TwoWayLayout(points[place]) for place in drawn]
    squares = [DrawSquares(float(of.squares.draws), float(of.squares.residual), of.freedom) for of in layouts]
    after = moderated(squares, [of.by_draw for of in layouts])
    own = drawn.index(at)
    of_draws = after[own]
    parts = variance_parts(layouts[own].squares._replace(draws=of_draws.draws), points[at].size)
    return joined(parts, (of_draws.freedom, points[at].shape[1] - 1), upper)
