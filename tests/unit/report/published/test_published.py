"""``report --all``: what is in the folder, what is stored once, and what is refused or left when a write ends badly."""

from __future__ import annotations

import base64
import getpass
import gzip
import json
import platform
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import FakeBackend, plan, runner
from support.in_process import run_command, said
from support.predictions import cell, imported

import icl_bench
from icl_bench.errors import CellError, UserError
from icl_bench.report import prompt_ends
from icl_bench.report.build import pending
from icl_bench.report.published.data_files import NAME, DataFiles
from icl_bench.report.published.details import Details, in_parts
from icl_bench.report.published.folder import check_folder, publish
from icl_bench.report.published.lists import Lists, parts
from icl_bench.report.viewer.folder import Folder
from icl_bench.results import anonymous
from icl_bench.results.cells import FAILED
from icl_bench.results.reading import read_results, read_some


def sweep(folder: Path, k: str = "1,2,4", **changes: Any) -> Path:
    runner(plan(folder / "task", k, **changes), folder / "results", FakeBackend()).run()
    return folder / "results"


def published(results: Any, folder: Path, **more: Any) -> Path:
    """The folder with a page that has no findings, which take longer than all else."""
    publish(pending((), (), 1), results, folder, **more)
    return folder


def unpacked(path: Path) -> Any:
    """The value of a data file."""
    name, packed = json.loads(f"[{path.read_text()[len('iclBench(') : -len(');') - 1]}]")
    assert name == path.stem
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def data(folder: Path) -> dict[str, list[Any]]:
    """Kind -> the values of its files, in order."""
    found: dict[str, list[Any]] = defaultdict(list)
    for path in sorted((folder / "predictions").iterdir(), key=lambda path: int(path.name.split("-")[1])):
        assert NAME.fullmatch(path.name)
        found[path.name.split("-")[0]].append(unpacked(path))
    return found


def test_a_folder_has_the_page_and_every_prediction(tmp_path: Path):
    results = sweep(tmp_path, "1,2")
    done = run_command("report", "--results", results, "--all", tmp_path / "site")
    rows = read_results(results)
    assert done.out.endswith(f"MB with {len(rows)} predictions)\n")
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == ["index.html", "predictions"]
    found = data(tmp_path / "site")
    (index,), (part,), (asked,) = found["index"], found["rows"], found["examples"]
    assert index["total"] == len(rows) == len(part["example"])
    assert [index["texts"][code] for code in index["cells"]["cell"]] == list(rows["cell"].unique())
    answers = [part["prediction_texts"][code] for code in part["prediction"]]
    assert answers == list(rows["prediction"])
    assert [asked["test_id"][example] for example in part["example"]] == list(rows["test_id"])
    assert part["correct"] == [int(correct) for correct in rows["correct"]]
    page = (tmp_path / "site" / "index.html").read_text()
    (name,) = (path.stem for path in (tmp_path / "site" / "predictions").glob("index-*"))
    assert name in page
    assert "http://" not in page.split('<script type="application/json"')[0]


def test_questions_and_demonstrations_are_stored_once(tmp_path: Path):
    """Many cells ask the same rows, and show the same demonstrations at the prompt's end."""
    found = data(published(sweep(tmp_path, draws=3), tmp_path / "site", data_dir=tmp_path / "task"))
    (asked,) = found["examples"]
    assert len(asked["question"]) == len(set(asked["question"])) == 6
    assert all(question.startswith("query: ") for question in asked["question"])
    (texts,) = found["texts"]
    assert len(texts) == len(set(texts))
    whole = json.dumps(found)
    for text in (*asked["question"], *texts):
        assert whole.count(json.dumps(text)[1:-1]) == 1
    (details,) = found["details"]
    assert {end["tail"] for end in details["ends"]} == {""}
    assert len(details["ends"]) == 9, "one for each cell"


