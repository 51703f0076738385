"""An export is the results, column by column, in one file."""

from __future__ import annotations

import csv
import gzip
import json
import time
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.disks import files_no_larger_than
from support.fakes import FREE_TEXT, FakeBackend, model, plan, planned, runner, small_tokenizer, write_rows
from support.stored import meta

from icl_bench.analysis.all_findings import find
from icl_bench.analysis.baseline_check import check_results, read_baseline
from icl_bench.analysis.summary import summarise_folder
from icl_bench.errors import UserError
from icl_bench.results.exporting import FIRST, export_results, origins
from icl_bench.results.facts import Facts
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import EXPORT_META, finished_cells, read_results, read_stored, read_table
from icl_bench.results.stored_meta import Origin
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task


@pytest.fixture
def results(tmp_path: Path) -> Path:
    made = plan(tmp_path / "task", "2", selects=["random", "bm25"])
    runner(made, tmp_path / "results", FakeBackend()).run()
    return tmp_path / "results"


@pytest.mark.parametrize("name", ["all.parquet", "new/folder/all.csv", "ALL.CSV.GZ"])
def test_an_export_has_every_prediction_and_the_columns_that_scripts_rely_on(results: Path, tmp_path: Path, name: str):
    out = tmp_path / name
    frame = read_results(results)
    assert export_results(results, out) == len(frame) == 4 * 6
    if name.endswith("parquet"):
        found = pd.read_parquet(out)
    else:
        raw = out.read_bytes()
        assert raw[:2] == b"\x1f\x8b" if name.endswith("GZ") else raw.startswith(b"task,model,")
        text = gzip.decompress(raw) if name.endswith("GZ") else raw
        (tmp_path / "plain.csv").write_bytes(text)
        found = pd.read_csv(tmp_path / "plain.csv", dtype={"test_id": str})
    assert tuple(found.columns[: len(FIRST)]) == FIRST
    assert set(found.columns) == set(frame.columns)
    for column in ("test_id", "gold", "prediction", "k", "prompt_tokens"):
        assert found[column].tolist() == frame[column].tolist()
    assert found["correct"].astype(bool).tolist() == frame["correct"].tolist()


