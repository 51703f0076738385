"""What identifies an author is in no anonymous export and no anonymous report; results stay as they are."""

from __future__ import annotations

import getpass
import gzip
import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import FakeBackend, plan, runner
from support.in_process import said

import icl_bench
from icl_bench.results import anonymous as module
from icl_bench.results.anonymous import Anonymous, anonymous
from icl_bench.results.cells import FINISHED, CellSpec, Identity
from icl_bench.results.reading import CELL_META, read_results, read_stored
from icl_bench.results.store import Store
from icl_bench.results.stored_meta import StudyMeta, checked, json_content
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
    made = plan(tmp_path / "task", "1,2", draws=1)
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
    (finished, *_) = read_stored(folder).cells.values()
    failed = Identity(CellSpec(**{**finished.spec.model_dump(), "k": 4}), finished.facts)
    Store(folder).mark_failed(failed, f"{HOME}/secret-project/m: cannot be read")
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
    assert [mark.reason for mark in one.failed] == ["m: cannot be read"]
    assert [mark.cell for mark in one.failed] == [mark.cell for mark in other.failed]


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
        ("--server https://api.openai.com/v1", "--server https://api.openai.com"),
        ("https://API.openai.com/v1/anna/x?user=anna", "https://API.openai.com"),
        ("https://anna@api.openai.com/v1", "https://…"),
        ("HTTP://gpu7.lab.org/v1", "HTTP://…"),
        ("--server gpu7:8000/v1", "--server …"),
        ("--server gpu7.lab.org:8000", "--server …"),
        ("at 12:30/13:40, trec.yaml:12, k:10/20", "at 12:30/13:40, trec.yaml:12, k:10/20"),
        ("--data-dir /home/anna", "--data-dir ~"),
        ("'/home/anna'", "'~'"),
        ("/Users/anna/x", "x"),
        ("/nfs/home/anna", "~"),
        (r"C:\Users\anna", "~"),
        ("~anna/x and ~anna and ~/", "x and ~ and …"),
        ("file:/home/anna/x", "file:x"),
        ("file:///home/anna/x", "file://…"),
        ("gpu7:/data/anna/x", "gpu7:x"),
        ("https://example.org/home/page", "https://…"),
        ("'/srv/a/b c'", "'b c'"),
        ("<q>{text}</q> and/or 1/2 trec/m.parquet", "<q>{text}</q> and/or 1/2 trec/m.parquet"),
    ],
)
def test_paths_keep_their_last_part_and_addresses_their_scheme(text: str, shown: str):
    assert anonymous(text) == shown


PARTS = ("/", "\\", "~", ".", ":", "home", "Users", "anna", "http://", "api.openai.com", "8000", " ", "-", "<", "@")


@given(st.lists(st.sampled_from(PARTS)).map("".join))
def test_no_path_and_no_address_changes_when_it_is_shown_again(text: str):
    assert anonymous(anonymous(text)) == anonymous(text)


def test_names_that_would_be_the_same_keep_both_values():
    shown = anonymous({"/a/anna/train.jsonl": "0f", "/b/anna/train.jsonl": "1e", "train.jsonl": "2d", "~/d/x": "3c"})
    assert sorted(shown.values()) == ["0f", "1e", "2d", "3c"]
    assert {"train.jsonl", "x"} < shown.keys()
    assert "anna" not in str(shown)


# -- files that are damaged, or not like others -----------------------------------------------------


def shown_file(folder: Path, content: bytes, name: str = "a.json") -> bytes:
    (folder / name).write_bytes(content)
    return Anonymous(folder).read(name)


def test_a_changed_json_file_stays_refused(tmp_path: Path):
    whole = json_content({"study": "s", "cells": []})
    assert checked(shown_file(tmp_path, whole), StudyMeta).study == "s"
    changed = whole.replace(b'"s"', b'"t"')
    with pytest.raises(ValueError, match="not as it was written"):
        checked(shown_file(tmp_path, changed), StudyMeta)


@pytest.mark.parametrize("content", [b'["/home/anna/x"]', b'"/home/anna/x"', b'{"a": "/home/anna/\\udcff"}'])
def test_any_json_is_shown_without_its_author(tmp_path: Path, content: bytes):
    assert b"anna" not in shown_file(tmp_path, content)


@pytest.mark.parametrize("name", ["a.json", f"a{FINISHED}"])
def test_a_file_that_cannot_be_shown_is_not_shown_as_it_is(tmp_path: Path, name: str):
    with pytest.raises(OSError):
        shown_file(tmp_path, b'{"a": "/home/anna', name)


def test_metadata_of_a_table_without_its_author(tmp_path: Path):
    about = {"one": "/home/anna/x", "two": r'{"a": "/home/anna/\udcff"}'}
    raw = shown_file(tmp_path, parquet_bytes(pa.table({"k": [1]}).replace_schema_metadata(about)), f"a{FINISHED}")
    assert "anna" not in str(parquet_table(raw).schema.metadata)


def test_commands_name_the_place_by_its_last_part(tmp_path: Path):
    assert str(Anonymous(tmp_path / "anna" / "results")) == "results"


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_any_json_keeps_its_form_and_a_second_time_changes_nothing(value: Any):
    once = anonymous(value)
    assert type(once) is type(value)
    assert repr(anonymous(once)) == repr(once)
