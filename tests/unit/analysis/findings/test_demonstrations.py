"""Accuracy by where the right label's demonstration stands, against plain loops."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.predictions import cell, frame

from icl_bench.analysis.findings.demonstrations import by_distance, by_presence, copying, distances
from icl_bench.analysis.statistics.intervals import mean_interval

LABELS = {"d1": "a", "d2": "b", "d3": "a", "d4": "c"}


def shared(said: str, **changes: object) -> pd.DataFrame:
    return cell(said, **{"cell": "c0", **changes})


def test_the_distance_is_that_of_the_last_demonstration_of_the_right_label():
    rows = shared("aabb")
    for ids, of_a, of_b in [
        (["d1", "d2", "d3"], 1, 2),
        (["d3", "d1", "d2", "d4"], 3, 2),
        (["d4", "d1"], 1, 0),
        ([], 0, 0),
    ]:
        assert distances(rows, "gold", LABELS, {"c0": ids}).tolist() == [of_a, of_a, of_b, of_b]


def test_a_rows_own_demonstrations_come_before_the_cells():
    own = [["d2", "d1"], None, ["d2"], ["d1", "d3"]]
    rows = shared("aabb").assign(demonstration_ids=own)
    assert distances(rows, "gold", LABELS, {"c0": ["d1", "d4"]}).tolist() == [1, 2, 1, 0]


def test_rows_whose_demonstrations_are_unknown_are_marked_and_left_out():
    rows = shared("aabb", cell="other")
    assert distances(rows, "gold", LABELS, {"c0": ["d1"]}).tolist() == [-1] * 4
    assert by_presence(rows, LABELS, {"c0": ["d1"]}).empty
    assert by_presence(cell("aabb"), LABELS).empty


def test_a_demonstration_without_a_label_is_an_error():
    with pytest.raises(ValueError, match="no label for 1 demonstration"):
        distances(shared("aabb"), "gold", LABELS, {"c0": ["d1", "d9"]})


def test_many_rows_have_the_distances_of_a_plain_loop():
    rng = np.random.default_rng(0)
    names, letters = np.array([f"d{i}" for i in range(30)]), "abcde"
    labels = {name: letters[i % 5] for i, name in enumerate(names)}
    own = [list(rng.choice(names, rng.integers(0, 9), replace=False)) for _ in range(300)]
    rows = cell("a" * 300, "".join(rng.choice(list(letters), 300))).assign(demonstration_ids=own)
    expected = []
    for ids, gold in zip(own, rows["gold"], strict=True):
        here = [labels[name] for name in reversed(ids)]
        expected.append(here.index(gold) + 1 if gold in here else 0)
    assert distances(rows, "gold", labels).tolist() == expected
    as_arrays = rows.assign(demonstration_ids=[np.array(ids, dtype=object) for ids in own])
    assert distances(as_arrays, "gold", labels).tolist() == expected


def test_accuracy_is_told_apart_by_whether_the_right_label_is_shown():
    rows = frame(shared("abba"), shared("aabb", draw=1, cell="c1"))
    found = by_presence(rows, LABELS, {"c0": ["d1"], "c1": ["d2"]})
    assert found[["present", "predictions", "accuracy"]].to_numpy().tolist() == [
        [False, 4, 3 / 4],  # b of the first draw, a of the second
        [True, 4, 3 / 4],
    ]
    assert (found["ci_low"] < found["accuracy"]).all()


def test_accuracy_is_told_apart_by_distance():
    ids = ["d1", "d2", "d4", "d4", "d4"]  # a at 5, b at 4
    rows = frame(shared("abbb"), shared("aabb", draw=1, cell="c1"))
    found = by_distance(rows, LABELS, {"c0": ids, "c1": ["d2", "d4", "d4", "d4", "d4"]})
    assert found[["nearest", "farthest", "predictions", "accuracy"]].to_numpy().tolist() == [
        [0, 0, 2, 1],
        [4, 5, 6, 5 / 6],
    ]


def test_bins_of_distance_can_be_chosen():
    ids = ["d1", "d2", "d4", "d4", "d4"]
    found = by_distance(shared("abbb"), LABELS, {"c0": ids}, bins=(1, 3, 5))
    assert found[["nearest", "farthest", "accuracy"]].to_numpy().tolist() == [[3, 4, 1], [5, 5, 0.5]]


def test_copying_is_accuracy_on_queries_that_are_among_the_demonstrations():
    found = copying(shared("abbb"), {"c0": ["9", "1", "2"]})
    assert found[["k", "predictions", "accuracy"]].to_numpy().tolist() == [[5, 2, 0.5]]
    everything = copying(shared("abbb"), {"c0": ["0", "1", "2", "3"]})
    expected = mean_interval(np.array([[1, 0, 1, 1]]))
    assert everything[["accuracy", "ci_low", "ci_high"]].to_numpy()[0].tolist() == list(expected)


def test_queries_of_their_own_demonstrations_are_copied_too():
    rows = cell("abbb").assign(demonstration_ids=[["0"], ["1", "0"], ["3"], []])
    assert copying(rows)["predictions"].tolist() == [2]


def test_no_predictions_make_empty_tables_with_all_columns():
    for table, columns in [
        (by_presence(cell("aabb").iloc[:0], LABELS, {}), ["present"]),
        (by_distance(cell("aabb").iloc[:0], LABELS, {}), ["nearest", "farthest"]),
        (copying(cell("aabb"), {}), []),
    ]:
        assert table.empty
        assert list(table.columns)[-4 - len(columns) :] == [*columns, "predictions", "accuracy", "ci_low", "ci_high"]


def test_a_demonstration_that_is_no_query_is_copied_by_none():
    found = distances(shared("abbb"), "test_id", None, {"c0": ["x", "0", "y"]})
    assert found.tolist() == [2, 0, 0, 0]
