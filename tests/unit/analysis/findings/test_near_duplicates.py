"""Retrieval's scores with and without the test rows that have a near duplicate in the pool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.fakes import FakeBackend, plan, runner
from support.predictions import cell, frame, texts
from support.stored import meta

from icl_bench.analysis.all_findings import find
from icl_bench.analysis.findings.near_duplicates import NEAR_DUPLICATES, NOT_KNOWN, known_near, near_duplicates
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.results.reading import Stored, finished_cells, read_some

BM25 = {"select": "bm25", "order": "relevance"}


def test_scores_are_of_the_rows_with_and_without_a_near_duplicate():
    rows = frame(cell("aabbab", "aabbbb", **BM25), cell("aabbab", "aabbbb"))
    (found,) = near_duplicates(rows, {"v": ["0", "4", "other"]}).to_dict("records")
    assert (found["select"], found["near"], found["rows"], found["draws"]) == ("bm25", 2, 6, 1)
    for part, correct in (("", [1, 1, 1, 1, 0, 1]), ("without_", [1, 1, 1, 1]), ("with_", [1, 0])):
        numbers = [found[f"{part}{name}"] for name in ("score", "ci_low", "ci_high")]
        assert numbers == pytest.approx(list(mean_interval(np.array([correct]))))
    assert found["interval_over"] == "test examples only"


def test_hybrids_and_free_text_count_and_points_without_demonstrations_do_not():
    rouge = np.array([[0.5, 0.25, 0.75]])
    rows = frame(
        texts(rouge, select="hybrid:2", k=5),
        texts(rouge, select="hybrid:2", k=0),
        texts(rouge, select="balanced"),
        texts(rouge, select="theirs"),
    )
    (found,) = near_duplicates(rows, {"v": ["row 000"]}).itertuples()
    assert (found.select, found.k, found.metric) == ("hybrid:2", 5, "rouge1")
    assert (found.with_score, found.without_score) == (0.5, 0.5)


def test_without_near_duplicates_all_rows_are_left_and_nothing_is_printed():
    table = near_duplicates(cell("aabb", **BM25), {"v": []})
    (found,) = table.itertuples()
    assert (found.near, found.without_score, found.score) == (0, 1.0, 1.0)
    assert np.isnan(found.with_score)
    assert NEAR_DUPLICATES.printed is not None
    assert NEAR_DUPLICATES.printed.rows(table).empty


def test_cells_that_do_not_say_it_are_named():
    table = near_duplicates(cell("aabb", **BM25), {"v": None})
    (found,) = table.itertuples()
    assert (found.score, found.reason) == (1.0, NOT_KNOWN)
    assert np.isnan([found.near, found.without_score]).all()
    assert NEAR_DUPLICATES.printed is not None
    assert NEAR_DUPLICATES.printed.rows(table)["near"].tolist() == ["not known"]


def test_a_cell_says_it_for_others_of_its_data_test_rows_and_pool():
    same = {"data": {"a": "1"}, "test": "t", "pool": "p"}
    cells = [
        meta("old", facts=same),
        meta("new", facts=same | {"seed": 1}, near_duplicates=["x"]),
        meta("none", facts=same | {"pool": "q"}, near_duplicates=[]),
        meta("other", facts=same | {"test": "u"}),
    ]
    assert known_near(cells) == {"old": {"x"}, "new": {"x"}, "none": set(), "other": None}


def test_imports_have_no_row():
    rows = cell("aabb", **BM25).assign(cell="c", queries=None, perturbation=None, label_space=None)
    assert find(Stored(rows, {}, {}, [])).near_duplicates.empty


def test_cells_store_the_test_rows_that_are_nearly_in_the_pool(tmp_path: Path):
    made = plan(tmp_path / "task", "2", draws=1, selects=["bm25"])
    data = made.task.data
    like = replace(data.test[0], fields={"text": data.train[0].fields["text"].upper() + "?"})
    made.task.data = replace(data, test=(like, *data.test[1:]))
    runner(made, tmp_path / "results", FakeBackend()).run()
    ((_, stored),) = finished_cells(tmp_path / "results")
    assert stored.near_duplicates == [like.id]
    (found,) = find(read_some(tmp_path / "results")).near_duplicates.itertuples()
    assert (found.near, found.rows) == (1, 6)
    assert pd.isna(found.reason)
