"""Predictions as matrices: every one in its place, and what is missing is known."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.predictions import cell, frame, scored

from icl_bench.analysis.statistics.grid import common_rows, complete, grids


def shuffled(rows, seed=0):
    return rows.sample(frac=1, random_state=seed).reset_index(drop=True)


def test_a_grid_is_the_pivot_of_its_points_predictions():
    rng = np.random.default_rng(0)
    rows = shuffled(frame(*(scored(rng.random((3, 7)) < 0.5, k=k, task=t) for k in (1, 5) for t in "ab")))
    keys, found = grids(rows, ["task", "k"])
    assert keys.to_numpy().tolist() == [["a", 1], ["a", 5], ["b", 1], ["b", 5]]
    for (task, k), grid in zip(keys.to_numpy(), found, strict=True):
        point = rows[(rows["task"] == task) & (rows["k"] == k)]
        wide = point.pivot(index="draw", columns="test_id", values="correct")
        assert rows["correct"].to_numpy()[grid.rows].tolist() == wide.to_numpy().tolist()


def test_a_missing_prediction_has_no_position():
    rows = frame(cell("aabb", draw=0), cell("aabb", draw=1).iloc[1:])
    _, (grid,) = grids(rows, ["k"])
    assert grid.rows.tolist() == [[0, 1, 2, 3], [-1, 4, 5, 6]]
    assert grid.predictions == 7
    assert grid.whole().rows.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_only_kept_rows_are_left_and_draws_and_tests_that_have_one():
    rows = frame(cell("aabb", draw=0), cell("aabb", draw=1), cell("aabb", draw=2).iloc[1:])
    _, (grid,) = grids(rows, ["k"])
    kept = np.ones(len(rows), dtype=bool)
    kept[[1, 3, 7, *range(8, 11)]] = False  # two of the first draw, the last of the second
    for part in (grid.of_rows(kept), grid.joined(kept)):
        assert part.draws.tolist() == [0, 1]
        assert part.tests.tolist() == [0, 1, 2]
        assert part.rows.tolist() == [[0, -1, 2], [4, 5, 6]]
    assert grid.of_rows().rows.tolist() == grid.rows.tolist()
    assert grid.joined(np.ones(len(rows), dtype=bool)).rows.tolist() == grid.rows.tolist()


def test_draws_that_hang_together_are_those_with_the_most_predictions():
    long = cell("a" * 8, "a" * 8)
    rows = frame(long.iloc[:2], long.iloc[3:6].assign(draw=1), long.iloc[1:3].assign(draw=2))
    _, (grid,) = grids(rows, ["k"])
    part = grid.joined()  # four in two draws, three in one
    assert (part.draws.tolist(), part.tests.tolist()) == ([0, 2], [0, 1, 2])
    assert part.rows.tolist() == [[0, 1, -1], [-1, 5, 6]]
    more = frame(rows, long.iloc[6:].assign(draw=1))
    _, (grid,) = grids(more, ["k"])
    part = grid.joined()
    assert (part.draws.tolist(), part.tests.tolist()) == ([1], [3, 4, 5, 6, 7])
    assert part.rows.tolist() == [[2, 3, 4, 7, 8]]
    bridged = frame(rows, long.iloc[2:4].assign(draw=3))
    _, (grid,) = grids(bridged, ["k"])
    assert grid.joined().draws.tolist() == [0, 1, 2, 3]


def test_common_rows_are_those_that_all_points_have():
    rows = frame(
        cell("aabb", k=1),
        cell("aabb", k=1, draw=2),
        cell("aabb", k=1, draw=3),
        cell("aabb", k=5, draw=2).iloc[1:],
        cell("aabb", k=5, draw=3).iloc[:3],
        cell("aabb", k=5, draw=7),
    )
    _, points = grids(rows, ["k"])
    draws, tests, found = common_rows(points)
    assert draws.tolist() == [2, 3]
    assert tests.tolist() == [0, 1, 2, 3]
    assert found.tolist() == [[[-1, 5, 6, 7], [8, 9, 10, -1]], [[-1, 12, 13, 14], [15, 16, 17, -1]]]


@pytest.mark.parametrize(("common", "there"), [(2, True), (1, False)])
def test_points_have_something_in_common_from_two_test_examples_on(common: int, there: bool):
    rows = frame(cell("aabb", k=1), cell("aabb", k=1, draw=1).iloc[:2], cell("aabb", k=5).iloc[4 - common :])
    _, points = grids(rows, ["k"])
    found = common_rows(points)
    assert (found is not None) is there
    if found:
        assert [part.tolist() for part in found] == [[0], [2, 3], [[[2, 3]], [[6, 7]]]]


def test_a_combination_may_have_a_single_row():
    keys, found = grids(frame(cell("aabb", k=5), cell("a", "a", k=1)), ["k"])
    assert keys["k"].tolist() == [1, 5]
    assert [grid.rows.tolist() for grid in found] == [[[4]], [[0, 1, 2, 3]]]


def test_two_predictions_of_one_test_example_in_one_draw_are_refused():
    with pytest.raises(ValueError, match="several predictions of one test row"):
        grids(frame(cell("aabb"), cell("abab")), ["k"])


def test_test_ids_have_the_same_codes_in_all_grids():
    rows = frame(cell("aabb", k=1), cell("aabb", k=5).iloc[2:])
    _, (first, second) = grids(rows, ["k"])
    assert first.tests[2:].tolist() == second.tests.tolist()


def test_no_predictions_have_no_grids():
    keys, found = grids(cell("aabb").iloc[:0], ["task", "k"])
    assert list(keys.columns) == ["task", "k"]
    assert keys.empty
    assert found == []


@pytest.mark.parametrize(
    ("present", "draws", "tests"),
    [
        (["111", "111"], [0, 1], [0, 1, 2]),
        (["111", "110"], [0, 1], [0, 1]),  # 4 predictions rather than 3
        (["1111", "1000", "1111"], [0, 2], [0, 1, 2, 3]),  # one draw hardly begun
        (["10", "01"], [0], [0]),
        (["00", "00"], [], []),
    ],
)
def test_the_complete_part_gives_up_what_costs_the_fewest_predictions(present, draws, tests):
    found = complete(np.array([[mark == "1" for mark in row] for row in present]))
    assert [part.tolist() for part in found] == [draws, tests]


@given(arrays(bool, st.tuples(st.integers(1, 4), st.integers(1, 5))))
def test_the_complete_part_is_complete_and_no_smaller_than_any_single_draw(present):
    draws, tests = complete(present)
    assert present[np.ix_(draws, tests)].all()
    assert len(draws) * len(tests) >= present.sum(axis=1).max()


def test_with_one_draw_cut_short_no_part_is_larger():
    rng = np.random.default_rng(0)
    for _ in range(50):
        present = np.ones((4, 6), dtype=bool)
        present[rng.integers(4), rng.integers(1, 6) :] = False
        sizes = [
            len(some) * present[list(some)].all(axis=0).sum() for n in range(1, 5) for some in combinations(range(4), n)
        ]
        draws, tests = complete(present)
        assert len(draws) * len(tests) == max(sizes)
