"""The common part of two points, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from icl_bench.analysis.statistics.grid import Grid
from icl_bench.analysis.statistics.meeting import Meeting, meet


def grid(draws: list[int], tests: list[int], rows: list[list[int]]) -> Grid:
    return Grid(np.array(draws), np.array(tests), np.array(rows))


def full(draws: list[int], tests: list[int], first: int = 0) -> Grid:
    rows = first + np.arange(len(draws) * len(tests)).reshape(len(draws), len(tests))
    return grid(draws, tests, rows.tolist())


def plain(found: Grid) -> Any:
    return [part.tolist() for part in found]


def said(found: Meeting) -> Any:
    return [plain(found.point), plain(found.base), found.matched, found.left_out]


def test_points_with_the_same_draws_and_examples_meet_as_they_are():
    a, b = full([0, 1], [3, 5, 6]), full([0, 1], [3, 5, 6], 100)
    found = meet(a, b, matched=True)
    assert found.point is a
    assert found.base is b
    assert (found.matched, found.left_out) == (True, 0)


def test_what_only_one_point_has_is_left_out_and_counted():
    a, b = full([0, 1, 4], [2, 3, 5]), full([1, 2, 4], [3, 5, 7, 8], 100)
    assert said(meet(a, b, matched=True)) == [
        [[1, 4], [3, 5], [[4, 5], [7, 8]]],
        [[1, 4], [3, 5], [[100, 101], [108, 109]]],
        True,
        9 + 12 - 8,
    ]


def test_draws_that_are_not_matched_are_all_kept():
    a, b = full([0, 1, 4], [2, 3, 5]), full([1, 2], [3, 5, 7], 100)
    expected = [[[0, 1, 4], [3, 5], [[1, 2], [4, 5], [7, 8]]], [[1, 2], [3, 5], [[100, 101], [103, 104]]], False, 5]
    assert said(meet(a, b, matched=False)) == expected
    # matched as they should be, but no draw is common
    found = meet(a, full([7, 8], [3, 5, 7], 100), matched=True)
    assert said(found) == [expected[0], [[7, 8], *expected[1][1:]], False, 5]


def test_one_common_draw_is_enough_to_match():
    found = meet(full([0, 1], [2, 3]), full([1, 7], [2, 3], 100), matched=True)
    assert said(found) == [[[1], [2, 3], [[2, 3]]], [[1], [2, 3], [[100, 101]]], True, 4]


def test_matched_points_keep_the_answers_that_both_have():
    a = grid([0, 1, 2], [3, 5], [[0, -1], [1, 2], [3, 4]])
    b = grid([0, 1, 2], [3, 5], [[10, 11], [12, -1], [13, 14]])
    assert said(meet(a, b, matched=True)) == [
        [[0, 1, 2], [3, 5], [[0, -1], [1, -1], [3, 4]]],
        [[0, 1, 2], [3, 5], [[10, -1], [12, -1], [13, 14]]],
        True,
        2,
    ]


def test_a_first_row_of_the_frame_is_an_answer():
    a = grid([0, 1], [3, 5], [[0, 1], [2, -1]])
    b = grid([0, 1], [3, 5], [[4, 5], [6, 7]])
    for one, other in ((a, b), (b, a)):
        found = meet(one, other, matched=True)
        mine, others = (found.point, found.base) if one is a else (found.base, found.point)
        assert plain(mine) == [[0, 1], [3, 5], [[0, 1], [2, -1]]]
        assert plain(others) == [[0, 1], [3, 5], [[4, 5], [6, -1]]]
        assert found.left_out == 1


def test_matched_draws_and_examples_without_a_common_answer_are_left_out():
    a = grid([0, 1, 2], [3, 5, 6], [[0, 1, -1], [2, 3, -1], [-1, -1, 4]])
    b = grid([0, 1, 2], [3, 5, 6], [[10, 11, 12], [13, 14, 15], [16, 17, -1]])
    assert said(meet(a, b, matched=True)) == [
        [[0, 1], [3, 5], [[0, 1], [2, 3]]],
        [[0, 1], [3, 5], [[10, 11], [13, 14]]],
        True,
        1 + 4,
    ]


def test_matched_draws_that_do_not_hang_together_are_left_out():
    a = grid([0, 1, 2], [3, 5, 6], [[0, 1, -1], [2, 3, -1], [-1, -1, 4]])
    b = full([0, 1, 2], [3, 5, 6], 10)
    assert said(meet(a, b, matched=True)) == [
        [[0, 1], [3, 5], [[0, 1], [2, 3]]],
        [[0, 1], [3, 5], [[10, 11], [13, 14]]],
        True,
        1 + 5,
    ]


def test_unmatched_points_are_joined_before_they_meet():
    a = grid([0, 1, 2], [3, 5, 6], [[0, 1, -1], [2, 3, -1], [-1, -1, 4]])
    b = full([7, 8], [3, 5, 6], 10)
    expected = [[[0, 1], [3, 5], [[0, 1], [2, 3]]], [[7, 8], [3, 5], [[10, 11], [13, 14]]], False, 1 + 2]
    assert said(meet(a, b, matched=False)) == expected
    assert said(meet(b, a, matched=False)) == [expected[1], expected[0], False, 3]


def test_unmatched_draws_without_a_common_example_are_left_out():
    a = grid([0, 1, 2], [3, 5, 6], [[0, 1, -1], [2, 3, 4], [-1, -1, 5]])
    b = full([7, 8], [3, 5], 10)
    expected = [[[0, 1], [3, 5], [[0, 1], [2, 3]]], [[7, 8], [3, 5], [[10, 11], [12, 13]]], False, 2]
    assert said(meet(a, b, matched=False)) == expected
    assert said(meet(b, a, matched=False)) == [expected[1], expected[0], False, 2]


def test_points_without_a_common_example_meet_in_nothing():
    found = meet(full([0, 1], [2, 3]), full([0, 1], [5, 6], 10), matched=False)
    assert (found.point.predictions, found.base.predictions, found.left_out) == (0, 0, 8)