@pytest.mark.parametrize("name", ["all.txt", "all", "all.parquet.gz", "csv"])
def test_another_ending_is_refused(results: Path, tmp_path: Path, name: str):
    with pytest.raises(UserError, match=r"must end in \.parquet, \.csv or \.csv\.gz"):
        export_results(results, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_file_that_cannot_be_written_is_refused(results: Path, tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "folder.parquet").mkdir()
    for out in (tmp_path / "file" / "all.csv", tmp_path / "folder.parquet"):
        with pytest.raises(UserError, match="cannot be written"):
            export_results(results, out)


@pytest.mark.parametrize("name", ["all.parquet", "all.csv", "all.csv.gz"])
def test_an_export_that_fails_half_way_leaves_the_old_file_and_nothing_else(results: Path, tmp_path: Path, name: str):
    out = tmp_path / "exports" / name
    export_results(results, out)
    before = out.read_bytes()
    with (
        files_no_larger_than(len(before) // 2),
        pytest.raises(UserError, match=r"cannot be written \(File too large\)"),
    ):
        export_results(results, out)
    assert out.read_bytes() == before
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("name", ["all.parquet", "all.csv", "all.csv.gz"])
def test_the_same_results_make_the_same_bytes(results: Path, tmp_path: Path, name: str):
    export_results(results, tmp_path / name)
    time.sleep(1.1 if name.endswith("gz") else 0)  # gzip notes the second
    export_results(results, tmp_path / "again" / name)
    assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


# -- what an export says of itself --------------------------------------------------------------


def test_each_variant_says_its_facts_and_every_set_of_versions_once():
    cells = [
        meta("a", facts={"seed": 0}, versions={"torch": "1"}),
        meta("b", facts={"seed": 1}),
        meta("a", facts={"seed": 0}, versions={"torch": "2"}),
        meta("a", facts={"seed": 0}, versions={"torch": "1"}),
    ]
    assert origins(cells) == {
        "a": Origin(facts=Facts(seed=0), versions=[{"torch": "1"}, {"torch": "2"}]),
        "b": Origin(facts=Facts(seed=1), versions=[{}]),
    }


def test_a_parquet_export_says_what_decided_its_cells_in_their_own_letters(tmp_path: Path):
    template = {"input": "demande: {text}", "output": "thème: {label}"}
    made = plan(tmp_path / "task", "2", template=template)
    runner(made, tmp_path / "results", FakeBackend()).run()
    export_results(tmp_path / "results", tmp_path / "all.parquet")
    said = (pq.read_schema(tmp_path / "all.parquet").metadata[EXPORT_META]).decode()
    cells = [meta for _, meta in finished_cells(tmp_path / "results")]
    expected = {cells[0].variant: {"facts": cells[0].facts.known(), "versions": [cells[0].versions]}}
    expected[cells[0].variant]["metrics"] = ["accuracy", "macro_f1"]
    assert said == json.dumps(expected, sort_keys=True, ensure_ascii=False)
    assert "thème" in said


def test_a_damaged_cell_is_named_once_and_is_not_in_the_export(results: Path, tmp_path: Path):
    damaged = min(results.rglob("*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:50])
    with pytest.warns(UserWarning, match=rf"{damaged.name}: cannot be read .*left out") as said:
        assert export_results(results, tmp_path / "all.parquet") == 3 * 6
    assert len(said) == 1


def test_no_cell_of_a_csv_is_a_formula_of_a_spreadsheet(tmp_path: Path):
    evil = [
        "=cmd|' /C calc'!A0",
        "+1+1",
        "-1-1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        " =1",
        "＝1",
        "－1",
        "-",
        "'=1",
        '=HYPERLINK("x")',
    ]
    plain = ["-1", "+2.5", "-1e5", "a=b", "'a", "", "−1"]
    theirs = pd.DataFrame(
        {
            "task": "wines",
            "model": "=1+1",
            "select": "bm25",
            "order": "pool",
            "k": 1,
            "draw": 0,
            "test_id": [f"@{i}" for i in range(len(evil + plain))],
            "gold": "red",
            "prediction": evil + plain,
            "=further": "=x",
            "number": -1.5,
        }
    )
    theirs.to_parquet(tmp_path / "theirs.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_predictions(tmp_path / "theirs.parquet", tmp_path / "results")
    export_results(tmp_path / "results", tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["prediction"] for row in rows] == [f"'{text}" for text in evil] + plain
    assert {row["model"] for row in rows} == {"'=1+1"}
    assert {row["'=further"] for row in rows} == {"'=x"}
    assert {row["number"] for row in rows} == {"-1.5"}
    assert rows[3]["test_id"] == "'@3"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_predictions(tmp_path / "all.csv", tmp_path / "again")
    again = read_results(tmp_path / "again")
    for name in ("test_id", "prediction", "model", "=further"):
        assert again[name].astype(str).tolist() == theirs[name].tolist()


def test_lists_stand_in_csv_as_json_in_their_own_letters(tmp_path: Path):
    ids = [["é", "7"], [], None]
    theirs = pd.DataFrame(
        {
            "task": "wines",
            "model": "tiny",
            "select": "bm25",
            "order": "pool",
            "k": 1,
            "draw": 0,
            "test_id": ["a", "b", "c"],
            "gold": "red",
            "prediction": "red",
            "demonstration_ids": ids,
        }
    )
    theirs.to_parquet(tmp_path / "theirs.parquet")
    import_predictions(tmp_path / "theirs.parquet", tmp_path / "results")
    for name in ("all.csv", "all.csv.gz"):
        export_results(tmp_path / "results", tmp_path / name)
    packed = (tmp_path / "all.csv.gz").read_bytes()
    assert packed[4:8] == bytes(4)  # no second in which it was made
    assert gzip.decompress(packed) == (tmp_path / "all.csv").read_bytes()
    found = pd.read_csv(tmp_path / "all.csv", keep_default_na=False)
    assert found["demonstration_ids"].tolist() == ['["é", "7"]', "[]", ""]


def test_an_export_has_no_calibration_queries(tmp_path: Path):
    ways = ["contextual", "batch,of=pool:8"]
    made = plan(tmp_path / "task", "2", scoring="exact", draws=1, calibrations=ways)
    runner(made, tmp_path / "results", FakeBackend(scored=True)).run()
    assert len(made.cells) == 3
    out = tmp_path / "all.parquet"
    assert export_results(tmp_path / "results", out) == len(read_results(tmp_path / "results")) == 6
    assert check_results(out, tmp_path / "results").passed
    import_predictions(out, tmp_path / "imported")
    assert len(read_results(tmp_path / "imported")) == 6


def test_calibration_queries_of_an_earlier_export_are_not_compared(results: Path, tmp_path: Path):
    table = read_table(results)
    asked = pa.array(["contextual"] * 6 + [None] * 18)
    origin = {meta.variant: {"facts": meta.facts.known()} for _, meta in finished_cells(results)}
    table = table.append_column("queries", asked).replace_schema_metadata({EXPORT_META: json.dumps(origin).encode()})
    pq.write_table(table, tmp_path / "all.parquet")
    side = read_baseline(tmp_path / "all.parquet")
    assert len(side.predictions) == 18


def test_an_export_of_imported_exports_keeps_their_origins(results: Path, tmp_path: Path):
    export_results(results, tmp_path / "first.parquet")
    import_predictions(tmp_path / "first.parquet", tmp_path / "other")
    export_results(tmp_path / "other", tmp_path / "second.parquet")
    first, second = (read_baseline(tmp_path / f"{name}.parquet").origins for name in ("first", "second"))
    assert first
    assert first == second
    assert check_results(tmp_path / "second.parquet", results).passed


COMPARED = ("curves", "perturbations", "noise_floor", "demonstrations_gain", "label_bias", "confusions", "replication")


@pytest.mark.filterwarnings("ignore:a selection")
def test_findings_of_an_import_of_an_export_are_those_of_its_results(tmp_path: Path):
    """Its facts tell which variants are comparable: other ways of scoring are no noise, and no base."""
    shuffled = ["drawn", "shuffled:1"]
    for made in (
        plan(tmp_path / "cards", "0,1,4", orders=shuffled),
        plan(tmp_path / "cards", "0,4", scoring="exact"),
        plan(tmp_path / "cards", "4", selects=["bm25"]),
        plan(tmp_path / "cards", "4", perturbation="labels:permuted"),
        plan(tmp_path / "more", "1,4", test_rows=9),
    ):
        runner(made, tmp_path / "results", FakeBackend()).run()
    export_results(tmp_path / "results", tmp_path / "all.parquet")
    import_predictions(tmp_path / "all.parquet", tmp_path / "copy")
    one, other = (find(read_stored(tmp_path / name)) for name in ("results", "copy"))
    assert len(one.perturbations)
    assert len(one.noise_floor)
    for name in COMPARED:
        tables = [getattr(findings, name).astype(object) for findings in (one, other)]
        by = [column for column in tables[0] if column not in ("p", "p_holm")]
        first, second = (table.sort_values(by, key=lambda of: of.astype(str), ignore_index=True) for table in tables)
        pd.testing.assert_frame_equal(first, second, check_dtype=False, check_categorical=False)
    assert one.summary.settings == other.summary.settings
    weights, data = other.provenance[["weights", "data"]].iloc[0]
    assert (weights, "test.jsonl sha256:" in data) == ("none", True)


def test_an_export_states_by_which_metric_points_are_compared(tmp_path: Path):
    free = {**FREE_TEXT, "metrics": ["f1", "exact_match"]}
    runner(plan(tmp_path / "text", "1", name="texts", **free), tmp_path / "results", FakeBackend()).run()
    export_results(tmp_path / "results", tmp_path / "all.parquet")
    import_predictions(tmp_path / "all.parquet", tmp_path / "copy")
    for name in ("results", "copy"):
        assert set(summarise_folder(tmp_path / name).curves["metric"]) == {"f1"}


@pytest.mark.parametrize("name", ["all.parquet", "all.csv"])
def test_an_export_marks_answers_that_are_a_rows_own_choices(tmp_path: Path, name: str):
    """They are no labels: findings about labels leave them out, also after an import."""
    choices = [["red", "blue"], ["one", "two", "three"]]
    rows = [{"text": f"row {i}", "choices": choices[i % 2], "label": choices[i % 2][0]} for i in range(12)]
    fields = {name: name for name in ("text", "choices", "label")}
    data = {"train": "train.jsonl", "test": "test.jsonl", "fields": fields}
    (tmp_path / "task").mkdir()
    write_rows(tmp_path / "task" / "train.jsonl", rows[:8])
    write_rows(tmp_path / "task" / "test.jsonl", rows[8:])
    spec = {
        "name": "own",
        "data": data,
        "template": {"input": "{text}", "output": "{label}"},
        "labels": {"choices": "choices"},
        "metrics": ["accuracy"],
    }
    (tmp_path / "task" / "own.yaml").write_text(json.dumps(spec))
    tokenizer: Any = small_tokenizer()
    task = TokenizedTask(load_data(load_task(tmp_path / "task" / "own.yaml")), model(), tokenizer, 0, "greedy")
    runner(planned(task, "1", draws=1), tmp_path / "results", FakeBackend()).run()
    export_results(tmp_path / "results", tmp_path / name)
    import_predictions(tmp_path / name, tmp_path / "copy")
    for folder in ("results", "copy"):
        found = read_stored(tmp_path / folder)
        assert found.predictions["own_choices"].all()
        assert find(found).confusions.empty
