"""The best of several points: the losses of others, and limits for its mean."""

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
    """Its predictions. Its draws are common with another's if their numbers are equal and ..."""
    source: str
    """... this is equal, too: the source of the draws."""
    k: int
    judged: bool = True
    """Whether its draws generalise to other draws. A single random draw does not."""

    def meet(self, other: Candidate) -> Meeting:
        """The comparable parts of their draws and test examples."""
        return meet(self.grid, other.grid, self.source == other.source)


class Losses(NamedTuple):
    """P values of points against the best, whichever that is; ``(points,)`` each."""

    large: np.ndarray
    """For a loss of the margin or more: small if less is lost."""
    none: np.ndarray
    """For no loss at all: small if the point is not the best."""
    contrasts: Mapping[tuple[int, int], Contrast]
    """Pair of positions, of a point and another candidate -> their comparison."""


def losses(candidates: Sequence[Candidate], scores: np.ndarray, of: Sequence[int], margin: float) -> Losses:
    """Test the losses of the candidates at the positions ``of`` against the best of all candidates.

    ``scores`` is a column of the frame of the candidates' grids.

    The best candidate is unknown. A point loses less than ``margin`` if it does so against each other one, so ``large``
    is the largest of the single p values and needs no correction for their number (Hsu 1984, Ann. Stat. 12:1136; an
    intersection-union test, Berger 1982, Technometrics 24:295). It is not the best if some other one is better:
    ``none`` is the smallest times their number (Bonferroni). Neither is corrected for the points ``of``.

    Single p values are one-sided, those of :func:`icl_bench.analysis.statistics.contrast.judge`; test examples are
    paired, and draws are paired if both have common ones of one source
    (:func:`icl_bench.analysis.statistics.meeting.meet`). They are 1 if a candidate is not ``judged``, or if two have no
    common score.
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
    """P values of one candidate scoring more than another: ``(candidates, candidates)``.

    ``[i, j]`` is small if i scores more than j: the uncorrected one-sided p value of :func:`losses` without a margin.
    It is 1 if i is j, if one of them is not ``judged``, and if they have no common score.
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
"""Scores ``(draws, test)`` of one side of a comparison, or of both in common draws, with the positions of their
candidates.
"""


def _contrasts(
    candidates: Sequence[Candidate], pairs: Sequence[tuple[int, int]], scores: np.ndarray
) -> tuple[list[Contrast], np.ndarray]:
    """Compare pairs of candidates, in common draws if there are any, and mark those that can be tested.

    The variance of draws is moderated over all candidates
    (:func:`icl_bench.analysis.statistics.draw_ratios.moderated`), and that of common draws over all pairs.
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
    """Moderate the mean squares by draws of each sample by those of the others.

    ``samples`` has the sample of each side of a contrast, or of both, with its scores.
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
        ks = [min(candidates[place].k for place in name) for name in names]  # fewer demonstrations vary more
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

    The highest of many means is biased upwards by its selection. So its lower limit holds simultaneously for all points
    (Bonferroni), with the draws' variance moderated (:func:`icl_bench.analysis.statistics.draw_ratios.moderated`),
    because three draws alone have no useful limit at such a small error. The upper limit is that of the point alone: no
    true mean exceeds that of the truly best point, so a mean selected for being high is hardly ever too low. The lower
    limit is never closer than that of :func:`icl_bench.analysis.statistics.intervals.mean_interval`, which applies to a
    single point.

    Raises ValueError like that function.
    """
    alone = mean_interval(points[best], level)
    upper = 1 - (1 - level) / 2 / len(points)
    if min(points[best].shape) == 1 or np.nanmax(points[best]) == np.nanmin(points[best]):
        return alone._replace(low=mean_interval(points[best], 2 * upper - 1).low)
    variance, quantile = _moderated_spread(points, best, upper)
    low = wilson(alone.mean, alone.mean * (1 - alone.mean) / variance, quantile).low
    return alone._replace(low=min(low, alone.low))


def _moderated_spread(points: Sequence[np.ndarray], at: int, upper: float) -> tuple[float, float]:
    """``intervals.spread`` of one point, with its draws' variance moderated by those of the others."""
    drawn = [place for place, scores in enumerate(points) if len(scores) > 1]
    layouts = [TwoWayLayout(points[place]) for place in drawn]
    squares = [DrawSquares(float(of.squares.draws), float(of.squares.residual), of.freedom) for of in layouts]
    after = moderated(squares, [of.by_draw for of in layouts])
    own = drawn.index(at)
    of_draws = after[own]
    parts = variance_parts(layouts[own].squares._replace(draws=of_draws.draws), points[at].size)
    return joined(parts, (of_draws.freedom, points[at].shape[1] - 1), upper)