def test_rows_that_an_import_mixes_stand_cell_by_cell(tmp_path: Path):
    mixed = pd.concat([cell("abab", draw=draw, k=k) for k in (1, 5) for draw in range(3)])
    results = imported(tmp_path, mixed.sample(frac=1, random_state=0))
    found = data(published(results, tmp_path / "site"))
    (index,), (part,), (asked,) = found["index"], found["rows"], found["examples"]
    firsts = [*index["cells"]["first"], 24]
    ids = [asked["test_id"][example] for example in part["example"]]
    answers = [part["prediction_texts"][code] for code in part["prediction"]]
    listed = {
        (k, draw, ids[place], answers[place])
        for k, draw, span in zip(index["cells"]["k"], index["cells"]["draw"], pairwise(firsts), strict=True)
        for place in range(*span)
    }
    assert listed == set(mixed[["k", "draw", "test_id", "prediction"]].itertuples(index=False, name=None))


def test_imported_rows_of_other_right_answers_are_no_partners(tmp_path: Path):
    """As in the viewer: one id names other rows of the two files."""
    imported(tmp_path, cell("abab", "abab", model="m1"), name="one")
    results = imported(tmp_path, cell("abab", "abba", model="m2"), name="two")
    found = data(published(results, tmp_path / "site"))
    (index,), (part,), (asked,) = found["index"], found["rows"], found["examples"]
    models = [index["texts"][code] for code in index["cells"]["model"]]
    of_model = {
        model: [asked["test"][part["example"][place]] for place in range(first, first + 4)]
        for model, first in zip(models, index["cells"]["first"], strict=True)
    }
    same = [one == other for one, other in zip(of_model["m1"], of_model["m2"], strict=True)]
    assert same == [True, True, False, False]


def test_the_same_folder_gives_the_same_files(tmp_path: Path):
    results = sweep(tmp_path)
    one, other = (published(results, tmp_path / name) for name in ("one", "other"))
    names = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert [(one / name).read_bytes() for name in names] == [(other / name).read_bytes() for name in names]


def test_a_folder_that_is_written_again_has_the_new_files_alone(tmp_path: Path):
    published(sweep(tmp_path, "1"), tmp_path / "site")
    (tmp_path / "site" / "README.md").write_text("of a repository")
    (tmp_path / "site" / ".nojekyll").touch()
    (tmp_path / "site" / "CNAME").write_text("results.example.org")
    before = {path.name for path in (tmp_path / "site" / "predictions").iterdir()}
    published(sweep(tmp_path, "1,2"), tmp_path / "site")
    after = {path.name for path in (tmp_path / "site" / "predictions").iterdir()}
    assert not before & {name for name in after if name.startswith(("index", "rows"))}
    assert len(after) == 5
    assert len(data(tmp_path / "site")["index"]) == 1
    assert (tmp_path / "site" / "README.md").exists()
    check_folder(tmp_path / "site")
    assert (tmp_path / "site" / "CNAME").exists()


def test_a_write_that_ends_badly_leaves_the_page_of_before_with_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    published(sweep(tmp_path, "1"), tmp_path / "site")
    before = {path.name: path.read_bytes() for path in (tmp_path / "site").rglob("*") if path.is_file()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Details, "write", full)
    with pytest.raises(UserError) as caught:
        published(sweep(tmp_path, "1,2"), tmp_path / "site")
    assert str(caught.value) == f"--all {tmp_path / 'site'}: cannot be written (No space left on device)"
    after = {path.name: path.read_bytes() for path in (tmp_path / "site").rglob("*") if path.is_file()}
    assert before.items() <= after.items()
    (tmp_path / "site" / "predictions" / ".writing-of-a-killed-process.js").touch()
    monkeypatch.undo()
    published(sweep(tmp_path, "1,2"), tmp_path / "site")
    assert len(data(tmp_path / "site")["rows"]) == 1, "what was left is gone"


def foreign_page(folder: Path) -> None:
    (folder / "index.html").write_text("<title>my page</title>")


