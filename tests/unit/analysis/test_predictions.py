"""Which predictions findings are of."""

from __future__ import annotations

import pandas as pd
from support.predictions import cell, frame

from icl_bench.analysis.predictions import have_common_labels, joined, prompt_lengths, prompted, unperturbed_predictions


def test_copied_queries_and_perturbed_demonstrations_are_not_asked_for():
    rows = frame(cell("a", "a"), cell("a", "a", k=1, queries="copied"), cell("a", "a", k=2, perturbation="shuffled"))
    assert unperturbed_predictions(rows)["k"].tolist() == [5]
    assert unperturbed_predictions(rows.drop(columns="queries"))["k"].tolist() == [5, 1]
    assert unperturbed_predictions(rows.drop(columns="perturbation"))["k"].tolist() == [5, 2]
    assert unperturbed_predictions(rows.assign(queries=None))["k"].tolist() == [5, 1]
    assert unperturbed_predictions(cell("a", "a"))["k"].tolist() == [5]


def test_trained_classifiers_are_not_prompted():
    rows = frame(cell("a", "a"), cell("a", "a", k=1, select="lora"), cell("a", "a", k=2, select="lora-paper"))
    assert prompted(rows)["k"].tolist() == [5]
    assert prompted(rows.astype({"select": "category"}))["k"].tolist() == [5]


def test_labels_are_common_where_there_are_some_that_are_not_a_rows_own():
    rows = cell("aabb").assign(correct=[True, None, False, None])
    assert have_common_labels(rows).tolist() == [True, False, True, False]
    own = rows.assign(own_choices=[True, True, False, False])
    assert have_common_labels(own).tolist() == [False, False, True, False]


def test_parts_are_joined_and_an_empty_table_is_only_where_all_are():
    empty = pd.DataFrame({"n": [], "m": []})
    one, two = pd.DataFrame({"n": [1]}), pd.DataFrame({"n": [2, 3]})
    found = joined([one, empty, two], empty)
    assert found["n"].tolist() == [1, 2, 3]
    assert found.index.tolist() == [0, 1, 2]
    assert list(found.columns) == ["n"]
    assert joined([empty, one.iloc[:0]], empty) is empty
    assert joined([], empty) is empty


def test_a_prompt_that_a_server_reads_once_for_each_label_is_as_long_as_one_of_them():
    rows = cell("aab", "aab").assign(
        prompt_tokens=[770, 30, 10],
        local_prompt_tokens=[100, None, 9],
        probability=[0.5, 0.5, None],
        samples=[None, ["a", "b", "a"], None],
    )
    assert prompt_lengths(rows).tolist() == [100, 10, 10]
    assert prompt_lengths(rows.drop(columns="prompt_tokens"))[1:].isna().all()
