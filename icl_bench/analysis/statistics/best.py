"""The best of several points: how much others lose to it, and limits for its own mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from icl_bench.analysis.statistics.contrast import Contrast, contrast, p_values
from icl_bench.analysis.statistics.draw_ratios import DrawSquares, moderated
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import Grid
from icl_bench.analysis.statistics.intervals import Interval, joined, mean_interval, variance_parts, wilson
from icl_bench.analysis.statistics.meeting import Meeting, meet


class Candidate(NamedTuple):
    """One point among others."""

    grid: Grid
    """Its predictions; its draws are common with another's where their numbers are equal and ..."""
    source: str
    """... this is too: what the draws are of."""
    k: int
    judged: bool = True
    """Whether its draws can speak for others: a single one of what is drawn cannot."""

    def meet(self, other: Candidate) -> Meeting:
        """What of their draws and test examples can be compared."""
        return meet(self.grid, other.grid, self.source == other.source)


class Losses(NamedTuple):
    """p values of points against the best, whichever that is; ``(points,)`` each."""

    large: np.ndarray
    """Of a loss of the margin or more: small where less is lost."""
    none: np.ndarray
    """Of no loss at all: small where the point is not the best."""
    contrasts: Mapping[tuple[int, int], Contrast]
    """Each point and each other candidate, by their places -> how they compare."""


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
        return Losses(np.zeros(len(of)), np.ones(len(of)), {})
    contrasts, testable = _contrasts(candidates, pairs, scores)
    shifted = [c._replace(centre=c.centre + margin) for c in contrasts]
    large = np.where(testable, p_values(shifted, "greater"), 1.0).reshape(len(of), -1)
    none = np.where(testable, p_values(contrasts, "less"), 1.0).reshape(len(of), -1)
    beside = dict(zip(pairs, contrasts, strict=True))
    return Losses(large.max(axis=1), np.minimum(none.min(axis=1) * none.shape[1], 1.0), beside)


def leads(candidates: Sequence[Candidate], scores: np.ndarray) -> np.ndarray:
    """How sure it is that one candidate scores more than another: p values ``(candidates, candidates)``.

    ``[i, j]`` is small where i scores more than j: the one-sided p value of :func:`losses` without a margin,
    corrected for nothing. It is 1 where i is j, where one of them is not ``judged``, and where they
    have no score in common.
    """
    p = np.ones((len(candidates), len(candidates)))
    pairs = [(i, j) for i in range(len(candidates)) for j in range(i)]
    if pairs:
        contrasts, testable = _contrasts(candidates, pairs, scores)
        greater = p_values(contrasts, "greater")
        for (i, j), more, tested in zip(pairs, greater.tolist(), testable.tolist(), strict=True):
            if tested:
                p[i, j], p[j, i] = more, 1 - more
    return p


Sample = list[tuple[tuple[int, ...], np.ndarray]]
"""Scores ``(draws, test)`` of each side of a comparison, or of both in common draws, with the places of the
candidates that they are of."""


def _contrasts(
    candidates: Sequence[Candidate], pairs: Sequence[tuple[int, int]], scores: np.ndarray
) -> tuple[list[Contrast], np.ndarray]:
    """Pairs of candidates compared, in common draws where there are any, and which can be tested.

    How far draws differ is moderated by all candidates
    (:func:`icl_bench.analysis.statistics.draw_ratios.moderated`), and of common draws by all pairs.
    """
    contrasts: list[Contrast] = []
    samples: list[Sample] = []
    for i, j in pairs:
        met = candidates[i].meet(candidates[j])
        sides = met.point.values(scores), met.base.values(scores)
        contrasts.append(contrast(*sides, met.matched))
        if not sides[0].size:
            samples.append([])
        elif met.matched:
            samples.append([((min(i, j), max(i, j)), sides[0] - sides[1])])
        else:
            samples.append([((at,), side) for at, side in zip((i, j), sides, strict=True)])
    testable = [
        candidates[i].judged and candidates[j].judged and not math.isnan(of.difference)
        for (i, j), of in zip(pairs, contrasts, strict=True)
    ]
    return _moderated_contrasts(candidates, contrasts, samples), np.array(testable)


def _moderated_contrasts(
    candidates: Sequence[Candidate], contrasts: Sequence[Contrast], samples: Sequence[Sample]
) -> list[Contrast]:
    """The contrasts with the mean squares by draws of each sample moderated by those of the others.

    ``samples`` names the sample of each side of a contrast, or of both, and has its scores.
    """
    seen: dict[tuple[int, ...], tuple[DrawSquares, np.ndarray]] = {}
    for of, sides in zip(contrasts, samples, strict=True):
        several = [(name, side) for name, side in sides if len(side) > 1]
        for (name, side), part in zip(several, of.of_draws, strict=True):
            if name not in seen:
                seen[name] = DrawSquares(*part), TwoWayLayout(side).by_draw
    ratios: dict[tuple[int, ...], tuple[float, float]] = {}
    for size in (1, 2):
        names = [name for name in seen if len(name) == size]
        ks = [min(candidates[place].k for place in name) for name in names]  # what has fewer differs more
        after = moderated([seen[name][0] for name in names], [seen[name][1] for name in names], ks)
        for name, squares in zip(names, after, strict=True):
            if squares.residual > 0:
                ratios[name] = squares.draws / squares.residual, squares.freedom
    result = []
    for of, sides in zip(contrasts, samples, strict=True):
        names = [name for name, side in sides if len(side) > 1]
        parts = [
            (ratios[name][0] * part[1], part[1], ratios[name][1]) if name in ratios else part
            for name, part in zip(names, of.of_draws, strict=True)
        ]
        result.append(of._replace(of_draws=tuple(parts)))
    return result


def best_interval(points: Sequence[np.ndarray], best: int, level: float = 0.95) -> Interval:
    """Return the mean of the point ``best``, the highest of all, and limits for its own.

    ``points`` are scores, ``(draws, test)`` each.

    The highest of many means is too high, as that is what it was chosen for. So its lower limit is
    one of those that hold for all points at once (Bonferroni), with the draws' variance moderated
    (:func:`icl_bench.analysis.statistics.draw_ratios.moderated`): three draws alone have no useful
    limit at so small an error. The upper limit is that of the point alone: no true mean is higher
    than the truly best one's, so that a mean that was chosen for being high is hardly ever too
    low. The lower one is never closer than that of
    :func:`icl_bench.analysis.statistics.intervals.mean_interval`, which a single point has.

    Raises ValueError as that does.
    """
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
