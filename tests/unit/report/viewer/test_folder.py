"""A results folder as the viewer follows it: what is read once, and how soon what is new is seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fakes import ENGINE, FakeBackend, plan

from icl_bench.errors import UserError
from icl_bench.report import imported_questions, open_viewer
from icl_bench.report.viewer import folder as viewer_folder
from icl_bench.report.viewer.folder import Folder
from icl_bench.results import kept_texts
from icl_bench.results.facts import OF_RESULTS
from icl_bench.results.reading import read_results
from icl_bench.results.store import Store
from icl_bench.sweep.runner import Runner


def sweep(task: Path, results: Path, k: str) -> None:
    Runner(plan(task, k, draws=1), Store(results), ENGINE, FakeBackend).run()


def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("only", "says"),
    [
        ({"task": "wines"}, "has no task 'wines' (it has: cards)"),
        ({"task": "cards", "model": "large"}, "has no model 'large' (it has: small)"),
    ],
)
def test_a_task_or_model_that_is_not_there_is_refused(tmp_path: Path, only: dict[str, str], says: str):
    sweep(tmp_path / "task", tmp_path / "results", "1")
    with pytest.raises(UserError) as caught, open_viewer(tmp_path / "results", only=only):
        pass
    assert str(caught.value) == f"results folder {tmp_path / 'results'}: {says}"


@pytest.mark.parametrize("as_address", [False, True])
def test_data_is_read_once_and_a_folder_of_this_machine_is_looked_at_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_address: bool
):
    results = tmp_path / "results"
    sweep(tmp_path / "task", results, "1")
    reads = []
    load = imported_questions.load_data

    def counted(*args: object, **options: object) -> object:
        reads.append(args)
        return load(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(imported_questions, "load_data", counted)
    folder = Folder(results.as_uri() if as_address else results, {})
    folder.start()
    try:
        (first,) = folder.wait().cells
        until(lambda: bool(folder.wait().predictions.questions), 10)
        for test_id in ("cards-test-0", "cards-test-1"):
            found = folder.prediction(first, test_id)
            assert found is not None
            assert found["query"].startswith("query: ")
        assert len(reads) == 1
        sweep(tmp_path / "task", results, "1,2")
        until(lambda: len(folder.wait().cells) == 2, 10)
        new = next(cell for cell in folder.wait().cells if cell != first)
        until(lambda: bool(folder.wait().predictions.questions), 10)
        assert folder.prediction(new, "cards-test-0")["count"] == 2  # type: ignore[index]
        assert len(reads) == 1
    finally:
        folder.stop()


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"PAR1")])
def test_a_file_that_is_gone_or_damaged_is_named_where_a_prediction_is_asked_for(
    tmp_path: Path, damage: Callable[[Path], object]
):
    sweep(tmp_path / "task", tmp_path / "results", "1")
    folder = Folder(tmp_path / "results", {})
    folder.start()
    try:
        now = folder.wait()
        ((cell, name),) = now.files.items()
        damage(tmp_path / "results" / name)
        with pytest.raises(UserError, match=rf"{name}: is damaged or not there any more \("):
            folder.prediction(cell, "test-1")
    finally:
        folder.stop()


def test_the_findings_of_an_unchanged_folder_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_texts, "WORTH_SECONDS", 0.0)
    sweep(tmp_path / "task", tmp_path / "results", "1")
    made = viewer_folder._page_of_findings(0, tmp_path / "results", {})
    later = viewer_folder._page_of_findings(1, tmp_path / "results", {})
    monkeypatch.setattr(viewer_folder, "make_report", None)
    assert viewer_folder._page_of_findings(0, tmp_path / "results", {}) == made != later
    sweep(tmp_path / "task", tmp_path / "results", "1,2")
    with pytest.raises(TypeError, match="not callable"):
        viewer_folder._page_of_findings(0, tmp_path / "results", {})


def test_two_versions_of_a_tasks_data_have_their_own_questions(tmp_path: Path):
    """Both have the ids of their rows in common, and are at hand."""
    for version, rows in (("one", 6), ("two", 9)):
        template = {"input": f"{version}: {{text}}", "output": "intent: {label}"}
        made = plan(tmp_path / version, "1", draws=1, test_rows=rows, template=template)
        Runner(made, Store(tmp_path / "results"), ENGINE, FakeBackend).run()
    folder = Folder(tmp_path / "results", {})
    now = folder.read()
    rows = now.predictions.rows(range(len(now.predictions)))
    assert [row["question"].partition(":")[0] for row in rows].count("two") == 9
    for row in rows:
        found = folder.prediction(row["cell"], row["test_id"])
        assert found is not None
        assert found["query"].startswith(row["question"])


def test_queries_that_are_train_rows_have_the_questions_of_these(tmp_path: Path):
    """Train and test rows may have the same ids."""
    made = plan(tmp_path / "task", "2", draws=1, queries="copied")
    Runner(made, Store(tmp_path / "results"), ENGINE, FakeBackend).run()
    folder = Folder(tmp_path / "results", {})
    now = folder.read()
    rows = now.predictions.rows(range(len(now.predictions)))
    assert all(row["question"].startswith("query: ") for row in rows)
    for record in read_results(tmp_path / "results").to_dict("records"):
        copied, for_rationales = (
            now.prompts.end({**record, "demonstration_ids": None, "queries": kind}) for kind in OF_RESULTS[1:]
        )
        assert copied.query is not None
        assert for_rationales == copied
