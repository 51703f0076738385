"""Confidence limits over draws and test examples: their coverage, and their edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import expit
from scipy.stats import binomtest, norm, t

from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.intervals import joined, location_interval, mean_interval, spread

TRIALS = 1500


def simulate(
    draws: int, accuracy: float, spread_draw: float, spread_test: float, test: int = 250
) -> tuple[np.ndarray, float]:
    """Answers ``(trials, draws, test)`` whose log-odds vary by draw and by example, and their mean.

    ``accuracy`` is that of the median example in the median draw.
    """
    rng = np.random.default_rng([draws, int(1000 * accuracy), int(100 * spread_draw)])
    odds = np.log(accuracy / (1 - accuracy))
    of_draw = rng.normal(0, spread_draw, (TRIALS, draws, 1))
    of_test = rng.normal(0, spread_test, (TRIALS, 1, test))
    right = rng.random((TRIALS, draws, test)) < expit(odds + of_draw + of_test)
    normal = norm.ppf((np.arange(4000) + 0.5) / 4000)
    mean = expit(odds + np.hypot(spread_draw, spread_test) * normal).mean()
    return right, float(mean)


def coverage(draws: int, accuracy: float, spread_draw: float, spread_test: float) -> float:
    """The share of simulated sweeps whose 95% limits hold the true mean."""
    samples, true = simulate(draws, accuracy, spread_draw, spread_test)
    limits = [mean_interval(sample) for sample in samples]
    return float(np.mean([low <= true <= high for _, low, high in limits]))


@pytest.mark.parametrize("draws", [3, 10])
@pytest.mark.parametrize(
    ("accuracy", "spread_draw", "spread_test"),
    [
        (0.1, 0.3, 2),
        pytest.param(0.5, 0.3, 2, marks=pytest.mark.thorough),  # the accuracies of draws differ by four points
        (0.8, 0.5, 1),  # by seven: draws matter more than test examples
        pytest.param(0.9, 0.2, 2, marks=pytest.mark.thorough),
        pytest.param(0.95, 0.3, 2, marks=pytest.mark.thorough),
        (0.98, 0.3, 2),
    ],
)
def test_95_percent_limits_hold_the_true_mean_93_to_97_times_in_100(draws, accuracy, spread_draw, spread_test):
    assert 0.93 <= coverage(draws, accuracy, spread_draw, spread_test) <= 0.97


@pytest.mark.parametrize("draws", [3, 10])
@pytest.mark.parametrize("spread_draw", [0, 0.1])
def test_limits_are_hardly_too_wide_where_draws_hardly_matter(draws, spread_draw):
    assert 0.94 <= coverage(draws, 0.9, spread_draw, 2) <= 0.98


def test_the_variance_of_the_mean_is_estimated_right_on_average():
    rng = np.random.default_rng(0)
    shape, of_draw, of_test, of_both = (5, 20), 1.0, 1.0, 2.0
    estimates = [
        spread(rng.normal(0, of_draw, (5, 1)) + rng.normal(0, of_test, (1, 20)) + rng.normal(0, of_both, shape), 0.975)[
            0
        ]
        for _ in range(2000)
    ]
    true = of_draw**2 / 5 + of_test**2 / 20 + of_both**2 / 100
    assert np.mean(estimates) == pytest.approx(true, rel=0.05)


def test_counting_only_test_examples_would_be_far_too_sure_of_few_draws():
    samples, true = simulate(3, 0.8, 0.5, 1)
    ignoring = [mean_interval(sample[:1]) for sample in samples[:500]]
    assert np.mean([low <= true <= high for _, low, high in ignoring]) < 0.8


@pytest.mark.parametrize("right", [0, 1, 137, 249, 250])
def test_one_draw_has_wilsons_limits(right):
    correct = (np.arange(250) < right).astype(float)[None]
    expected = binomtest(right, 250).proportion_ci(0.95, "wilson")
    interval = mean_interval(correct)
    assert interval.mean == right / 250
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_answers_that_are_all_right_or_all_wrong_still_have_a_width(value):
    interval = mean_interval(np.full((10, 250), value))
    assert interval == mean_interval(np.full((1, 250), value))
    assert interval.high - interval.low == pytest.approx(0.0151, abs=1e-4)


@given(
    arrays(float, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])),
    st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_limits_lie_around_the_mean_and_between_0_and_1(scores, level):
    interval = mean_interval(scores, level)
    assert interval.mean == pytest.approx(scores.mean())
    assert 0 <= interval.low <= interval.mean + 1e-12
    assert interval.mean - 1e-12 <= interval.high <= 1
    assert interval.low < interval.high


def test_draws_that_differ_widen_the_limits():
    alike = np.tile(np.arange(100) < 50, (4, 1))
    differing = np.stack([np.arange(100) < right for right in (20, 40, 60, 80)])
    assert alike.mean() == differing.mean()
    narrow, wide = mean_interval(alike), mean_interval(differing)
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_two_parts_of_a_variance_have_quantiles_of_their_own_joined_in_quadrature():
    variance, quantile = joined((0.01, 0.02), (2, 99), 0.975)
    assert variance == pytest.approx(0.03)
    of_draws, of_test = t.ppf(0.975, 2), t.ppf(0.975, 99)
    assert quantile == pytest.approx(((of_draws**2 + 2 * of_test**2) / 3) ** 0.5)


def test_limits_of_draws_that_differ_are_wilsons_for_the_effective_number_of_examples():
    scores = np.array([[1, 1, 1, 0, 1, 1], [0, 1, 0, 0, 1, 0]], dtype=float)
    mean, low, high = mean_interval(scores, 0.9)
    assert mean == 7 / 12
    # sums of squares: draws 3/4, test examples 17/12, all 35/12, so that 3/4 are left
    of_draws, residual, of_test = 3 / 4, 3 / 4 / 5, 17 / 12 / 5
    parts = of_draws / 12, (of_test - residual) / 12
    squared = (t.ppf(0.95, 1) ** 2 * parts[0] + t.ppf(0.95, 5) ** 2 * parts[1]) / sum(parts)
    weight = squared * sum(parts) / (mean * (1 - mean))
    for limit, side in ((low, -1), (high, 1)):  # Wilson: (p - limit)^2 = weight limit (1 - limit)
        assert (mean - limit) ** 2 == pytest.approx(weight * limit * (1 - limit))
        assert side * (limit - mean) > 0


def test_a_mean_that_is_corrected_beyond_0_or_1_is_the_plain_one_of_test_examples():
    gap = np.nan
    scores = np.array([[gap, 0, gap, gap], [gap, 1, gap, 0], [0, 1, 0, 0]])
    for values in (scores, 1 - scores):
        plain = np.nanmean(values, axis=0).mean()  # a sixth, and five
        assert not 0 <= TwoWayLayout(values).mean <= 1
        interval = mean_interval(values)
        assert interval.mean == plain
        assert 0 <= interval.low < plain < interval.high <= 1


def test_a_score_of_free_text_has_the_limits_of_its_own_small_spread():
    scores = np.random.default_rng(0).normal(0.82, 0.05, (1, 250)).clip(0, 1)
    interval = mean_interval(scores)
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * 0.05 / 250**0.5, rel=0.1)


@pytest.mark.parametrize("bad", [[[0.5, np.nan]], [[0.5, 1.1]], [[-0.1, 0.5]], [0.5], [[]]])
def test_scores_that_are_missing_or_no_shares_are_refused(bad):
    with pytest.raises(ValueError, match="score"):
        mean_interval(np.array(bad))


def test_limits_of_one_draw_of_any_size_are_those_of_a_t_test():
    losses = np.random.default_rng(0).exponential(3, (1, 40))
    limits = t.interval(0.95, 39, losses.mean(), losses.std(ddof=1) / np.sqrt(40))
    assert location_interval(losses) == pytest.approx((losses.mean(), *limits))


@pytest.mark.parametrize(("draws", "of_draw"), [(1, 0.0), (3, 0.0), (3, 0.3), (10, 0.3)])
def test_limits_of_losses_hold_the_true_mean(draws: int, of_draw: float):
    rng = np.random.default_rng([draws, int(10 * of_draw)])
    held = []
    for _ in range(600):
        losses = rng.exponential(1, (1, 100)) + rng.normal(0, of_draw, (draws, 1)) + rng.exponential(1, (draws, 100))
        _, low, high = location_interval(losses)
        held.append(low <= 2 <= high)
    assert 0.92 <= np.mean(held) <= 0.985


def test_limits_are_missing_where_nothing_says_how_far_losses_vary():
    for scores in (np.full((3, 5), 0.7), np.array([[0.2], [0.4]])):
        mean, low, high = location_interval(scores)
        assert mean == pytest.approx(scores.mean())
        assert np.isnan([low, high]).all()
    mean, low, high = location_interval(np.array([[0.5, np.inf, 1.0], [1, 2, np.nan]]))
    assert mean == np.inf
    assert np.isnan([low, high]).all()
