"""An export is the results, column by column, in one file."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pandas as pd
import pytest
from support.disks import files_no_larger_than
from support.fakes import FakeBackend, plan, runner

from icl_bench import read_results
from icl_bench.errors import UserError
from icl_bench.results.exporting import FIRST, export_results


@pytest.fixture
def results(tmp_path: Path) -> Path:
    made = plan(tmp_path / "task", "2", selects=["random", "bm25"])
    runner(made, tmp_path / "results", FakeBackend()).run()
    return tmp_path / "results"


@pytest.mark.parametrize("name", ["all.parquet", "new/folder/all.csv", "ALL.CSV.GZ"])
def test_an_export_has_every_prediction_and_the_columns_that_scripts_rely_on(
    results: Path, tmp_path: Path, name: str
):
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


def test_an_export_inside_the_results_folder_does_not_become_a_result(results: Path):
    before = read_results(results)
    export_results(results, results / "baseline" / "all.parquet")
    after = read_results(results)  # without a warning: it is where baselines are kept
    pd.testing.assert_frame_equal(before, after)


@pytest.mark.parametrize("name", ["all.parquet", "all.csv", "all.csv.gz"])
def test_an_export_that_fails_half_way_leaves_the_old_file_and_nothing_else(
    results: Path, tmp_path: Path, name: str
):
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
