"""Limits of a ratio over windows: texts are the sampled unit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from icl_bench.analysis.statistics.texts import differs, interval_over, ratio_limits, sampled

ONES = np.ones(4)


def test_limits_of_a_ratio_to_one_are_those_of_the_t_test():
    values = np.array([0.3, 0.9, 0.5, 0.4])
    expected = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    assert ratio_limits(values, ONES) == pytest.approx(expected, rel=1e-12)
    assert differs(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue)


def test_at_each_limit_the_difference_is_just_significant():
    rng = np.random.default_rng(0)
    below = rng.normal(1, 0.3, 8)
    above = 0.4 * below + rng.normal(0, 0.1, 8)
    for limit in ratio_limits(above, below):
        assert stats.ttest_1samp(above - limit * below, 0).pvalue == pytest.approx(0.05)


def test_a_divisor_that_may_be_0_leaves_any_ratio_possible():
    assert np.isnan(ratio_limits(ONES, np.array([-1.0, 2.0, -3.0, 4.0]))).all()


@pytest.mark.filterwarnings("error")
def test_one_unit_has_no_limits():
    assert np.isnan(ratio_limits(ONES[:1], ONES[:1])).all()
    assert math.isnan(differs(ONES[:1]))


def test_windows_are_summed_by_text_unless_there_is_one_text():
    values, texts = np.array([1.0, 2, 4]), np.array(["b", "a", "b"])
    assert sampled(values, texts).tolist() == [2, 5]
    assert sampled(values, texts[[0, 0, 0]]).tolist() == [1, 2, 4]
    assert interval_over(texts) == "texts"
    assert interval_over(texts[:1]) == "windows of one text"


@pytest.mark.parametrize(("texts", "windows"), [(1, 4), (4, 1), (4, 3)])
def test_limits_of_four_units_hold_the_true_ratio(texts: int, windows: int):
    rng = np.random.default_rng(1)
    held = []
    for _ in range(400):
        of_text = rng.normal(0, 0.2 if texts > 1 else 0, (2, texts, 1))
        below, above = np.array([1.0, 0.4])[:, None, None] * np.exp(of_text + rng.normal(0, 0.2, (2, texts, windows)))
        text_of = np.repeat(np.arange(texts), windows)
        low, high = ratio_limits(sampled(above.ravel(), text_of), sampled(below.ravel(), text_of))
        held.append(low <= 0.4 <= high)  # both have the same spread
    assert np.mean(held) > 0.92
