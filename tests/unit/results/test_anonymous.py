"""What identifies an author is in no anonymous export and no anonymous report; results stay as they are."""

from __future__ import annotations

import getpass
import gzip
import json
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import FakeBackend, plan, runner
from support.in_process import said

import icl_bench
from icl_bench.results import anonymous as module
from icl_bench.results.anonymous import Anonymous, anonymous
from icl_bench.results.cells import FINISHED
from icl_bench.results.reading import CELL_META, read_results, read_stored
from icl_bench.results.store import Store
from icl_bench.table_files import parquet_bytes, parquet_table

HOST, USER, HOME = "gpu7.lab.example.edu", "margarethe", "/home/margarethe"
SERVER = "http://gpu7.lab.example.edu:8000/v1"
TELLING = (HOST, "gpu7", USER, "secret-project", "ours.git", "example.edu")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Cells whose files say who ran them, in every field of text."""
    monkeypatch.setattr(platform, "node", lambda: HOST)
    monkeypatch.setattr(getpass, "getuser", lambda: USER)
    module._names.cache_clear()
    folder = tmp_path / USER / "secret-project" / "results"
    made = plan(tmp_path / "task", "1,2", draws=2)
    runner(made, folder, FakeBackend()).run()
    for file in folder.rglob(f"*{FINISHED}"):
        table = parquet_table(file.read_bytes())
        meta = json.loads(table.schema.metadata[CELL_META])
        meta["run"]["command"] = (
            f"icl-bench run --model {HOME}/secret-project/m --server {SERVER} --data-dir ~/secret-project/d"
        )
        meta["facts"] |= {"server": SERVER, "server_arguments": '{"user": "margarethe"}'}
        meta["facts"]["data"] = {f"{HOME}/secret-project/train.jsonl": "0f"}
        meta["notes"] = [
            f"read from git@{HOST}:{USER}/ours.git",
            f"mail {USER}@example.edu",
            f"on {HOST.split('.')[0]}",
        ]
        meta["model_source"] = f"{HOME}/secret-project/m"
        file.write_bytes(parquet_bytes(table.replace_schema_metadata({CELL_META: json.dumps(meta)})))
    store = Store(folder)
    identity = made.groups[0].cells[0].identity if hasattr(made.groups[0].cells[0], "identity") else None
    if identity is not None:
        store.mark_failed(replace(identity), f"{HOME}/secret-project/m: cannot be read")
    yield folder
    module._names.cache_clear()


def telling(raw: bytes) -> list[str]:
    return [word for word in TELLING if word.encode() in raw]


def test_no_export_and_no_report_names_host_user_home_or_folder(results: Path, tmp_path: Path):
    out = tmp_path / "out"
    common = ("--results", results, "--anonymous")
    for name in ("all.csv", "all.csv.gz", "all.parquet"):
        said("export", *common, "--out", out / name)
    said("export", *common, "--format", "every-eval-ever", "--out", out / "every")
    said("report", *common, "--out", out / "report.html", "--figures", out / "figures")
    files = [file for file in out.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} >= {
        ".csv",
        ".gz",
        ".parquet",
        ".json",
        ".jsonl",
        ".html",
        ".svg",
        ".png",
        ".pdf",
    }
    for file in files:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        if file.suffix == ".parquet":
            raw = str(pq.read_schema(file).metadata).encode() + str(pq.read_table(file).to_pylist()).encode()
        assert telling(raw) == [], file
    # the same without the option names them: the test can fail
    said("report", "--results", results, "--out", out / "named.html")
    assert set(telling((out / "named.html").read_bytes())) >= {HOST, "secret-project"}


def test_a_report_from_python_is_anonymous_too(results: Path, tmp_path: Path):
    page = icl_bench.read(results).report(tmp_path / "page.html", anonymous=True)
    assert telling(page.read_bytes()) == []


def test_results_stay_as_they_are(results: Path):
    shown: Any = Anonymous(results)
    assert read_results(shown).equals(read_results(results))
    one, other = read_stored(shown), read_stored(results)
    assert one.cells.keys() == other.cells.keys()
    assert all(one.cells[cell].spec == other.cells[cell].spec for cell in one.cells)


def test_a_damaged_file_is_left_out_as_ever(results: Path):
    file = next(results.rglob(f"*{FINISHED}"))
    file.write_bytes(file.read_bytes()[:-40])
    shown: Any = Anonymous(results)
    with pytest.warns(UserWarning, match="left out") as said_of_it:
        assert len(read_results(shown)) < 24
    assert telling(str(said_of_it[0].message).encode()) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("icl-bench run --task ~/x/trec.yaml", "icl-bench run --task trec.yaml"),
        ("--results /scratch/me/r --k 1", "--results r --k 1"),
        (r"--model C:\Users\me\m", "--model m"),
        ("--task ../../me/t.yaml", "--task t.yaml"),
        ("--results s3://my-bucket/r", "--results s3://…"),
        ("--server https://api.openai.com/v1", "--server https://api.openai.com/v1"),
        ("'/srv/a/b c'", "'b c'"),
        ("<q>{text}</q> and/or 1/2 trec/m.parquet", "<q>{text}</q> and/or 1/2 trec/m.parquet"),
    ],
)
def test_paths_keep_their_last_part_and_addresses_their_scheme(text: str, shown: str):
    assert anonymous(text) == shown


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_any_json_keeps_its_form_and_a_second_time_changes_nothing(value: Any):
    once = anonymous(value)
    assert type(once) is type(value)
    assert repr(anonymous(once)) == repr(once)
