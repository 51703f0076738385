"""A bootstrap over draws and test examples, for statistics without a formula: saturation, calibration."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.intervals import variance_parts
from icl_bench.analysis.statistics.mean_squares import mean_squares

Streams: TypeAlias = Callable[[str], np.random.Generator]
"""Task -> its random generator, the same object each time."""


def stream_of(rng: np.random.Generator | Streams, task: object) -> np.random.Generator:
    """The random generator of a task. A single one is that of all tasks."""
    return rng if isinstance(rng, np.random.Generator) else rng(str(task))


class Counts(NamedTuple):
    """How often each draw and each test example occurs in each resample, as float."""

    draws: np.ndarray
    """``(resamples, draws)``"""
    tests: np.ndarray
    """``(resamples, test)``"""


def resample(rng: np.random.Generator, resamples: int, draws: int, tests: int) -> Counts:
    """Sample draws and test examples with replacement, with their original numbers."""

    def counts(size: int) -> np.ndarray:
        # much faster than Generator.multinomial
        chosen = rng.integers(size, size=(resamples, size)) + size * np.arange(resamples)[:, None]
        times = np.bincount(chosen.ravel(), minlength=resamples * size)
        return times.reshape(resamples, size).astype(float)

    return Counts(counts(draws), counts(tests))


def means(scores: np.ndarray, counts: Counts, student: bool = True) -> np.ndarray:
    """Return the mean of scores ``(..., draws, test)`` in each resample, ``(..., resamples)``.

    Resampling both axes of a matrix at once (the pigeonhole bootstrap; Owen & Eckles 2012, Ann. Appl. Stat. 6:895)
    counts the residual variance three times, the draws' variance (draws - 1) / draws times, and treats three draws as a
    normal distribution. So only the means of draws and of test examples are resampled, with corrections: the residual
    is counted once, with the draws or, if these differ by no more than the residual, with the test examples; and
    deviations are multiplied by sqrt(n / (n - 1)) and, for draws, by the ratio of Student's 97.5% quantile to the
    normal one (Hesterberg 2015, Am. Stat. 69:371, on narrowness). This ratio is omitted without ``student``, for sums
    of many means, which are rarely all far off.

    NaN is a gap. Means of draws and test examples, and their sampling variance, are then those of
    :class:`icl_bench.analysis.statistics.gaps.TwoWayLayout`. Every draw and every example needs a score.
    """
    from icl_bench.analysis.statistics.special import ndtri, stdtrit

    if np.isnan(scores).any():
        flat = scores.reshape(-1, *scores.shape[-2:])
        again = np.array([_with_gaps(matrix, counts, student) for matrix in flat])
        return again.reshape(*scores.shape[:-2], -1)
    by_draw, by_test = scores.mean(axis=-1), scores.mean(axis=-2)
    mean = by_draw.mean(axis=-1, keepdims=True)
    by_draw, by_test = by_draw - mean, by_test - mean
    of_draw, of_test = _stretch(scores)
    if student and scores.shape[-2] > 1:
        of_draw = of_draw * stdtrit(scores.shape[-2] - 1, 0.975) / ndtri(0.975)
    moved = of_draw * (by_draw @ counts.draws.T) / scores.shape[-2]
    return np.asarray(mean + moved + of_test * (by_test @ counts.tests.T) / scores.shape[-1])


def _with_gaps(scores: np.ndarray, counts: Counts, student: bool) -> np.ndarray:
    """:func:`means` of one ``(draws, test)`` with gaps: deviations vary as the two parts do."""
    from icl_bench.analysis.statistics.special import ndtri, stdtrit

    layout = TwoWayLayout(scores)
    again = np.full(len(counts.tests), layout.mean)
    variances = variance_parts(layout.squares, scores.size)
    quantile = float(stdtrit(layout.freedom, 0.975) / ndtri(0.975)) if student else 1.0
    sides = ((layout.by_draw, counts.draws, quantile), (layout.by_test, counts.tests, 1.0))
    for variance, (values, count, wider) in zip(variances, sides, strict=True):
        apart = values - values.mean()
        squares = float((apart**2).sum()) / len(apart) ** 2
        if squares > 0:
            again += wider * np.sqrt(variance / squares) * (count @ apart) / len(apart)
    return again


def _stretch(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factors for the deviations of draws and of test examples, ``(..., 1)`` each."""
    draws, test = scores.shape[-2:]
    tests_alone = np.sqrt(test / max(test - 1, 1))
    if draws == 1:
        return np.zeros((*scores.shape[:-2], 1)), np.full((*scores.shape[:-2], 1), tests_alone)
    squares = mean_squares(scores)
    differ = squares.draws_differ
    left = np.where(differ, 1 - squares.residual / np.maximum(squares.tests, 1e-300), 1).clip(0)
    draws_alone = np.sqrt(draws / (draws - 1))
    return (draws_alone * differ)[..., None], (tests_alone * np.sqrt(left))[..., None]
