"""The difference of two means over draws and test examples: limits and tests that hold their level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from icl_bench.analysis.statistics.gaps import TwoWayLayout

Alternative = Literal["two-sided", "greater", "less"]


NODES = 128
"""Nodes of numerical integrals. The relative error of p is a thousandth, or up to a twentieth if both sides have their
own draws.
"""


POWER = 0.8
"""The share of samples in which a test should find a difference."""


class Contrast(NamedTuple):
    """Two sides compared on common test examples, with the variance of each part."""

    mean: float
    """The mean of the first side."""
    difference: float
    """The mean of the first side minus that of the second."""
    centre: float
    """The difference after adding two test examples, one in favour of each side: the middle of the limits."""
    of_test: float
    """Variance of the difference by test examples."""
    examples: int
    of_draws: tuple[tuple[float, float, float], ...]
    """For each sample of draws: mean square by draws and residual, both divided by the number of scores, and degrees of
    freedom (fractional if moderated). None for a single draw.
    """


def contrast(first: np.ndarray, second: np.ndarray, matched: bool) -> Contrast:
    """Compare scores ``(draws, test)`` of two sides on the same test examples; NaN without scores.

    With ``matched``, row d of both sides is the same draw; then the numbers of draws are equal, and a score counts if
    the other side has one too. NaN is a gap (:class:`icl_bench.analysis.statistics.gaps.TwoWayLayout`).

    The datum is the difference of an example, averaged over its draws, as in a t-test. Following Bonett & Price (2012,
    J. Educ. Behav. Stat. 37:479) for shares of one sample, one example is added in favour of each side, with the
    average size of observed differences, because sides that agree on all observed examples may differ on others.
    """
    if not first.size:
        return Contrast(math.nan, math.nan, math.nan, math.nan, 2, ())
    sides = TwoWayLayout(first), TwoWayLayout(second)
    both = TwoWayLayout(first - second) if matched else None
    gaps = both is not None and not both.whole
    by_test = both.by_test if both and gaps else sides[0].by_test - sides[1].by_test
    squares, differing = float((by_test**2).sum()), np.count_nonzero(by_test)
    extra = squares / differing if differing else 1.0
    count = len(by_test) + 2
    centre = float(by_test.sum()) / count
    of_test = (squares + 2 * extra - count * centre**2) / (count - 1) / count
    samples = sides if both is None else (both,)
    parts = tuple(_of_draws(sample) for sample in samples if len(sample.scores) > 1)
    return Contrast(sides[0].mean, float(by_test.mean()), centre, of_test, count, parts)


def _of_draws(sample: TwoWayLayout) -> tuple[float, float, float]:
    """Mean squares of a two-way layout ``(draws, test)``, by draws and of the residual."""
    squares, size = sample.squares, sample.scores.size
    return float(squares.draws / size), float(squares.residual / size), sample.freedom


def judge(
    contrasts: Sequence[Contrast], alternative: Alternative = "two-sided", level: float | np.ndarray = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lower limits, upper limits and p values of the true differences, ``(contrasts,)``.

    Draws and test examples are crossed random effects. With few draws the variance of draws is uncertain: it is
    ``max(MS_draw (draws - 1) / W - MS_residual, 0) / (draws test)`` with W a chi-square of draws - 1 degrees of freedom
    (generalized pivotal quantity; Weerahandi 1993, J. Am. Stat. Assoc. 88:899), and by test examples the usual one with
    Student's t. The p value is the mean over W: a t-test over test examples if draws have no effect, and over draws if
    only they have one.

    p is two-sided, or for the first side being ``greater`` or ``less``. Limits are two-sided and exclude 0 if the
    two-sided p is below ``1 - level``; levels may differ: ``(contrasts,)``.

    In simulations without a difference, with 250 test examples, p was 0.05 or less in 4.5 to 5.3% of samples with one
    draw, 0.3 to 3.5% with two, 0.7 to 4.1% with three and 2.4 to 4.8% with ten, more with larger effects of draws; 95%
    limits contained the difference in the others. So tests hold their level, but with two or three draws limits are too
    wide (up to 99.7%) if draws have hardly any effect, because so little data cannot show this. Joining two t quantiles
    as in ``intervals.mean_interval`` is right for three draws and 0.05 (93 to 98%), but p of 0.01 occurred in up to 4%
    of samples, and with two draws 0.05 in 11%, which is unsuitable for a test that is corrected for many k.
    """
    half = half_widths(contrasts, level)
    middle = np.array([c.centre for c in contrasts])
    return middle - half, middle + half, p_values(contrasts, alternative)


