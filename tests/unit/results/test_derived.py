"""Calibrated predictions are derived from stored scores, cell by cell, and asked queries are no test rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from support.fakes import FakeBackend, plan, planned, runner, tokenized_task
from support.in_memory import MemoryStorage

from icl_bench.analysis.all_findings import find, read_findings
from icl_bench.analysis.label_probabilities import missing_scores
from icl_bench.metrics.interface import Measure, Metric
from icl_bench.registry import METRICS
from icl_bench.report.prompt_trace import find_prediction
from icl_bench.results.cells import AXES, PRIORS, SCORES
from icl_bench.results.derived import base_cell, with_calibrations
from icl_bench.results.exporting import export_results
from icl_bench.results.importing import import_predictions
from icl_bench.results.label_scores import KeptScores
from icl_bench.results.reading import (
    Stored,
    _joined,
    read_results,
    read_stored,
    result_files,
    state_prior,
    stated_priors,
    warn,
)
from icl_bench.results.storage import CellsOf, LocalStorage
from icl_bench.results.stored_meta import PriorMeta, StudyCell, as_stored, json_content
from icl_bench.results.studies import write_study
from icl_bench.sweep.calibration_queries import queries_of
from icl_bench.table_files import data_frame

CALIBRATIONS = ("batch,of=pool:5", "contextual", "domain")
PRIOR = {"card arrival": 0.5, "card lost": 0.3, "top up": 0.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a sweep with every calibration."""
    folder = tmp_path_factory.mktemp("derived")
    ready = plan(folder / "task", "0,1,4", scoring="exact", calibrations=CALIBRATIONS)
    runner(ready, folder / "results", FakeBackend(scored=True)).run()
    state_prior(folder / "results", "cards", "shop", PRIOR)
    return folder / "results"


@pytest.fixture(scope="module")
def stored(folder: Path) -> Stored:
    return read_stored(folder, derive=True)


def _raw(folder: Path) -> pd.DataFrame:
    """All stored predictions, also those of calibration queries."""
    return data_frame(_joined(list(result_files(folder, warn, scores=True))))


def _of(frame: pd.DataFrame, key: tuple[object, ...]) -> pd.DataFrame:
    return frame[(frame[list(AXES)].astype(str) == list(map(str, key))).all(axis=1)]


def test_every_cell_has_each_calibration(stored: Stored) -> None:
    calibrations = {facts.calibration for facts in stored.variants.values()}
    assert calibrations == {None, "batch", *CALIBRATIONS, "prior=shop"}
    per_cell = stored.predictions.groupby(list(AXES), observed=True)["variant"].nunique()
    assert (per_cell == 6).all()
    assert len(per_cell) == 5  # k=0 once, two draws of k=1 and k=4


@pytest.mark.parametrize("name", ["batch", *CALIBRATIONS])
def test_a_derived_answer_is_the_likeliest_label_after_the_bias_of_its_own_cell(
    name: str, folder: Path, stored: Stored
) -> None:
    raw = _raw(folder)
    kind = {"batch": None, "batch,of=pool:5": "pool:5"}.get(name, name)
    derived = stored.predictions[stored.predictions["variant"].astype(str).str.endswith(f"+{name}")]
    labels = sorted(PRIOR)
    for key, rows in derived.groupby(list(AXES), observed=True):
        cell = _of(raw, key)
        queries = cell["queries"].astype(object)
        plain = cell[queries.isna()]
        asked = plain if kind is None else cell[queries == kind]
        scores, others = (np.stack(part[SCORES]).astype(float) for part in (plain, asked))
        if name.startswith("batch"):
            bias = others.mean(axis=0)
        else:
            chances = np.exp(others) / np.exp(others).sum(axis=1, keepdims=True)
            bias = np.log(chances.mean(axis=0))
        expected = dict(zip(plain["test_id"], (scores - bias).argmax(axis=1), strict=True))
        assert len(rows) == len(plain)
        for row in rows.to_dict("records"):
            assert row["prediction"] == labels[expected[row["test_id"]]]
            assert row["correct"] == (row["prediction"] == row["gold"])
            assert row["label_mass"] == pytest.approx(1)


