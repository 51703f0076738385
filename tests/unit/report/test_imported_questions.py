"""Imported predictions are shown with their questions, where these are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.fakes import FakeBackend, plan, runner
from support.in_process import run_command

from icl_bench.errors import UserError
from icl_bench.report.every_eval_ever import export_evaluations
from icl_bench.report.prediction_sample import described
from icl_bench.report.prompt_ends import Prompts
from icl_bench.report.prompt_trace import find_prediction
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import read_results, read_stored
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task


def theirs(folder: Path, rows: pd.DataFrame, **more: Any) -> None:
    """Import predictions of the rows' task, which say nothing of its questions."""
    named = rows[["task", "test_id", "gold"]].assign(model="theirs", k=7, prediction=rows["gold"])
    named.assign(**more).to_csv(folder / "theirs.csv", index=False)
    import_predictions(folder / "theirs.csv", folder / "results")


def ends(results: Path) -> dict[str, Any]:
    """What the report's reader shows of each imported prediction, by its test id."""
    stored = read_stored(results)
    prompts = Prompts(stored.cells, stored.variants, None)
    rows = stored.predictions.assign(series="s")
    rows = rows[rows["model"] == "theirs"].astype(object)
    return {str(row["test_id"]): described(row, prompts) for row in rows.to_dict("records")}


@pytest.fixture
def own(tmp_path: Path) -> pd.DataFrame:
    """The predictions of a run in ``results``."""
    runner(plan(tmp_path / "task", "1", draws=1), tmp_path / "results", FakeBackend()).run()
    return read_results(tmp_path / "results")


def test_rows_of_a_task_that_was_run_here_have_its_questions(tmp_path: Path, own: pd.DataFrame):
    theirs(tmp_path, own)
    shown = find_prediction(tmp_path / "results", {"task": "cards", "k": 1, "draw": 0}, own["test_id"][0])
    question = ends(tmp_path / "results")[own["test_id"][0]]
    assert shown.prompt.endswith(question["query"])
    assert question["query"].startswith("query: ")
    assert question["why"] == ("Imported from theirs.csv: imported predictions carry no prompt. This is the question.")
    asked = find_prediction(tmp_path / "results", {"task": "cards", "k": 7, "draw": 0}, own["test_id"][0])
    assert (asked.prompt, asked.demonstrations) == (question["query"], ())
    assert asked.checked.startswith("imported: the question alone")
    with pytest.raises(UserError, match="--test-id none: not among the"):
        find_prediction(tmp_path / "results", {"task": "cards", "k": 7, "draw": 0}, "none")


def test_a_row_with_another_correct_answer_is_not_the_question(tmp_path: Path, own: pd.DataFrame):
    theirs(tmp_path, own, gold="other", prediction="other")
    assert {end["query"] for end in ends(tmp_path / "results").values()} == {None}
    with pytest.raises(UserError, match=r"carry no prompt to show .*; the question is shown if the file has a column"):
        find_prediction(tmp_path / "results", {"task": "cards", "k": 7, "draw": 0})


def test_a_files_own_questions_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    row = {"task": "x", "model": "theirs", "k": 0, "test_id": "1", "gold": "a", "prediction": "a", "question": "what?"}
    (tmp_path / "mine.jsonl").write_text(json.dumps(row))
    import_predictions(tmp_path / "mine.jsonl", tmp_path / "results")
    assert ends(tmp_path / "results")["1"]["query"] == "what?"
    code, out, err = run_command("show", "--task", "x", "--k", "0")
    assert (code, err) == (0, "")
    assert out.startswith("what?\n")
    assert "not known" in out
    code, _, err = run_command("show", "--task", "x", "--k", "0", "--prompt", "prompt.txt")
    assert (code, "imported predictions carry no prompt" in err, Path("prompt.txt").exists()) == (2, True, False)


def test_a_shipped_tasks_rows_have_their_questions_from_the_data_folder(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = load_data(load_task("trec"), data_dir=data_dir).test[:3]
    monkeypatch.delenv("ICL_BENCH_DATA", raising=False)
    data = data_dir.absolute()
    monkeypatch.chdir(tmp_path)
    table = pd.DataFrame([{"test_id": row.id, "gold": row.answer, "prediction": row.answer} for row in rows])
    table.assign(task="trec", model="theirs", k=5).to_csv("mine.csv", index=False)
    import_predictions(Path("mine.csv"), "results")
    code, out, _ = run_command("show", "--task", "trec", "--k", "5", "--data-dir", str(data))
    assert code == 0
    assert next(iter(rows[0].fields.values())) in out
    exported = export_evaluations("results", tmp_path / "out", data)
    assert (exported.samples, exported.without_question) == (3, 0)
    assert export_evaluations("results", tmp_path / "out").without_question == 3
    assert run_command("show", "--task", "trec", "--k", "5")[0] == 2


def test_a_question_that_versions_of_the_data_disagree_on_is_unknown(tmp_path: Path, own: pd.DataFrame):
    runner(plan(tmp_path / "other", "2", draws=1), tmp_path / "results", FakeBackend()).run()
    test = tmp_path / "other" / "test.jsonl"
    rows = [json.loads(line) for line in test.read_text().splitlines()]
    rows[0]["text"] = "another question"
    test.write_text("".join(json.dumps(row) + "\n" for row in rows))
    theirs(tmp_path, own)
    asked = [ends(tmp_path / "results")[name]["query"] for name in own["test_id"]]
    assert asked[0] is None
    assert all(text.startswith("query: ") for text in asked[1:])


def test_a_task_with_a_name_too_long_for_a_file_has_no_questions(tmp_path: Path, own: pd.DataFrame):
    theirs(tmp_path, own.assign(task="long" * 100))
    assert {one["query"] for one in ends(tmp_path / "results").values()} == {None}
