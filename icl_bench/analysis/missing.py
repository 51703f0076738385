"""Whether scores are missing at random: do test examples with many gaps score like the others?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import Grid, partition
from icl_bench.analysis.statistics.paired import ALPHA, holm
from icl_bench.results.cells import SETTING
from icl_bench.wording import percent

if TYPE_CHECKING:
    import pandas as pd

FEW = 5
"""Fewer test examples with many gaps, or with few, tell nothing."""


class MissingScores(NamedTuple):
    """The scores that the points of a table lack, a value a point."""

    missing: np.ndarray
    """Scores that there would be if each draw of a point had every test example of its curve."""
    gap_difference: np.ndarray
    gap_p: np.ndarray
    """Of the curve: see :func:`missing_scores`. NaN for points that lack nothing."""


def missing_scores(
    keys: pd.DataFrame, grids: Sequence[Grid], score: np.ndarray, by: Sequence[str] = SETTING
) -> MissingScores:
    """Count the scores that points lack, and test for each curve whether they lack them at random.

    ``keys`` has the columns of a setting, a row a point; ``grids`` are the points' predictions, of
    whose frame ``score`` is a column. With ``by``, what has the same values in these columns is
    taken together instead of a curve. A test example has many gaps where it lacks more scores, over
    all draws and points of the curve, than the mean example; where few scores are missing, these
    are all examples with a gap. ``gap_difference`` is their mean score minus that of the others,
    each example's over the draws and points that have it, these taken from their own means.
    ``gap_p`` is Welch's (1947, Biometrika 34:28), two-sided, corrected over the
    curves (Holm). NaN where there is too little to compare.

    It sees that hard or easy examples fail. It does not see that answers fail for what they are, or
    examples that fail everywhere: they have no score to compare.
    """
    count = np.zeros(len(keys), dtype=np.int64)
    difference, p = np.full((2, len(keys)), np.nan)
    _, curves = partition(keys, by)
    for at in curves:
        points = [grids[place] for place in at]
        tests = reduce(np.union1d, [point.tests for point in points])
        values = [point.values(score) for point in points]
        known = np.array([np.count_nonzero(~np.isnan(matrix)) for matrix in values])
        if not known.any():
            continue  # nothing has a score here
        count[at] = [len(point.draws) * len(tests) for point in points] - known
        if count[at].any():
            difference[at], p[at] = _compared(points, values, tests)
    first = np.array([at[0] for at in curves], dtype=int)
    for at, corrected in zip(curves, holm(p[first]), strict=True):
        p[at] = corrected
    torn = count > 0
    return MissingScores(count, np.where(torn, difference, np.nan), np.where(torn, p, np.nan))


def _compared(points: Sequence[Grid], values: Sequence[np.ndarray], tests: np.ndarray) -> tuple[float, float]:
    """The difference of examples with many gaps from the others, and its p."""
    total, number = np.zeros((2, len(tests)))
    for point, matrix in zip(points, values, strict=True):
        present = ~np.isnan(matrix)
        draws, columns = present.any(axis=1), present.any(axis=0)
        if not draws.any():
            continue
        matrix = matrix[draws][:, columns]
        layout = TwoWayLayout(matrix)
        left = matrix - layout.mean - layout.effects[:, None]
        places = np.searchsorted(tests, point.tests[columns])
        total[places] += np.nansum(left, axis=0)
        number[places] += present[draws][:, columns].sum(axis=0)
    known, torn = number > 0, number < number.mean()
    mean = total / np.maximum(number, 1)
    many, few = mean[known & torn], mean[known & ~torn]
    if min(len(many), len(few)) < FEW:
        return math.nan, math.nan
    return float(many.mean() - few.mean()), _welch(many, few)


def _welch(first: np.ndarray, second: np.ndarray) -> float:
    """The two-sided p of a difference of means; importing ``scipy.stats`` takes longer than all."""
    from icl_bench.analysis.statistics.special import stdtr

    difference = abs(first.mean() - second.mean())
    parts = [side.var(ddof=1) / len(side) for side in (first, second)]
    variance = sum(parts)
    if variance < 1e-18:
        return float(difference < 1e-9)
    freedom = variance**2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True))
    return float(2 * stdtr(freedom, -difference / variance**0.5))


def not_at_random(curves: pd.DataFrame) -> pd.DataFrame:
    """The points of curves whose missing scores are not missing at random, the first of each."""
    return curves[curves["gap_p"] <= ALPHA].drop_duplicates(SETTING)


def in_words(difference: float, p: float) -> str:
    """How the test rows of a curve differ that have many gaps."""
    side = "below" if difference < 0 else "above"
    shown = "p < 0.0001" if p < 0.0001 else f"p = {p:.4f}"
    return (
        f"missing not at random: test rows with many gaps score {percent(abs(difference))} points "
        f"{side} the others ({shown})"
    )