def foreign_data(folder: Path) -> None:
    (folder / "predictions").mkdir()
    (folder / "predictions" / "mine.csv").touch()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: (folder / "notes.txt").touch(), "has another file, notes.txt; give a new folder"),
        (foreign_page, "has another file, index.html; give a new folder"),
        (foreign_data, "has another file, predictions/mine.csv; give a new folder"),
        (lambda folder: folder.rmdir() or folder.touch(), "is not a folder"),
        (lambda folder: folder.rmdir() or folder.parent.rmdir(), "there is no folder "),
    ],
)
def test_a_folder_of_others_is_refused_before_anything_is_read(
    tmp_path: Path, make: Callable[[Path], object], says: str
):
    folder = tmp_path / "above" / "site"
    folder.mkdir(parents=True)
    make(folder)
    done = run_command("report", "--results", tmp_path / "none", "--all", folder)
    assert done.code == 2
    assert done.err.startswith(f"error: --all {folder}: {says}")
    assert done.err.count("\n") == 1


def test_a_page_and_a_folder_cannot_both_be_asked_for(tmp_path: Path):
    done = run_command("report", "--results", tmp_path, "--all", tmp_path / "site", "--out", tmp_path / "page.html")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith("error: --out: the page of --all is DIR/index.html")
    results = icl_bench.read(sweep(tmp_path, "1"))
    with pytest.raises(UserError, match="leave out one of the two"):
        results.report(tmp_path / "page.html", all=tmp_path / "site")


def test_python_writes_the_same_folder(tmp_path: Path):
    results = sweep(tmp_path, "1")
    page = icl_bench.read(results).report(all=tmp_path / "one")
    published(results, tmp_path / "other")
    assert page == tmp_path / "one" / "index.html"
    names = [sorted(path.name for path in (tmp_path / name / "predictions").iterdir()) for name in ("one", "other")]
    assert names[0] == names[1]


def test_one_task_is_published_alone(tmp_path: Path):
    results = imported(tmp_path, cell("abab"), cell("bbbb", task="u"))
    found = data(published(results, tmp_path / "site", only={"task": "u"}))
    assert found["index"][0]["total"] == 4
    assert found["rows"][0]["prediction_texts"] == ["b"]
    assert len(found["details"][0]["ends"]) == 1


def two_checkpoints(folder: Path) -> Path:
    """Two models with one name, each with a task of its own."""
    for task, fingerprint in (("one", "files-sha256:aaaaaaaa"), ("two", "files-sha256:bbbbbbbb")):
        made = plan(folder / task, "1", name=task, fingerprint=fingerprint)
        runner(made, folder / "results", FakeBackend()).run()
    return folder / "results"


@pytest.mark.parametrize(
    ("only", "models"),
    [
        ({"model": "small@aaaaaaaa"}, ["small@aaaaaaaa"]),
        ({"model": "small"}, ["small@aaaaaaaa", "small@bbbbbbbb"]),
        ({"task": "one"}, ["small@aaaaaaaa"]),
        ({"task": "one", "model": "small"}, ["small@aaaaaaaa"]),
    ],
)
@pytest.mark.filterwarnings("ignore:model small")
def test_models_with_one_name_are_published_as_the_findings_name_them(
    tmp_path: Path, only: dict[str, str], models: list[str]
):
    results = two_checkpoints(tmp_path)
    (index,) = data(published(results, tmp_path / "site", only=only))["index"]
    assert index["options"]["model"] == models
    assert index["total"] == len(read_some(results, only).predictions) == 12 * len(models)


@pytest.mark.filterwarnings("ignore:model small")
def test_a_model_that_did_not_run_the_task_is_refused_by_its_distinguishing_name(tmp_path: Path):
    results = two_checkpoints(tmp_path)
    with pytest.raises(UserError) as caught:
        published(results, tmp_path / "site", only={"task": "one", "model": "small@bbbbbbbb"})
    assert str(caught.value).endswith("has no model 'small@bbbbbbbb' (it has: small@aaaaaaaa)")