def test_the_models_own_predictions_stay_as_they_are_stored(folder: Path, stored: Stored) -> None:
    raw = _raw(folder)
    plain = raw[raw["queries"].astype(object).isna()].drop(columns=SCORES)
    read = stored.predictions[~stored.predictions["cell"].astype(str).str.contains("+", regex=False)]
    names = ["cell", "test_id", "prediction", "probability", "margin", "label_mass"]
    first, second = (frame[names].astype(str).sort_values(names).reset_index(drop=True) for frame in (plain, read))
    pd.testing.assert_frame_equal(first, second)


def test_queries_that_were_asked_to_calibrate_are_no_predictions_of_the_results(folder: Path, stored: Stored) -> None:
    assert _raw(folder)["queries"].notna().any()
    assert stored.predictions["queries"].isna().all()
    assert read_stored(folder).predictions["queries"].isna().all()
    assert "queries" not in read_results(folder)


def test_a_derived_cell_is_named_by_its_cell_and_says_what_its_calibration_took(stored: Stored) -> None:
    derived = {cell: meta for cell, meta in stored.cells.items() if "+" in cell}
    assert {base_cell(cell) for cell in derived} == set(stored.cells) - set(derived)
    for cell, meta in derived.items():
        took = meta.calibration
        if cell.endswith("of=pool:5"):
            assert took is not None
            assert (took.queries, took.tokens > 0) == (5, True)
        elif cell.endswith(("+batch", "+prior=shop")):
            assert took is None


def test_scores_of_a_derived_cell_are_the_calibrated_ones(stored: Stored) -> None:
    for cell, scores in stored.label_scores.items():
        rows = stored.predictions[stored.predictions["cell"] == cell].set_index("test_id").loc[list(scores.tests)]
        if "+" in cell:
            np.testing.assert_allclose(np.exp(scores.logs).max(axis=1), rows["probability"], rtol=1e-9)
        assert rows["gold"].tolist() == list(scores.golds)


def test_an_import_of_an_export_with_scores_is_calibrated_like_the_results(
    folder: Path, stored: Stored, tmp_path: Path
) -> None:
    export_results(folder, tmp_path / "export.parquet", scores=True)
    import_predictions(tmp_path / "export.parquet", tmp_path / "results")
    state_prior(tmp_path / "results", "cards", "shop", PRIOR)
    read = read_stored(tmp_path / "results", derive=True)
    here = {cell for cell in stored.label_scores if cell.partition("+")[2] in ("", "batch", "prior=shop")}
    assert set(read.label_scores) == here  # queries of other calibrations are not exported
    for cell in here:
        np.testing.assert_array_equal(read.label_scores[cell].logs, stored.label_scores[cell].logs)
    assert not read.cells
    names = ["cell", "variant", "test_id", "prediction", "correct", "probability", "margin", "label_mass"]
    own, other = (
        frame.predictions[frame.predictions["cell"].isin(here)][names].astype({"cell": str, "variant": str})
        for frame in (stored, read)
    )
    own, other = (frame.sort_values(["cell", "test_id"]).reset_index(drop=True) for frame in (own, other))
    pd.testing.assert_frame_equal(own, other)
    assert not read.own_predictions["cell"].astype(str).str.contains("+", regex=False).any()
    assert {facts.calibration for facts in read.variants.values()} == {None, "batch", "prior=shop"}
    tables = find(read)
    columns = ["k", "calibration", "difference", "p"]
    ours, theirs = (
        found.calibration_gain.query("calibration in ['batch', 'prior=shop']") for found in (find(stored), tables)
    )
    pd.testing.assert_frame_equal(theirs[columns].reset_index(drop=True), ours[columns].reset_index(drop=True))
    assert len(tables.probability_scores)


