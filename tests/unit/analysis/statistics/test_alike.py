"""Points on the same test examples, of which some lack a few."""

from __future__ import annotations

import numpy as np
import pytest

from icl_bench.analysis.statistics.alike import all_or_common, asked_alike, filled, on_tests
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


def test_three_quarters_of_the_larger_one_in_common_are_nearly_the_same():
    three, four = having(0, 1, 2), having(0, 1, 2, 3)
    found = asked_alike([three, four])
    assert (found.tests.tolist(), found.lack.tolist()) == ([0, 1, 2, 3], [False, False])
    found = asked_alike([three, having(0, 1, 3, 4)])  # two of four
    assert (found.tests.tolist(), found.lack.tolist()) == ([0, 1, 3, 4], [True, False])
    assert all_or_common([three, four]).tolist() == [0, 1, 2, 3]


def test_an_example_counts_where_half_of_the_group_has_it():
    first, second = having(*range(8), 8), having(*range(8), 9)
    found = asked_alike([first, second])
    assert (found.tests.tolist(), found.lack.tolist()) == (list(range(10)), [False, False])
    found = asked_alike([first, second, having(*range(8))])
    assert (found.tests.tolist(), found.lack.tolist()) == (list(range(8)), [False] * 3)


def test_an_example_that_only_points_have_that_lack_too_many_is_none_to_compare_on():
    """Two of four have each of 12, 13 and 14: 15 examples, of which these two have 11."""
    whole = having(*range(12))
    kept = [{*range(9), 12, 13}, {*range(3, 12), 12, 14}, {*range(3), *range(6, 12), 13, 14}]
    found = asked_alike([whole, *(having(*sorted(own)) for own in kept)])
    assert (found.tests.tolist(), found.lack.tolist()) == (list(range(12)), [False, True, True, True])


def test_a_point_with_three_quarters_of_a_groups_examples_does_not_lack_them():
    whole = having(*range(12))
    kept = [{*range(9), 12, 13, 14}, {*range(3, 12), 12, 13, 15}, {*range(3), *range(6, 12), 14, 15}]
    found = asked_alike([whole, *(having(*sorted(own)) for own in kept)])
    assert (found.tests.tolist(), found.lack.tolist()) == (list(range(16)), [False, False, False, True])


def test_where_a_groups_middle_lacks_too_many_of_its_examples_its_own_count():
    """17 examples are had by half of the six; the first, to which all are near, has 12 of them."""
    gaps = [{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 10, 11}, {0, 4, 8}]
    others = [{*range(12)} - gap | {12 + (at + step) % 5 for step in range(3)} for at, gap in enumerate(gaps)]
    found = asked_alike([having(*range(12)), *(having(*sorted(own)) for own in others)])
    assert (found.tests.tolist(), found.lack.tolist()) == (list(range(12)), [False] * 6)


def test_a_single_point_is_asked_what_it_has_and_none_nothing():
    found = asked_alike([having(2, 5)])
    assert (found.tests.tolist(), found.lack.tolist()) == ([2, 5], [False])
    found = asked_alike([having(), having(3)])
    assert (found.tests.tolist(), found.lack.tolist()) == ([3], [True, False])
    assert asked_alike([having()]).tests.tolist() == []


def test_the_part_of_a_point_on_some_examples_hangs_together():
    point = having(2, 4, 7, draws=2)
    assert on_tests(point, np.array([1, 2, 4, 7])) is point
    found = on_tests(point, np.array([2, 3, 7]))
    assert [part.tolist() for part in found] == [[0, 1], [2, 7], [[0, 2], [3, 5]]]
    rows = np.array([[0, 1, -1, 2], [3, 4, -1, 5], [-1, -1, 6, 7]])
    apart = Grid(np.arange(3), np.array([2, 4, 7, 9]), rows)
    found = on_tests(apart, np.array([2, 4, 7]))
    assert [part.tolist() for part in found] == [[0, 1], [2, 4], [[0, 1], [3, 4]]]
    assert on_tests(apart, np.array([2, 4, 7, 9])).rows.tolist() == rows.tolist()


def test_points_fit_by_least_squares_what_some_of_them_lack():
    """Beside the solution of the equations of all points and examples at once."""
    rng = np.random.default_rng(1)
    column = rng.random(24)
    tests = [np.delete(np.arange(8), gap) for gap in ([0, 3], [3], [7])]
    points = [Grid(np.arange(1), own, (8 * at + own)[None]) for at, own in enumerate(tests)]
    design = np.array(
        [np.eye(3)[at].tolist() + np.eye(8)[test].tolist() for at, own in enumerate(tests) for test in own]
    )
    answers = np.concatenate([column[8 * at + own] for at, own in enumerate(tests)])
    best = np.linalg.lstsq(design, answers, rcond=None)[0]
    found = filled(points, column, np.arange(8))
    for at, (own, scores) in enumerate(zip(tests, found, strict=True)):
        expected = best[at] + best[3:]
        expected[own] = column[8 * at + own]
        assert scores == pytest.approx(expected[None], abs=1e-12)


def test_examples_keep_their_codes_where_some_are_filled():
    column = np.array([0.1, 0.3, 0.4, 0.2, 0.6])
    points = [
        Grid(np.arange(1), np.array([3, 9]), np.array([[0, 1]])),
        Grid(np.arange(1), np.array([3, 5, 9]), np.array([[2, 3, 4]])),
    ]
    first, second = filled(points, column, np.array([3, 5, 9]))
    assert first.tolist() == [[0.1, pytest.approx(0.2 - 0.3), 0.3]]
    assert second.tolist() == [[0.4, 0.2, 0.6]]
