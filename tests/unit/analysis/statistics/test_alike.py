"""Points on the same test examples, of which some lack a few."""

from __future__ import annotations

import numpy as np
import pytest

from icl_bench.analysis.statistics.alike import all_or_common, asked_alike, filled
from icl_bench.analysis.statistics.grid import Grid


def having(*tests: int, draws: int = 1) -> Grid:
    rows = np.arange(draws * len(tests)).reshape(draws, len(tests))
    return Grid(np.arange(draws), np.array(tests, dtype=int), rows)


def test_equal_sets_that_most_have_are_what_is_compared():
    points = [having(*range(8)), having(*range(8)), having(*range(80))]
    found = asked_alike(points)
    assert found.tests.tolist() == list(range(8))
    assert found.lack.tolist() == [False] * 3
    found = asked_alike(points[1:])  # of equals the larger one
    assert found.tests.tolist() == list(range(80))
    assert found.lack.tolist() == [True, False]


def test_sets_with_gaps_count_as_one():
    lacking = [having(*(t for t in range(20) if t % 10 != gap)) for gap in (1, 2, 3)]
    found = asked_alike([having(*range(100, 120)), *lacking])
    assert found.tests.tolist() == list(range(20))
    assert found.lack.tolist() == [True, False, False, False]


def test_all_examples_count_where_each_point_has_nearly_all_and_else_the_common_ones():
    assert all_or_common([having(0, 1, 2, 3), having(1, 2, 3)]).tolist() == [0, 1, 2, 3]
    assert all_or_common([having(0, 1, 2, 3), having(1, 2)]).tolist() == [1, 2]
    assert all_or_common([having(0, 1), having(2, 3)]).tolist() == []


def test_what_a_point_lacks_is_filled_by_the_sum_of_point_and_example():
    rng = np.random.default_rng(0)
    truth = rng.random((3, 1)) + rng.random(12)
    column = truth.ravel()
    tests = [np.delete(np.arange(12), gap) for gap in ([0, 5], [1], [2, 11])]
    points = [Grid(np.arange(1), own, (12 * at + own)[None]) for at, own in enumerate(tests)]
    found = filled(points, column, np.arange(12))
    assert np.vstack(found) == pytest.approx(truth)


def test_draws_stay_as_far_apart_where_an_example_is_filled():
    column = np.array([0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.0, 0.1, 0.2, 0.3])
    one = Grid(np.arange(2), np.arange(3), np.arange(6).reshape(2, 3))
    other = Grid(np.arange(1), np.arange(4), np.arange(6, 10)[None])
    first, second = filled([one, other], column, np.arange(4))
    assert first[:, 3] == pytest.approx([0.4, 0.8])
    assert second.tolist() == [[0.0, 0.1, 0.2, 0.3]]


def test_without_gaps_scores_are_as_they_are():
    column = np.random.default_rng(0).random(8)
    (found,) = filled([having(0, 1, 2, 3, draws=2)], column, np.arange(4))
    assert found.tolist() == column.reshape(2, 4).tolist()