@pytest.mark.parametrize("scores", [True, False])
def test_an_import_without_the_scores_of_its_cells_is_told(folder: Path, tmp_path: Path, scores: bool) -> None:
    export_results(folder, tmp_path / "export.parquet", scores=scores)
    import_predictions(tmp_path / "export.parquet", tmp_path / "results")
    notes = missing_scores(read_stored(tmp_path / "results", derive=True))
    own = len(read_stored(folder).cells)
    told = f"{own} imported cells scored every label, but the import has no scores"
    assert [note.partition(":")[0] for note in notes] == ([] if scores else [told])


def test_a_calibrated_imported_prediction_is_shown_as_it_is_calibrated(folder: Path, tmp_path: Path) -> None:
    export_results(folder, tmp_path / "export.parquet", scores=True)
    table = pq.read_table(tmp_path / "export.parquet")
    pq.write_table(table.append_column("question", table["test_id"]), tmp_path / "asked.parquet")
    import_predictions(tmp_path / "asked.parquet", tmp_path / "results")
    rows = read_stored(tmp_path / "results", derive=True).predictions
    row = rows[rows["cell"].astype(str).str.endswith("+batch")].iloc[0]
    wanted = {"task": "cards", "cell": row["cell"]}
    shown = find_prediction(tmp_path / "results", wanted, row["test_id"]).row
    names = ["cell", "prediction", "probability", "correct"]
    assert [shown[name] for name in names] == row[names].tolist()


def test_rows_of_the_pool_are_kept_with_their_right_labels(stored: Stored) -> None:
    plain = {cell for cell in stored.cells if "+" not in cell}
    assert set(stored.pool_scores) == plain
    for scores in stored.pool_scores.values():
        assert len(scores.golds) == 5
        assert set(scores.golds) <= set(PRIOR)


@pytest.mark.parametrize("keep", ["none", "top:2"])
def test_cells_without_all_scores_are_named_and_not_calibrated(keep: str, tmp_path: Path) -> None:
    one = runner(plan(tmp_path / "task", scoring="exact"), tmp_path / "results", FakeBackend(scored=True))
    one.keep_scores = KeptScores.parse(keep)
    one.run()
    stored = read_stored(tmp_path / "results", derive=True)
    assert sorted(stored.without_scores) == sorted(stored.cells)
    assert not stored.label_scores


def test_cells_of_greedy_answers_are_not_said_to_lack_scores(tmp_path: Path) -> None:
    runner(plan(tmp_path / "task"), tmp_path / "results", FakeBackend(scored=True)).run()
    stored = read_stored(tmp_path / "results", derive=True)
    assert not stored.without_scores
    assert not stored.label_scores


def test_a_prior_of_another_tasks_labels_calibrates_nothing(tmp_path: Path) -> None:
    runner(plan(tmp_path / "task", scoring="exact"), tmp_path / "results", FakeBackend(scored=True)).run()
    state_prior(tmp_path / "results", "cards", "other", {"ham": 1.0})
    calibrations = {f.calibration for f in read_stored(tmp_path / "results", derive=True).variants.values()}
    assert calibrations == {None, "batch"}


def test_a_studys_cells_that_were_asked_for_a_calibration_are_done(tmp_path: Path) -> None:
    ready = plan(tmp_path / "task", "1", scoring="exact", calibrations=["batch,of=pool:5"])
    outcome = runner(ready, tmp_path / "results", FakeBackend(scored=True)).run()
    names = {name.rpartition("-")[2]: spec for name, spec in outcome.names.items()}
    cells = [StudyCell(**spec.model_dump(), setting="s", cell=cell) for cell, spec in names.items()]
    write_study(tmp_path / "results", "mine", cells, whole=True)
    (points,) = read_findings(tmp_path / "results").study_points.to_dict("records")
    assert (points["cells"], points["done"], points["missing"]) == (4, 4, 0)


