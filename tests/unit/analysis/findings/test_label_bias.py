"""Label frequencies, their distance, and the mistakes behind it, as one counts them by hand."""

from __future__ import annotations

import pytest
from support.predictions import cell, frame

from icl_bench.analysis.columns import POINT
from icl_bench.analysis.findings.label_bias import (
    MOST_LABELS,
    confusion_matrix,
    confusions,
    label_bias,
    label_frequencies,
)


def test_labels_have_the_shares_in_which_they_are_right_and_said():
    found = label_frequencies(frame(cell("aaab"), cell("aaac", draw=1)))
    assert found[["label", "gold", "predicted"]].to_numpy().tolist() == [
        ["a", 0.5, 6 / 8],
        ["b", 0.5, 1 / 8],
        ["c", 0, 1 / 8],
    ]


def test_points_have_frequencies_of_their_own():
    found = label_frequencies(frame(cell("aaaa", k=5), cell("bbbb", k=1)))
    assert found[["k", "label", "predicted"]].to_numpy().tolist() == [
        [1, "a", 0],
        [1, "b", 1],
        [5, "a", 1],
        [5, "b", 0],
    ]
    apart = frame(cell("aaaa", "aaaa", task="t"), cell("xxxx", "xxxx", task="u"))
    assert label_frequencies(apart)["label"].tolist() == ["a", "x"]


def test_bias_is_the_share_of_answers_that_would_have_to_change():
    (found,) = label_bias(cell("aaac")).itertuples()
    assert found.total_variation == 0.5
    assert (found.label, found.excess) == ("a", 0.25)


def test_wrong_answers_in_the_right_frequencies_are_no_bias():
    (found,) = label_bias(cell("bbaa")).itertuples()
    assert found.total_variation == 0


def test_confusions_are_the_most_frequent_mistakes_first():
    cells = (cell(said, "aaab", draw=draw) for draw, said in enumerate(("bbaa", "bcaa", "bbbb")))
    found = confusions(frame(*cells))
    assert found[["gold", "prediction", "count", "share"]].to_numpy().tolist() == [
        ["a", "b", 6, 6 / 9],
        ["b", "a", 2, 2 / 3],
        ["a", "c", 1, 1 / 9],
    ]


def test_an_answer_that_is_one_of_several_right_ones_is_no_mistake():
    rows = cell("bbca", "aaaa").assign(golds=[["a", "b"], ["a"], ["a", "b"], None])
    rows["correct"] = [True, False, False, True]
    assert confusions(rows)[["gold", "prediction", "count", "share"]].to_numpy().tolist() == [
        ["a", "b", 1, 1 / 3],
        ["a", "c", 1, 1 / 3],
    ]
    matrix = confusion_matrix(rows).set_index(["gold", "prediction"])["count"].to_dict()
    assert matrix == {("a", "a"): 1, ("a", "b"): 1, ("a", "c"): 1, ("b", "b"): 1}
    assert label_bias(rows)["total_variation"].tolist() == [0.5]


def test_a_mistake_has_the_columns_of_its_point_and_its_own():
    found = confusions(cell("bbab"))
    assert list(found.columns) == [*POINT, "gold", "prediction", "count", "share"]
    assert found.index.tolist() == [0, 1]


def test_each_point_has_its_own_top_confusions():
    found = confusions(frame(cell("bcaa", k=1), cell("bbab", k=5)), top=1)
    assert found[["k", "gold", "prediction", "count"]].to_numpy().tolist() == [[1, "b", "a", 2], [5, "a", "b", 2]]


def test_no_answer_is_a_mistake_like_another():
    rows = cell("a?bb").replace({"prediction": {"?": None}})
    assert confusions(rows)[["gold", "prediction", "count"]].to_numpy().tolist() == [["a", "", 1]]


@pytest.mark.parametrize("table", [label_frequencies, label_bias, confusions])
def test_free_text_and_nothing_have_no_labels(table):
    columns = list(table(cell("bbaa")).columns)
    for rows in (cell("aabb").assign(correct=None), cell("aabb").iloc[:0]):
        assert table(rows).empty
        assert list(table(rows).columns) == columns


def test_where_all_is_right_there_are_no_confusions():
    assert confusions(cell("aabb")).empty


def test_a_confusion_matrix_has_every_pair_with_its_denominator():
    rows = frame(cell("aabbc?", "aaabbc", cell="1"), cell("abbbcc", "aaabbc", draw=1, cell="2"))
    table = confusion_matrix(rows)
    found = {
        (row.gold, row.prediction): (row.count_, row.of)
        for row in table.rename(columns={"count": "count_"}).itertuples()
    }
    assert found == {
        ("a", "a"): (3, 6),
        ("a", "b"): (3, 6),
        ("b", "b"): (2, 4),
        ("b", "c"): (2, 4),
        ("c", "?"): (1, 2),
        ("c", "c"): (1, 2),
    }
    assert table["share"].tolist() == [count / of for count, of in found.values()]
    assert table.groupby("gold")["share"].sum().tolist() == [1.0, 1.0, 1.0]


def test_a_task_with_many_labels_has_no_confusion_matrix():
    letters = [chr(97 + at) for at in range(MOST_LABELS + 1)]
    table = confusion_matrix(frame(cell(letters, letters, task="many"), cell(letters[:-1], letters[:-1], task="few")))
    assert set(table["task"]) == {"few"}
    assert len(table) == MOST_LABELS
