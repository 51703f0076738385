"""Every table can be made of a results folder, labels and free text, random and retrieved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.fakes import FREE_TEXT, FakeBackend, plan, runner

from icl_bench.analysis.findings.calibration import calibration_error, reliability
from icl_bench.analysis.findings.comparisons import compare_models, retrieval_gain, sorting_penalty
from icl_bench.analysis.findings.demonstrations import by_distance, by_presence, copying
from icl_bench.analysis.findings.label_bias import confusions, label_bias
from icl_bench.analysis.findings.order import noise_floor, order_sensitivity
from icl_bench.analysis.findings.saturation import context_shares, saturation_chances
from icl_bench.results.reading import finished_cells, read_results


@pytest.fixture
def results(tmp_path: Path) -> Path:
    plans = [
        plan(tmp_path / "cards", "2,4", name="cards", orders=["drawn", "by-label", "shuffled:1"]),
        plan(tmp_path / "cards", "2,4", name="cards", selects=["bm25"]),
        plan(tmp_path / "texts", "2", name="texts", **FREE_TEXT),
    ]
    for made in plans:
        runner(made, tmp_path / "results", FakeBackend()).run()
    return tmp_path / "results"


def test_every_table_is_of_its_tasks_alone(results: Path):
    frame, rng = read_results(results), np.random.default_rng(0)
    tables = [
        order_sensitivity(frame),
        sorting_penalty(frame),
        retrieval_gain(frame),
        label_bias(frame),
        confusions(frame),
    ]
    for table in tables:
        assert set(table["task"]) == {"cards"}
    for table in (saturation_chances(frame, rng), context_shares(frame, {"small": 512})):
        metrics = table[["task", "metric"]].astype(str).drop_duplicates().to_numpy().tolist()
        assert metrics == [["cards", "accuracy"], ["texts", "rouge1"]]
    assert retrieval_gain(frame)["k"].tolist() == [2, 4]
    assert context_shares(frame, {"small": 512})["share_of_window"].between(0.01, 1).all()
    assert compare_models(frame, "small").empty


def test_demonstrations_are_those_that_the_folder_names(results: Path):
    frame = read_results(results)
    shared = {meta.cell: meta.demonstration_ids for _, meta in finished_cells(results)}
    shared = {cell: ids for cell, ids in shared.items() if ids is not None}
    names = {name for ids in shared.values() for name in ids}
    names |= {name for ids in frame["demonstration_ids"].dropna() for name in ids}
    labels = dict.fromkeys(names, frame.loc[frame["task"] == "cards", "gold"].iloc[0])
    found = by_presence(frame, labels, shared)
    assert found["present"].any()
    total = frame["correct"].notna().sum()
    assert found["predictions"].sum() == by_distance(frame, labels, shared)["predictions"].sum() == total
    assert copying(frame, shared).empty


def test_what_the_folder_does_not_have_makes_empty_tables(results: Path):
    frame = read_results(results)
    assert "probability" not in frame
    for table in (reliability(frame), calibration_error(frame, np.random.default_rng(0))):
        assert table.empty
    twice = pd.concat([frame, frame.assign(variant="again")], ignore_index=True)
    again = noise_floor(twice)
    assert again["changed"].max() == 0
    assert again["predictions"].sum() >= len(frame)
