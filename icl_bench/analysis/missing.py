"""Whether scores are missing at random, by the scores of test examples with many gaps."""

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
from icl_bench.wording import percent, stated_p

if TYPE_CHECKING:
    import pandas as pd

FEW = 5
"""The minimum number of test examples with many gaps, and with few, for a test."""


class MissingScores(NamedTuple):
    """Missing scores of the points of a table, one value per point."""

    missing: np.ndarray
    """The number of scores that a point lacks, of one for each of its draws and each test example of its curve."""
    gap_difference: np.ndarray
    gap_p: np.ndarray
    """P value of the curve, see :func:`missing_scores`. NaN for points without gaps."""


def missing_scores(
    keys: pd.DataFrame, grids: Sequence[Grid], score: np.ndarray, by: Sequence[str] = SETTING
) -> MissingScores:
    """Count the missing scores of points, and test for each curve whether they are missing at random.

    ``keys`` has the columns of a setting, one row per point. ``grids`` are the points' predictions; ``score`` is a
    column of their frame. With ``by``, points with equal values in these columns are tested together instead of by
    curve. A test example has many gaps if it lacks more scores, over all draws and points of the curve, than the mean
    example; if few scores are missing, these are all examples with a gap. ``gap_difference`` is their mean score minus
    that of the others. An example's score is its mean deviation from the means of the draws and points that have it.
    ``gap_p`` is Welch's (1947, Biometrika 34:28), two-sided, corrected over the curves of a task (Holm). NaN if there
    is too little data.

    The test detects that hard or easy examples are missing. It does not detect answers that are missing because of
    their content, or examples that are missing everywhere, because these have no score.
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
            continue  # no example has a score here
        count[at] = [len(point.draws) * len(tests) for point in points] - known
        if count[at].any():
            difference[at], p[at] = _compared(points, values, tests)
    first = np.array([at[0] for at in curves], dtype=int)
    for of_task in partition(keys.iloc[first], ["task"])[1]:
        for number, corrected in zip(of_task.tolist(), holm(p[first[of_task]]), strict=True):
            p[curves[number]] = corrected
    torn = count > 0
    return MissingScores(count, np.where(torn, difference, np.nan), np.where(torn, p, np.nan))


def _compared(points: Sequence[Grid], values: Sequence[np.ndarray], tests: np.ndarray) -> tuple[float, float]:
    """The difference between examples with many gaps and the others, and its p."""
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
    """The two-sided p of a difference of means; avoids ``scipy.stats``, whose import is slow."""
    from icl_bench.analysis.statistics.special import stdtr

    difference = abs(first.mean() - second.mean())
    parts = [side.var(ddof=1) / len(side) for side in (first, second)]
    variance = sum(parts)
    if variance < 1e-18:
        return float(difference < 1e-9)
    freedom = variance**2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True))
    return float(2 * stdtr(freedom, -difference / variance**0.5))


def not_at_random(curves: pd.DataFrame) -> pd.DataFrame:
    """The first point of each curve whose scores are not missing at random."""
    return curves[curves["gap_p"] <= ALPHA].drop_duplicates(SETTING)


def in_words(difference: float, p: float) -> str:
    """Text about the difference of test rows with many gaps, by curve."""
    side = "below" if difference < 0 else "above"
    return (
        f"missing not at random: test rows with many gaps score {percent(abs(difference))} points "
        f"{side} the others ({stated_p(p)})"
    )
