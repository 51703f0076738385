"""Thresholds of answers, and the area under the risk-coverage curve."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from icl_bench.analysis.statistics.selective import cuts, lowest_threshold, risk_parts
from icl_bench.analysis.statistics.shares import share_interval

ANSWERS = st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.5, 0.7, 0.9]), st.booleans()), min_size=1, max_size=12)


def arrays(answers: list[tuple[float, bool]]) -> tuple[np.ndarray, np.ndarray]:
    probability, right = zip(*answers, strict=True)
    return np.array(probability), np.array(right)


@given(ANSWERS)
def test_cuts_count_the_predictions_at_or_above_each_probability(answers: list[tuple[float, bool]]):
    probability, right = arrays(answers)
    of = cuts(probability, right)
    assert of.threshold.tolist() == sorted(set(probability.tolist()), reverse=True)
    assert of.answered.tolist() == [int((probability >= t).sum()) for t in of.threshold]
    assert of.right.tolist() == [int(right[probability >= t].sum()) for t in of.threshold]


@given(ANSWERS, st.sampled_from([0.5, 0.75, 0.9, 1.0]))
def test_the_lowest_threshold_answers_the_most_at_the_wanted_accuracy(answers: list[tuple[float, bool]], wanted: float):
    probability, right = arrays(answers)
    found = lowest_threshold(probability, right, wanted)
    possible = [t for t in [0.0, *probability] if right[probability >= t].mean() >= wanted]
    if not possible:
        assert math.isinf(found)
    else:
        assert (probability >= found).sum() == max((probability >= t).sum() for t in possible)
        assert right[probability >= found].mean() >= wanted
    assert (found == 0) == (right.mean() >= wanted)


def test_a_share_that_is_exactly_the_wanted_one_is_reached():
    probability = np.linspace(1, 0.1, 60)
    right = np.arange(60) % 20 != 19
    assert lowest_threshold(probability, right, 0.95) == 0
    assert lowest_threshold(probability, right, 0.951) > 0


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.9]), st.booleans()), min_size=1, max_size=6))
def test_the_area_is_the_mean_over_all_orders_of_equal_predictions(answers: list[tuple[float, bool]]):
    probability, right = arrays(answers)
    areas = []
    for order in permutations(range(len(answers))):
        falling = probability[list(order)]
        if (np.diff(falling) <= 0).all():
            wrong = ~right[list(order)]
            areas.append(np.mean(np.cumsum(wrong) / np.arange(1, len(wrong) + 1)))
    assert risk_parts(probability, right).mean() == pytest.approx(np.mean(areas))


@pytest.mark.parametrize("levels", [2, 5, 400])
def test_the_parts_say_how_the_area_changes_when_a_prediction_counts_for_more(levels: int):
    """With few ``levels`` many predictions are equal."""
    rng = np.random.default_rng(0)
    probability = rng.permutation(np.repeat(np.linspace(0.1, 0.99, levels), 400 // levels))
    right = rng.random(400) < probability
    parts = risk_parts(probability, right)
    area = parts.mean()
    for at in range(0, 400, 25):
        times = np.ones(400, dtype=int)
        times[at] = 3  # two more of 402
        again = np.repeat(np.arange(400), times)
        moved = risk_parts(probability[again], right[again]).mean()
        assert moved - area == pytest.approx(2 / 402 * (parts[at] - area), abs=2e-4)


@pytest.mark.parametrize("draws", [1, 3])
def test_limits_of_the_area_hold_the_true_area(draws: int):
    def sample(rng: np.random.Generator, draws: int, tests: int) -> tuple[np.ndarray, np.ndarray]:
        odds = rng.normal(1, 1.5, (1, tests)) + rng.normal(0, spread, (draws, 1)) + rng.normal(0, 0.5, (draws, tests))
        return expit(odds), rng.random((draws, tests)) < expit(odds)

    spread = 0.5 if draws > 1 else 0.0
    probability, right = sample(np.random.default_rng(5), 1000, 400)
    true = risk_parts(probability.ravel(), right.ravel()).mean()
    held = []
    for seed in range(300):
        probability, right = sample(np.random.default_rng([draws, seed]), draws, 200)
        parts = risk_parts(probability.ravel(), right.ravel()).reshape(draws, -1)
        _, low, high = share_interval(parts, np.ones_like(parts))
        held.append(low <= true <= high)
    assert 0.92 <= np.mean(held) <= 0.98


def test_nothing_has_no_parts():
    assert risk_parts(np.empty(0), np.empty(0, dtype=bool)).size == 0
    assert math.isinf(lowest_threshold(np.empty(0), np.empty(0, dtype=bool), 0.5))
