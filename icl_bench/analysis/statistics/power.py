"""The power of a comparison, from the variances of scores by draws and test examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from icl_bench.analysis.statistics.contrast import POWER, Contrast, half_widths
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.paired import ALPHA

QUANTILES = 48
"""Quantiles of the mean square by draws, which varies by chance."""

MOST_DRAWS, MOST_ROWS = 1000, 1_000_000
"""The maximum numbers considered; beyond these, a difference cannot be shown."""


class Components(NamedTuple):
    """Variances of the difference of two points for single scores; shares of 1, squared."""

    tests: float
    """By test example: the variance of differences between test examples."""
    draws: tuple[float, ...]
    """By draw: one value if both points have the same draws, one each if they have their own; empty if nothing is
    random.
    """
    rest: tuple[float, ...]
    """The residual of one score within its draw and test example, in the same order."""

    def contrast(self, draws: int, rows: int) -> Contrast:
        """The expected contrast of this number of draws and test rows, with these variances and no difference."""
        of_test = self.tests + sum(self.rest) / draws
        parts = (
            ((by_draw + rest / rows) / draws, rest / rows / draws, float(draws - 1))
            for by_draw, rest in zip(self.draws, self.rest, strict=True)
        )
        return Contrast(math.nan, 0.0, 0.0, of_test / (rows + 2), rows + 2, tuple(parts) if draws > 1 else ())


def components(first: np.ndarray, second: np.ndarray, matched: bool) -> Components | None:
    """Estimate the variances of two points ``(draws, test)`` on the same test examples; NaN is a gap.

    With ``matched``, row d of both is the same draw. Estimated by analysis of variance (Searle, Casella & McCulloch
    1992, section 4.5), negative values set to 0. A single draw counts as not random. None for fewer than two test
    examples.
    """
    samples = [TwoWayLayout(first - second)] if matched else [TwoWayLayout(first), TwoWayLayout(second)]
    if not first.size or first.shape[1] < 2:
        return None
    by_test = samples[0].by_test if matched else samples[0].by_test - samples[1].by_test
    tests, draws, rest = float(by_test.var(ddof=1)), [], []
    for sample in samples:
        of_draws, rows = sample.scores.shape
        if of_draws > 1:
            residual = float(sample.squares.residual)
            draws.append(max(float(sample.squares.draws) - residual, 0.0) / rows)
            rest.append(residual)
            tests -= residual / of_draws
    return Components(max(tests, 0.0), tuple(draws), tuple(rest))


def power(of: Components, draws: int, rows: int, difference: float) -> float:
    """The share of samples in which a true ``difference`` (a share of 1) is found, either way.

    The test is that of :func:`icl_bench.analysis.statistics.contrast.judge`, two-sided: its threshold depends on the
    observed variance of draws (a chi-square).
    """
    return _power(of, draws, rows)(difference)


def _power(of: Components, draws: int, rows: int) -> Callable[[float], float]:
    from icl_bench.analysis.statistics.special import gammaincinv, ndtr

    mean = of.contrast(draws, rows)
    deviation = math.sqrt(of.tests / rows + sum(of.draws) / draws + sum(of.rest) / rows / draws)
    places = (np.arange(QUANTILES) + 0.5) / QUANTILES
    seen = []
    for number in range(QUANTILES if mean.of_draws else 1):
        parts = []
        for sample, (by_draw, residual, freedom) in enumerate(mean.of_draws):
            place = (places[number] + sample * 0.5 + sample * number * 0.6180339887498949) % 1
            parts.append((by_draw * 2 * gammaincinv(freedom / 2, place) / freedom, residual, freedom))
        seen.append(mean._replace(of_draws=tuple(parts)))
    half = half_widths(seen, 1 - ALPHA)

    def found(difference: float) -> float:
        if not deviation:
            return float(difference > 0)
        return float((ndtr((difference - half) / deviation) + ndtr((-difference - half) / deviation)).mean())

    return found


def smallest(of: Components, draws: int, rows: int) -> float:
    """The smallest true difference that is found in ``POWER`` of samples; infinite if none is."""
    found = _power(of, draws, rows)
    low, high = 0.0, 1.0
    if found(high) < POWER:
        return math.inf
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if found(middle) < POWER else (low, middle)
    return high


def draws_needed(of: Components, rows: int, difference: float) -> int | None:
    """The fewest draws that find the difference in ``POWER`` of samples; None if more draws do not help."""
    return _fewest(lambda draws: power(of, draws, rows, difference) >= POWER, 2, MOST_DRAWS)


def rows_needed(of: Components, draws: int, difference: float) -> int | None:
    """The fewest test rows that find the difference in ``POWER`` of samples; None if more rows do not help."""
    return _fewest(lambda rows: power(of, draws, rows, difference) >= POWER, 10, MOST_ROWS)


def _fewest(enough: Callable[[int], bool], least: int, most: int) -> int | None:
    """The smallest sufficient number from ``least`` to ``most``, if larger ones suffice, too."""
    high = least
    while not enough(high):
        if high >= most:
            return None
        high = min(2 * high, most)
    low = max(high // 2, least - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
