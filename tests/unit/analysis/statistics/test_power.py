"""What is said of a test's power, beside how often the test finds a difference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from icl_bench.analysis.statistics.contrast import contrast, judge
from icl_bench.analysis.statistics.power import Components, components, draws_needed, power, rows_needed, smallest


def pair(rng: np.random.Generator, of: Components, draws: int, rows: int, gain: float, matched: bool):
    """Normal scores of two points whose difference varies as the components say."""
    by_test = rng.normal(0, math.sqrt(of.tests), rows) + gain
    noise = [
        rng.normal(0, math.sqrt(by_draw), (draws, 1)) + rng.normal(0, math.sqrt(rest), (draws, rows))
        for by_draw, rest in zip(of.draws, of.rest, strict=True)
    ]
    if matched:
        common = rng.normal(0, 1, (draws, rows))
        return common + by_test + noise[0], common
    return by_test + noise[0], noise[1]


MATCHED, OWN = Components(0.1, (0.001,), (0.1,)), Components(0.1, (0.0005, 0.0005), (0.05, 0.05))


@pytest.mark.parametrize(
    ("of", "draws", "rows", "gain"), [(MATCHED, 3, 200, 0.12), (MATCHED, 10, 200, 0.06), (OWN, 5, 100, 0.12)]
)
def test_a_difference_is_found_as_often_as_is_said(of: Components, draws: int, rows: int, gain: float):
    rng, matched = np.random.default_rng(draws), len(of.draws) == 1
    sides = [contrast(*pair(rng, of, draws, rows, gain, matched), matched) for _ in range(600)]
    assert np.mean(judge(sides)[2] <= 0.05) == pytest.approx(power(of, draws, rows, gain), abs=0.06)
    assert power(of, draws, rows, smallest(of, draws, rows)) == pytest.approx(0.8, abs=0.001)


def test_components_are_those_that_the_scores_were_made_of():
    rng = np.random.default_rng(0)
    for of, matched in ((MATCHED, True), (OWN, False)):
        found = components(*pair(rng, of, 400, 3000, 0.1, matched), matched)
        assert found is not None
        assert found.tests == pytest.approx(of.tests, rel=0.1)
        assert sum(found.draws) == pytest.approx(sum(of.draws), rel=0.25)
        assert sum(found.rest) == pytest.approx(sum(of.rest), rel=0.05)


def test_what_has_one_draw_counts_as_not_drawn_and_one_test_row_says_nothing():
    rng = np.random.default_rng(0)
    first, second = pair(rng, OWN, 5, 100, 0.0, False)
    one = components(first[:1], second, False)
    assert one is not None
    assert (len(one.draws), len(one.rest)) == (1, 1)
    alone = components(first[:1], second[:1], False)
    assert alone is not None
    assert alone.draws == ()
    assert power(alone, 1, 100, 0.5) > 0.99
    assert components(first[:, :1], second[:, :1], False) is None


def test_more_is_found_with_more_and_what_is_needed_is_enough():
    assert smallest(MATCHED, 3, 200) > smallest(MATCHED, 10, 200) > smallest(MATCHED, 10, 2000)
    draws, rows = draws_needed(MATCHED, 200, 0.07), rows_needed(MATCHED, 10, 0.07)
    assert draws is not None
    assert rows is not None
    assert power(MATCHED, draws, 200, 0.07) >= 0.8 > power(MATCHED, draws - 1, 200, 0.07)
    assert power(MATCHED, 10, rows, 0.07) >= 0.8 > power(MATCHED, 10, rows - 1, 0.07)


def test_where_more_draws_or_rows_do_not_help_there_is_no_number():
    assert draws_needed(MATCHED, 20, 0.01) is None, "the test rows alone move it further"
    assert rows_needed(MATCHED, 2, 0.01) is None, "the draws alone move it further"
    wild = Components(0.5, (1.0,), (0.5,))
    assert smallest(wild, 2, 20) == math.inf


def test_points_that_never_differ_show_any_difference():
    same = Components(0.0, (), ())
    assert power(same, 1, 10, 0.01) == 1
    assert smallest(same, 1, 10) < 1e-6
