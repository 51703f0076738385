"""Tests of differences hold their level, whatever of draws and examples moves the answers."""

from __future__ import annotations

import numpy as np
import pytest
from support.predictions import answers

from icl_bench.analysis.statistics.contrast import contrast, judge

TRIALS, TEST = 1000, 250
# accuracy; spreads (log-odds) that both sides share, by test example, and that each has for
# itself, by draw and by test example
SPREADS = [(0.5, 2, 0.0, 0.0), (0.8, 1, 0.3, 0.5), (0.9, 2, 0.7, 1.0)]


def pairs(
    draws: tuple[int, int], accuracy: float, shared: float, by_draw: float, by_test: float
) -> tuple[np.ndarray, np.ndarray]:
    """Two sides ``(trials, draws, test)`` that are right equally often over all draws and examples."""
    rng = np.random.default_rng([*draws, int(100 * accuracy), int(10 * by_draw)])
    common = rng.normal(0, shared, (TRIALS, 1, TEST))

    def side(count: int) -> np.ndarray:
        own = rng.normal(0, by_test, (TRIALS, 1, TEST))
        # a single draw is no sample of draws
        of_draw = rng.normal(0, by_draw, (TRIALS, count, 1)) if count > 1 else 0.0
        if count == 1 and by_draw:
            own = own + rng.normal(0, by_draw, (TRIALS, 1, TEST))
        return answers(rng, (TRIALS, count, TEST), accuracy, of_draw, common + own)

    return side(draws[0]), side(draws[1])


def p_values(first: np.ndarray, second: np.ndarray, matched: bool = True) -> np.ndarray:
    return judge([contrast(*pair, matched) for pair in zip(first, second, strict=True)])[2]


@pytest.mark.parametrize("draws", [1, 3, 10])
@pytest.mark.parametrize("spreads", SPREADS)
def test_without_a_difference_false_alarms_are_as_rare_as_they_should_be(draws, spreads):
    p = p_values(*pairs((draws, draws), *spreads))
    assert (p <= 0.05).mean() <= 0.06
    assert (p <= 0.01).mean() <= 0.015  # the corrected tests go this far and farther


@pytest.mark.parametrize("draws", [3, 10])
@pytest.mark.parametrize("spreads", SPREADS[1:])
def test_draws_of_their_own_beside_a_single_one_hold_their_level(draws, spreads):
    p = p_values(*pairs((1, draws), *spreads), matched=False)
    assert (p <= 0.05).mean() <= 0.06


def test_ten_draws_are_not_judged_too_timidly():
    p = p_values(*pairs((10, 10), *SPREADS[1]))
    assert (p <= 0.05).mean() >= 0.03


@pytest.mark.parametrize("draws", [3, 10])
def test_counting_only_test_examples_would_raise_many_false_alarms(draws):
    first, second = pairs((draws, draws), *SPREADS[2])
    blind = [
        contrast(a.mean(axis=0, keepdims=True), b.mean(axis=0, keepdims=True), True)
        for a, b in zip(first[:300], second[:300], strict=True)
    ]
    assert (judge(blind)[2] <= 0.05).mean() > 0.2


def test_sides_that_agree_on_all_examples_are_not_told_apart_but_may_differ_elsewhere():
    same = np.random.default_rng(0).random((3, 250)) < 0.5
    ((low,), (high,), (p,)) = judge([contrast(same.astype(float), same.astype(float), True)])
    assert p == pytest.approx(1)
    assert low == -high
    assert high == pytest.approx(1.97 * np.sqrt(2 / 252 / 251), rel=0.01)


def test_one_draw_has_bonett_and_prices_limits():
    first, second = np.zeros((1, 100)), np.zeros((1, 100))
    first[0, :12], second[0, 10:15] = 1, 1  # ten alone right here, three there
    ((low,), (high,), _) = judge([contrast(first, second, True)])
    here, there = 11 / 102, 4 / 102
    half = np.sqrt((here + there - (here - there) ** 2) / 102)
    # Student's quantile and n - 1 where they have the normal one and n
    assert (low + high) / 2 == pytest.approx(here - there)
    assert (high - low) / 2 == pytest.approx(1.9837 * half * np.sqrt(102 / 101), rel=1e-4)


def random_pair(seed: int, draws: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    first, second = rng.random((2, draws, 40)) < rng.uniform(0.3, 0.7, (2, draws, 1))
    return first.astype(float), second.astype(float)


@pytest.mark.parametrize("matched", [True, False])
def test_limits_leave_out_0_where_p_is_below_their_level(matched):
    found = [contrast(*random_pair(seed), matched) for seed in range(200)]
    for level in (0.5, 0.95):
        low, high, p = judge(found, level=level)
        assert ((low > 0) | (high < 0)).tolist() == (p < 1 - level).tolist()
        assert 0 < (p < 1 - level).sum() < len(found)


def test_a_limit_is_where_p_is_exactly_the_level():
    first, second = random_pair(3)
    found = contrast(first, second, True)
    ((low,), _, _) = judge([found], level=0.9)
    moved = found._replace(centre=found.centre - low)
    assert judge([moved])[2][0] == pytest.approx(0.1)


def test_one_sided_values_are_half_of_the_two_sided_and_add_up_to_1():
    found = [contrast(*random_pair(seed), True) for seed in range(20)]
    two, greater, less = (judge(found, side)[2] for side in ("two-sided", "greater", "less"))
    assert greater + less == pytest.approx(1)
    assert np.minimum(greater, less) * 2 == pytest.approx(two)
    assert ((greater < 0.5) == (np.array([c.centre for c in found]) > 0)).all()


def test_matched_draws_are_compared_with_each_other():
    rng = np.random.default_rng(0)
    of_draw = rng.normal(0, 2, (1, 6, 1))
    (first,) = answers(rng, (1, 6, 200), 0.5, of_draw)
    (second,) = answers(rng, (1, 6, 200), 0.6, of_draw)
    low, high, _ = judge([contrast(first, second, True), contrast(first, second, False)])
    assert (high - low)[0] < 0.5 * (high - low)[1]


def test_no_common_examples_give_no_numbers():
    nothing = contrast(np.empty((3, 0)), np.empty((3, 0)), True)
    assert np.isnan([nothing.difference, *np.ravel(judge([nothing]))]).all()
    assert all(len(part) == 0 for part in judge([]))