def test_a_view_of_some_cells_has_the_stated_priors(folder: Path) -> None:
    names = [name.removesuffix(".parquet") for name in LocalStorage(folder).names() if name.endswith(".parquet")]
    stored = read_stored(CellsOf(folder, names), derive=True)
    assert "prior=shop" in {facts.calibration for facts in stored.variants.values()}


def test_queries_calibrate_prompts_of_their_own_pool_alone(tmp_path: Path) -> None:
    """Two pools of one task: rows that are asked beside the prompts of one say nothing of the other's."""
    for share, calibrations in ((0.0, ["batch,of=pool:5", "contextual"]), (0.3, [])):
        task = {"pool": {"drop_longest": share}, "calibrations": calibrations}
        runner(plan(tmp_path / "task", "4", scoring="exact", **task), tmp_path / "all", FakeBackend(scored=True)).run()
    stored = read_stored(tmp_path / "all", derive=True)
    pools = {facts.pool_rows: set[str | None]() for facts in stored.variants.values()}
    for facts in stored.variants.values():
        pools[facts.pool_rows].add(facts.calibration)
    whole, smaller = (pools[rows] for rows in sorted(pools, key=lambda rows: -(rows or 0)))
    assert whole == {None, "batch", "batch,of=pool:5", "contextual"}
    assert smaller == {None, "batch"}


