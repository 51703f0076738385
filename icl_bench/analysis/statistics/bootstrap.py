"""A bootstrap over draws and test examples, for what has no formula: saturation, calibration."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icl_bench.analysis.statistics.intervals import Interval


class Counts(NamedTuple):
    """How often each draw and each test example is in each resample, as float."""

    draws: np.ndarray
    """``(resamples, draws)``"""
    tests: np.ndarray
    """``(resamples, test)``"""


def resample(rng: np.random.Generator, resamples: int, draws: int, tests: int) -> Counts:
    """Draw as many draws, and as many test examples, as there are, with replacement."""

    def counts(size: int) -> np.ndarray:
        # by far faster than Generator.multinomial
        chosen = rng.integers(size, size=(resamples, size)) + size * np.arange(resamples)[:, None]
        found = np.bincount(chosen.ravel(), minlength=resamples * size)
        return found.reshape(resamples, size).astype(float)

    return Counts(counts(draws), counts(tests))


def means(scores: np.ndarray, counts: Counts, student: bool = True) -> np.ndarray:
    """Return the mean of scores ``(..., draws, test)`` in each resample, ``(..., resamples)``.

    Resampling both axes of a matrix at once (the pigeonhole bootstrap; Owen & Eckles 2012, Ann.
    Appl. Stat. 6:895) counts the residual variance three times, the draws' variance
    (draws - 1) / draws times, and takes three draws for a normal distribution. So only the means
    of draws and of test examples are resampled, each of these corrected: the residual is counted
    once, with the draws or, where these differ by no more than it, with the test examples; and
    deviations are stretched by sqrt(n / (n - 1)) and, for draws, by the ratio of Student's 97.5%
    quantile to the normal one (Hesterberg 2015, Am. Stat. 69:371, on narrowness). This ratio is
    left out without ``student``, where many means are added up and so many would rarely all be
    far off.
    """
    from scipy.special import ndtri, stdtrit

    by_draw, by_test = scores.mean(axis=-1), scores.mean(axis=-2)
    mean = by_draw.mean(axis=-1, keepdims=True)
    by_draw, by_test = by_draw - mean, by_test - mean
    of_draw, of_test = _stretch(scores, mean[..., 0], by_draw, by_test)
    if student and scores.shape[-2] > 1:
        of_draw = of_draw * stdtrit(scores.shape[-2] - 1, 0.975) / ndtri(0.975)
    moved = of_draw * (by_draw @ counts.draws.T) / scores.shape[-2]
    return np.asarray(mean + moved + of_test * (by_test @ counts.tests.T) / scores.shape[-1])


def _stretch(
    scores: np.ndarray, mean: np.ndarray, by_draw: np.ndarray, by_test: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """By what to multiply the deviations of draws and of test examples, ``(..., 1)`` each."""
    draws, test = scores.shape[-2:]
    tests_alone = np.sqrt(test / max(test - 1, 1))
    if draws == 1:
        return np.zeros((*scores.shape[:-2], 1)), np.full((*scores.shape[:-2], 1), tests_alone)
    residual = (scores**2).mean(axis=(-2, -1)) - mean**2
    residual -= (by_draw**2).mean(axis=-1) + (by_test**2).mean(axis=-1)
    ms_residual = residual * draws * test / ((draws - 1) * max(test - 1, 1))
    ms_draw = test * (by_draw**2).sum(axis=-1) / (draws - 1)
    ms_test = draws * (by_test**2).sum(axis=-1) / max(test - 1, 1)
    differ = ms_draw > ms_residual
    left = np.where(differ, 1 - ms_residual / np.maximum(ms_test, 1e-300), 1).clip(0)
    draws_alone = np.sqrt(draws / (draws - 1))
    return (draws_alone * differ)[..., None], (tests_alone * np.sqrt(left))[..., None]


def interval(scores: np.ndarray, rng: np.random.Generator, resamples: int = 2000) -> Interval:
    """Return the mean of scores ``(draws, test)`` and its 95% percentile limits.

    For the paired difference of two matrices, pass the matrix of differences.

    No table uses these limits; they check the formulas. In simulations of right and wrong answers
    with 250 test examples they held the true mean in 95 to 97% of samples with one draw (the mean
    of that draw), 86 to 97% with two, 90 to 97% with three and 93 to 96% with ten;
    ``intervals.mean_interval`` in 96, 87 to 97, 92 to 97 and 94 to 97%, so accuracies have that.
    Both are too narrow where two or three draws spread widely, above all near 100%. True
    differences they held in 96, 89 to 98, 93 to 97 and 95 to 96%; ``contrast.judge`` in 95, 96 to
    99.8, 96 to 99 and 95 to 97%: differences have that, as its tests hold their level too. Plain
    percentiles of the pigeonhole bootstrap held means in 79 to 98% with three draws. A single draw
    says nothing of the mean over draws: where these differ by seven points, limits of any kind
    from one draw held it in 46%.
    """
    counts = resample(rng, resamples, *scores.shape)
    low, high = np.quantile(means(scores, counts), [0.025, 0.975])
    return Interval(float(scores.mean()), float(low), float(high))
