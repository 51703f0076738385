"""Ratios of means over windows of texts: texts are the sampled unit, with windows within them."""

from __future__ import annotations

import math

import numpy as np

TEXTS, WINDOWS = "texts", "windows of one text"
"""The sampled unit of an interval."""


def sampled(values: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Sums of the values ``(windows,)`` of each text, or the values themselves if there is one text.

    ``texts`` are the texts of the windows. Windows of one text are similar, so more of them do not show how much texts
    differ. Windows of a single text are a sample of that text alone.
    """
    _, number = np.unique(texts, return_inverse=True)
    return np.bincount(number, weights=values) if number.any() else values


def interval_over(texts: np.ndarray) -> str:
    """The sampled unit of :func:`ratio_limits` of :func:`sampled` values."""
    return TEXTS if len(np.unique(texts)) > 1 else WINDOWS


def ratio_limits(above: np.ndarray, below: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Return the limits of the ratio of the means of two paired samples, ``(units,)`` each.

    A ratio R is within the limits if the mean of ``above - R below`` is not significantly different
    from 0 by Student's t (Fieller 1954, J. R. Stat. Soc. B 16:175). If ``below`` is 1, they are those
    of the t-test. NaN with fewer than two units, and if the mean of ``below`` may be 0: then any
    ratio is possible.
    """
    from icl_bench.analysis.statistics.special import stdtrit

    count = len(above)
    if count < 2:
        return math.nan, math.nan
    mean, base = float(above.mean()), float(below.mean())
    reach = float(stdtrit(count - 1, (1 + level) / 2)) ** 2 / count
    (of_above, of_both), (_, of_below) = reach * np.cov(above, below)
    certain = base**2 - of_below
    if not certain > 0:
        return math.nan, math.nan
    middle = mean * base - of_both
    spread = base**2 * of_above - 2 * mean * base * of_both + mean**2 * of_below
    half = math.sqrt(max(spread - of_above * of_below + of_both**2, 0.0))
    return float((middle - half) / certain), float((middle + half) / certain)


def differs(values: np.ndarray) -> float:
    """The two-sided p of a mean of 0 by Student's t, ``(units,)``; NaN with fewer than two units."""
    from icl_bench.analysis.statistics.special import stdtr

    count, mean = len(values), float(values.mean())
    if count < 2 or math.isnan(mean):
        return math.nan
    error = float(values.std(ddof=1)) / math.sqrt(count)
    return 2 * float(stdtr(count - 1, -abs(mean) / error)) if error else float(mean == 0)
