"""How far the studies of a folder are: cells of each point that are done, failed and missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from support.predictions import cell
from support.stored import SPEC, meta

from icl_bench.analysis.context import Context
from icl_bench.analysis.findings.studies import STUDY_COLUMNS, STUDY_POINT, study_points
from icl_bench.results.reading import Stored
from icl_bench.results.stored_meta import FailureMeta, SpecMeta, StudyCell
from icl_bench.results.studies import write_study

FAILED = [
    FailureMeta(spec=SpecMeta(**SPEC), cell=name, variant="v", reason=reason)
    for name, reason in (("c3", "out of memory"), ("c4", "too long"), ("c1", "at first"))
]


def asked(name: str, **changes: Any) -> StudyCell:
    return StudyCell(**{**SPEC, "cell": name, "variant": "v", "setting": "plain", **changes})


def context(place: Path | None, **only: str) -> Context:
    stored = Stored(cell("aabb").iloc[:0], dict.fromkeys(("c1", "c2", "other"), meta()), {}, FAILED)
    return Context(stored, results=place, **only)


def test_the_cells_of_each_point_are_counted(tmp_path: Path):
    write_study(tmp_path, "mine", [asked(f"c{i}", draw=i) for i in range(1, 6)], whole=True)
    (row,) = study_points(context(tmp_path)).to_dict("records")
    point = dict(zip(STUDY_POINT, ["mine", "plain", "t", "m", "random", "drawn", "full", 5], strict=True))
    assert row == {**point, "cells": 5, "done": 2, "failed": 2, "missing": 1, "reason": "out of memory"}


def test_points_differ_in_any_part_of_their_name_and_keep_the_order_of_the_study(tmp_path: Path):
    others = {
        "setting": "s",
        "task": "u",
        "model": "n",
        "select": "bm25",
        "order": "relevance",
        "attention": "block:2",
        "k": 10,
    }
    cells = [asked("c1"), *(asked(name, **{name: value}) for name, value in others.items())]
    write_study(tmp_path, "mine", cells, whole=True)
    write_study(tmp_path, "yours", [asked("c2")], whole=True)
    table = study_points(context(tmp_path))
    assert table["cells"].tolist() == [1] * 9
    assert table["study"].tolist() == ["mine"] * 8 + ["yours"]
    assert table["done"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 1]
    assert list(table.columns) == STUDY_COLUMNS
    assert json.loads(table[STUDY_POINT[1:]].iloc[3:5].to_json(orient="values")) == [
        ["plain", "t", "n", "random", "drawn", "full", 5],
        ["plain", "t", "m", "bm25", "drawn", "full", 5],
    ]


def test_of_one_task_or_model_there_are_no_other_points(tmp_path: Path):
    cells = [asked("a", task="u"), asked("b", model="n"), asked("c1"), asked("c2", k=10)]
    write_study(tmp_path, "mine", cells, whole=True)
    for only, ks in [
        ({"task": "t"}, [5, 5, 10]),
        ({"model": "m"}, [5, 5, 10]),
        ({"task": "t", "model": "m"}, [5, 10]),
        ({"task": "x"}, []),
    ]:
        assert study_points(context(tmp_path, **only))["k"].tolist() == ks


def test_without_a_study_or_a_folder_the_table_is_empty(tmp_path: Path):
    for place in (None, tmp_path):
        found = study_points(context(place))
        assert isinstance(found, pd.DataFrame)
        assert found.empty
        assert list(found.columns) == STUDY_COLUMNS