def test_an_error_of_reading_is_not_one_of_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Folder, "read", fails)
    with pytest.raises(OSError, match="Input/output error"):
        published(sweep(tmp_path, "1"), tmp_path / "site")


def test_a_folder_of_failed_cells_alone_has_a_page_without_predictions(tmp_path: Path):
    def fails(_: object) -> None:
        raise CellError("no room")

    runner(plan(tmp_path / "task", "1"), tmp_path / "results", FakeBackend(fails=fails)).run()
    assert list((tmp_path / "results").rglob(f"*{FAILED}"))
    said("report", "--results", tmp_path / "results", "--all", tmp_path / "site")
    text = (tmp_path / "site" / "index.html").read_text()
    assert "no room" in text
    assert '"served":false' in text
    assert 'id="reader"' not in text
    assert data(tmp_path / "site") == {}


def test_a_file_that_is_gone_meanwhile_is_said_in_a_line(tmp_path: Path):
    results = sweep(tmp_path, "1")
    folder = Folder(results, {})
    now = folder.read()
    (results / next(iter(now.files.values()))).unlink()
    with pytest.raises(UserError, match="cannot be read"):
        list(folder.tables(["cell"]))


def test_rows_that_have_changed_meanwhile_are_refused(tmp_path: Path):
    lists = Lists(Folder(sweep(tmp_path, "1"), {}).read().predictions)
    count = len(lists.order)
    assert [len(table) for table in lists.in_order([pa.table({"n": range(count)})])] == [count]
    for other in (count - 1, count + 1):
        with pytest.raises(UserError, match="changed while they were read"):
            list(lists.in_order([pa.table({"n": range(other)})]))


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 7), st.integers(1, 12))
def test_parts_follow_each_other_and_hold_to_both_limits(lengths: list[int], most: int, letters: int):
    found = list(parts(np.array(lengths, dtype=int), most, letters))
    assert [n for first, last in found for n in range(first, last)] == list(range(len(lengths)))
    for first, last in found:
        assert 1 <= last - first <= most
        assert sum(lengths[first:last]) <= letters or last - first == 1


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 7))
def test_tables_are_cut_into_parts_of_so_many_rows(sizes: list[int], rows: int):
    starts = np.cumsum([0, *sizes])
    found = list(in_parts([pa.table({"n": range(a, b)}) for a, b in pairwise(starts)], rows))
    assert [n for table in found for n in table["n"].to_pylist()] == list(range(sum(sizes)))
    assert all(len(table) == rows for table in found[:-1])
    assert all(1 <= len(table) <= rows for table in found)


def test_half_a_pair_of_surrogates_is_written_as_a_replacement(tmp_path: Path):
    name = DataFiles(tmp_path).put("texts", 0, ["a\ud800b", "whole"])
    assert unpacked(tmp_path / f"{name}.js") == ["a?b", "whole"]


# -- for blind review --------------------------------------------------------------------------


def test_no_data_file_names_host_user_home_or_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "node", lambda: "gpu7.lab.example.edu")
    monkeypatch.setattr(getpass, "getuser", lambda: "margarethe")
    anonymous._names.cache_clear()
    results = sweep(tmp_path / "margarethe", "1", draws=1)

    def changed(*_: object) -> str:
        return f"No prompt: the data has changed since the run ({tmp_path}/margarethe/trec)"

    monkeypatch.setattr(prompt_ends, "rows_of", changed)
    told = published(results, tmp_path / "named")
    hidden = tmp_path / "site"
    said("report", "--results", results, "--all", hidden, "--anonymous")
    anonymous._names.cache_clear()
    assert "margarethe" in json.dumps(data(told)), "why there is no prompt names the data's folder"
    assert "margarethe" not in json.dumps(data(hidden))
    assert "(trec)" in json.dumps(data(hidden))
    assert "margarethe" not in (hidden / "index.html").read_text()
    said("report", "--results", results, "--anonymous", "--out", tmp_path / "page.html")
    assert "margarethe" not in (tmp_path / "page.html").read_text()