def test_other_rows_asked_for_other_test_rows_make_no_calibration_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test row that equals a row of the pool is not asked, so that two test sets may ask different rows."""
    for test_size in (3, 6):
        ready = plan(tmp_path / "task", "1", scoring="exact", test_size=test_size, calibrations=["batch,of=pool:5"])
        runner(ready, tmp_path / "all", FakeBackend(scored=True)).run()

        def without_one(task: Any, calibration: Any, draw: int) -> Any:
            queries, left = queries_of(task, replace(calibration, rows=6), draw)
            return queries[1:], left

        monkeypatch.setattr("icl_bench.sweep.calibration_queries.queries_of", without_one)
    stored = read_stored(tmp_path / "all", derive=True)
    assert len(stored.asked_cells) == 4
    calibrated = stored.predictions[stored.predictions["variant"].astype(str).str.endswith("pool:5")]
    assert len(calibrated) == 2 * (3 + 6)
    assert not stored.predictions.duplicated([*AXES, "variant", "test_id"]).any()


class LastLetter(Metric):
    """Whether an answer ends with the letter of the right one."""

    measures = (Measure("last_letter", "last_letter", "last letter"),)

    def score(self, gold: Sequence[str], predictions: Sequence[str]) -> dict[str, np.ndarray]:
        return {"last_letter": np.array([g[-1] == p[-1] for g, p in zip(gold, predictions, strict=True)], dtype=float)}


def test_calibrated_answers_have_their_own_scores_by_every_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METRICS._built_in, "last_letter", "somewhere:LastLetter")
    monkeypatch.setitem(METRICS._loaded, "last_letter", LastLetter)
    ready = plan(tmp_path / "task", scoring="exact", metrics=["last_letter", "accuracy"])
    runner(ready, tmp_path / "all", FakeBackend(scored=True)).run()
    rows = read_stored(tmp_path / "all", derive=True).predictions
    assert rows["cell"].astype(str).str.endswith("+batch").sum() == len(rows) / 2
    expected = [gold[-1] == answer[-1] for gold, answer in zip(rows["gold"], rows["prediction"], strict=True)]
    assert rows["last_letter"].tolist() == expected


def test_rows_of_the_pool_calibrate_test_rows_with_the_same_ids(tmp_path: Path) -> None:
    """The files of train and test rows each number their rows."""
    task = tokenized_task(tmp_path / "task", scoring="exact")
    train, test = (
        tuple(replace(row, id=str(number)) for number, row in enumerate(rows))
        for rows in (task.data.train, task.data.test)
    )
    ready = planned(
        replace(task, data=replace(task.data, train=train, test=test)), "1", draws=2, calibrations=["batch,of=pool:38"]
    )
    runner(ready, tmp_path / "all", FakeBackend(scored=True)).run()
    stored = read_stored(tmp_path / "all", derive=True)
    assert {facts.calibration for facts in stored.variants.values()} == {None, "batch", "batch,of=pool:38"}
    assert len(stored.pool_scores) == 2


def test_rows_that_were_asked_before_they_became_test_rows_calibrate_nothing(tmp_path: Path) -> None:
    first = plan(tmp_path / "task", "1", draws=1, scoring="exact", calibrations=["batch,of=pool:38"])
    runner(first, tmp_path / "all", FakeBackend(scored=True)).run()
    (asked,) = [group.group for group in first.groups if group.group.task.asked]
    data = replace(first.task.data, test=(replace(asked.queries(1)[0], id="new"), *first.task.data.test[1:]))
    other = planned(replace(first.task, data=data), "1", draws=1)
    runner(other, tmp_path / "all", FakeBackend(scored=True)).run()
    stored = read_stored(tmp_path / "all", derive=True)
    tests = {cell: set(scores.tests) for cell, scores in stored.label_scores.items() if cell.endswith("pool:38")}
    assert len(tests) == 1
    assert not any("new" in ids for ids in tests.values())


def test_queries_after_other_demonstrations_calibrate_nothing_and_are_named(tmp_path: Path) -> None:
    """Another machine or version of a library may choose other demonstrations."""
    ready = plan(tmp_path / "task", "2", draws=2, scoring="exact", calibrations=["contextual"])
    runner(ready, tmp_path / "all", FakeBackend(scored=True)).run()
    files = list(result_files(tmp_path / "all", warn, scores=True))
    (first, *_) = [file for file in files if file.asked_for is not None]
    meta = first.meta
    assert meta is not None
    assert meta.demonstration_ids is not None
    other = replace(first, meta=meta.model_copy(update={"demonstration_ids": meta.demonstration_ids[::-1]}))
    derived = with_calibrations([other if file is first else file for file in files], {})
    assert len([name for name in derived.scores if name.endswith("+contextual")]) == 1
    (note,) = derived.notes
    assert note.startswith(f"cell {meta.cell} (contextual): its queries follow other demonstrations than")
    assert not with_calibrations(files, {}).notes


def test_priors_whose_names_are_cleaned_to_the_same_have_files_of_their_own() -> None:
    storage = MemoryStorage()
    named = [("t", "p q"), ("t", "p-q"), ("t", "\u00e4"), ("t", "\u00f6"), ("a-b", "c"), ("a", "b-c"), ("t", "plain")]
    for number, (task, name) in enumerate(named):
        state_prior(storage, task, name, {"ham": 1 - number / 10, "spam": number / 10})
    assert {f"{PRIORS}/t-plain.json", f"{PRIORS}/a-b-c.json"} < storage.files.keys()
    priors = stated_priors(storage)
    assert [priors[task][name]["spam"] for task, name in named] == [number / 10 for number in range(len(named))]


def test_a_prior_of_an_earlier_version_is_read_and_takes_its_present_name() -> None:
    storage = MemoryStorage()
    old = f"{PRIORS}/t-p-q.json"
    storage.put(old, json_content(as_stored(PriorMeta(task="t", name="p q", shares={"ham": 1.0}))))
    assert stated_priors(storage) == {"t": {"p q": {"ham": 1.0}}}
    state_prior(storage, "t", "p-q", {"ham": 0.5, "spam": 0.5})
    assert old in storage.files
    state_prior(storage, "t", "p q", {"spam": 1.0})
    assert old not in storage.files
    assert stated_priors(storage) == {"t": {"p q": {"spam": 1.0}, "p-q": {"ham": 0.5, "spam": 0.5}}}