def p_values(contrasts: Sequence[Contrast], alternative: Alternative = "two-sided") -> np.ndarray:
    """The p values of :func:`judge`, ``(contrasts,)``, without the limits, which take most of its time."""
    from icl_bench.analysis.statistics.special import stdtr

    centre = np.array([c.centre for c in contrasts])[:, None]
    freedom = np.array([c.examples - 1 for c in contrasts])[:, None]
    deviation, weight = _deviations(contrasts)
    ratio = centre / deviation
    if alternative == "two-sided":
        p = 2 * stdtr(freedom, -abs(ratio))
    else:
        p = stdtr(freedom, -ratio if alternative == "greater" else ratio)
    return np.asarray((p * weight).sum(axis=1))


def detectable(contrasts: Sequence[Contrast], half: np.ndarray) -> np.ndarray:
    """The smallest true difference that the test finds in ``POWER`` of samples, ``(contrasts,)``.

    ``half`` is the half width of the test's limits: a larger difference is found. Variances are those of the contrasts,
    treated as known.
    """
    from icl_bench.analysis.statistics.special import ndtri

    variance = [c.of_test + sum(max(by_draw - residual, 0.0) for by_draw, residual, _ in c.of_draws) for c in contrasts]
    return np.asarray(half + ndtri(POWER) * np.sqrt(variance))


def _deviations(contrasts: Sequence[Contrast]) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations of differences, ``(contrasts, points)``, and weights of the points."""
    variance = np.empty((len(contrasts), NODES))
    weight = np.empty((len(contrasts), NODES))
    for number, c in enumerate(contrasts):
        variance[number], weight[number] = c.of_test, 1.0
        for sample, (by_draw, residual, freedom) in enumerate(c.of_draws):
            quantiles, dense = _chi_square(freedom, sample)
            variance[number] += np.maximum(by_draw * freedom / quantiles - residual, 0)
            weight[number] *= dense
    return np.sqrt(variance), weight / weight.sum(axis=1, keepdims=True)


@lru_cache(maxsize=1024)
def _chi_square(freedom: float, sample: int) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles of a chi-square, dense near 0, where p is decided, and the weight of each.

    A second sample's quantiles have a different order: together they form a lattice in the unit square.
    """
    from icl_bench.analysis.statistics.special import gammaincinv

    place = (np.arange(NODES) + 0.5) / NODES
    if sample:
        place = (place * NODES * 0.6180339887498949) % 1
    return 2 * gammaincinv(freedom / 2, place**3), place**2


def half_widths(contrasts: Sequence[Contrast], level: float | np.ndarray) -> np.ndarray:
    """The differences at which the two-sided p is ``1 - level``, ``(contrasts,)``.

    Computed by Newton's method from the smallest deviation: p is convex there, so no step goes too far.
    """
    from icl_bench.analysis.statistics.special import gammaln, stdtr, stdtrit

    deviation, weight = _deviations(contrasts)
    freedom = np.array([c.examples - 1 for c in contrasts])[:, None]
    level = np.broadcast_to(level, len(contrasts))[:, None]
    half = deviation.min(axis=1, keepdims=True) * stdtrit(freedom, (1 + level) / 2)
    scale = np.exp(gammaln((freedom + 1) / 2) - gammaln(freedom / 2)) / np.sqrt(np.pi * freedom)
    for _ in range(100):
        ratio = half / deviation
        above = (2 * stdtr(freedom, -ratio) * weight).sum(axis=1, keepdims=True) - (1 - level)
        density = scale * (1 + ratio**2 / freedom) ** (-(freedom + 1) / 2)
        step = above / (2 * density / deviation * weight).sum(axis=1, keepdims=True)
        half = half + step
        if not (abs(step) > 1e-9 * half).any():
            break
    return np.asarray(half[:, 0])
