"""The bootstrap over draws and test examples: its coverage, and what it corrects."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm
from support.predictions import answers

from icl_bench.analysis.statistics.bootstrap import Counts, means, resample

TRIALS, RESAMPLES, TEST = 1000, 500, 250
# accuracy of the median example in the median draw, spread by draw and by test example (log-odds)
SPREADS = [(0.5, 0.1, 1), (0.5, 0.3, 2), (0.9, 0.2, 2), (0.95, 0.3, 2)]


def covered(samples: np.ndarray, true: float) -> float:
    """The share of samples ``(trials, draws, test)`` whose 95% limits hold the true mean."""
    counts = resample(np.random.default_rng(1), RESAMPLES, *samples.shape[1:])
    low, high = np.quantile(means(samples, counts), [0.025, 0.975], axis=-1)
    return float(((low <= true) & (true <= high)).mean())


def true_mean(accuracy: float, *spreads: float) -> float:
    normal = norm.ppf((np.arange(4000) + 0.5) / 4000)
    odds = np.log(accuracy / (1 - accuracy))
    return float(expit(odds + np.linalg.norm(spreads) * normal).mean())


@pytest.mark.parametrize("draws", [3, 10])
@pytest.mark.parametrize(("accuracy", "by_draw", "by_test"), SPREADS)
def test_95_percent_limits_of_a_mean_hold_it_93_to_97_times_in_100(draws, accuracy, by_draw, by_test):
    rng = np.random.default_rng([draws, int(100 * accuracy)])
    of_draw = rng.normal(0, by_draw, (TRIALS, draws, 1))
    of_test = rng.normal(0, by_test, (TRIALS, 1, TEST))
    samples = answers(rng, (TRIALS, draws, TEST), accuracy, of_draw, of_test)
    assert 0.93 <= covered(samples, true_mean(accuracy, by_draw, by_test)) <= 0.97


@pytest.mark.parametrize(("accuracy", "by_test"), [(0.5, 1), (0.9, 2)])
def test_one_draw_has_limits_for_its_own_mean(accuracy, by_test):
    rng = np.random.default_rng(1)
    of_test = rng.normal(0, by_test, (TRIALS, 1, TEST))
    samples = answers(rng, (TRIALS, 1, TEST), accuracy, 0.0, of_test)
    assert 0.93 <= covered(samples, true_mean(accuracy, by_test)) <= 0.97


@pytest.mark.parametrize("draws", [1, 3, 10])
def test_limits_of_a_paired_difference_hold_it_93_to_97_times_in_100(draws):
    rng = np.random.default_rng(draws)
    shape = TRIALS, draws, TEST
    of_test = rng.normal(0, 2, (TRIALS, 1, TEST))
    by_draw = 0.1 if draws > 1 else 0.0  # a single draw cannot tell
    first, second = (answers(rng, shape, 0.8, rng.normal(0, by_draw, (TRIALS, draws, 1)), of_test) for _ in range(2))
    assert 0.93 <= covered(first - second, 0.0) <= 0.97


def test_a_pigeonhole_bootstrap_counts_the_residual_three_times_and_this_one_once():
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(200, 10, 100))
    counts = resample(rng, RESAMPLES, 10, 100)
    both = np.einsum("bd,ndt,bt->nb", counts.draws, samples, counts.tests, optimize=True) / 1000
    once = 1 / 1000
    assert both.var(axis=1).mean() == pytest.approx(3 * once, rel=0.1)
    # with ten draws, t / z stretches what is counted with the draws by a third
    assert once < means(samples, counts).var(axis=1).mean() < 1.5 * once


def test_a_resample_has_as_many_draws_and_test_examples_as_there_are():
    counts = resample(np.random.default_rng(0), 50, 3, 20)
    assert (counts.draws.sum(axis=1) == 3).all()
    assert (counts.tests.sum(axis=1) == 20).all()
    assert np.unique(counts.tests).tolist() == list(range(int(counts.tests.max()) + 1))


def test_the_mean_of_resamples_is_the_samples():
    rng = np.random.default_rng(0)
    scores = rng.random((4, 5, 60))
    again = means(scores, resample(rng, 20_000, 5, 60))
    assert again.mean(axis=-1) == pytest.approx(scores.mean(axis=(1, 2)), abs=2e-3)


def test_one_draws_deviations_are_those_of_test_examples_times_the_root_of_n_over_n_minus_1():
    scores = np.array([[[0.0, 0.0, 1.0]], [[1.0, 1.0, 1.0]]])
    tests = np.array([[1.0, 1, 1], [3, 0, 0], [0, 1, 2]])
    found = means(scores, Counts(np.ones((3, 1)), tests))
    expected = [1 / 3, 1 / 3 - 1 / 3 * 1.5**0.5, 1 / 3 + 1 / 3 * 1.5**0.5]
    assert found[0] == pytest.approx(expected)
    assert found[1].tolist() == [1, 1, 1]


def limits(scores: np.ndarray, seed: int) -> list[float]:
    again = means(scores, resample(np.random.default_rng(seed), RESAMPLES, *scores.shape))
    return np.quantile(again, [0.025, 0.975]).tolist()


def test_the_same_seed_gives_the_same_limits():
    scores = np.random.default_rng(0).random((3, 20))
    low, high = limits(scores, 7)
    assert limits(scores, 7) == [low, high]
    assert low < scores.mean() < high


def test_scores_that_are_all_the_same_have_no_width():
    assert limits(np.ones((3, 5)), 0) == [1.0, 1.0]


# -- gaps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("draws", [3, 10])
@pytest.mark.parametrize("share", [0.05, 0.2])
def test_limits_hold_with_gaps_as_without(draws, share):
    rng = np.random.default_rng([draws, int(100 * share)])
    trials = 300
    of_draw, of_test = rng.normal(0, 0.3, (trials, draws, 1)), rng.normal(0, 2, (trials, 1, TEST))
    samples = answers(rng, (trials, draws, TEST), 0.5, of_draw, of_test)
    gaps = rng.random(samples.shape) < share
    samples[gaps & ~gaps.all(axis=1, keepdims=True)] = np.nan
    assert 0.92 <= covered(samples, true_mean(0.5, 0.3, 2)) <= 0.98


def test_a_single_gap_changes_the_resamples_hardly():
    rng = np.random.default_rng(0)
    of_draw, of_test = rng.normal(0, 0.5, (1, 5, 1)), rng.normal(0, 1, (1, 1, 200))
    (scores,) = answers(rng, (1, 5, 200), 0.6, of_draw, of_test)
    counts = resample(rng, 1000, 5, 200)
    whole = means(scores, counts)
    scores[0, 0] = np.nan
    torn = means(scores, counts)
    assert np.corrcoef(whole, torn)[0, 1] > 0.999
    assert torn.std() == pytest.approx(whole.std(), rel=0.01)
