"""Test rows that do not fit the model's window: named, and left out and counted where the task file says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import fakes
from support.in_process import run_command

from icl_bench.analysis.all_findings import read_findings
from icl_bench.errors import UserError
from icl_bench.results.reading import read_stored
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task

pytestmark = pytest.mark.usefixtures("loading_once")

LONG = fakes.row(1)["text"].split()[0]


def write(folder: Path, lengths: list[int], **changes: Any) -> Path:
    """A task with six short test rows, and one of so many words for each of ``lengths``."""
    path = fakes.write_task(folder, **changes)
    rows = [{"id": f"t{i}", **fakes.row(1000 + i)} for i in range(6)]
    rows += [{"id": f"long{n}", "text": " ".join([LONG] * n), "label": "card_lost"} for n in lengths]
    fakes.write_rows(folder / "test.jsonl", rows)
    return path


def tokenized(folder: Path, lengths: list[int], window: int = fakes.WINDOW, **changes: Any) -> TokenizedTask:
    data = load_data(load_task(write(folder, lengths, **changes)))
    tokenizer: Any = fakes.small_tokenizer()
    return TokenizedTask(data, fakes.model(window), tokenizer)


def problem(task: TokenizedTask, k: str = "1,4") -> str:
    with pytest.raises(UserError) as error:
        fakes.planned(task, k, draws=2)
    return str(error.value)


def test_a_row_that_fits_no_prompt_is_named_with_what_leaves_it_out(tmp_path: Path):
    task = tokenized(tmp_path, [fakes.WINDOW])
    said = problem(task)
    assert "(1 of the 7 test rows, long" in said
    assert (
        f"long{fakes.WINDOW}; the others fit; test.too_long: leave_out in the task file leaves such rows out)" in said
    )
    assert "long" in problem(task, "max")


def test_a_row_that_fits_fewer_demonstrations_is_named_with_the_length_that_leaves_it_out(tmp_path: Path):
    task = tokenized(tmp_path, [50], window=80)
    assert task.query_lengths.max() <= task.room
    made = fakes.planned(task, "0,4", draws=1)
    (said,) = made.problems
    shorter = int(np.sort(task.query_lengths)[-2])
    assert f"(1 of the 7 test rows, long50; the others fit; test.too_long: {shorter} in the task file" in said
    left = tokenized(tmp_path, [50], window=80, test={"too_long": shorter}).without_too_long()
    assert [row.id for row in left.data.test if row.id.startswith("long")] == []
    assert not fakes.planned(left, "0,4", draws=1).problems


def test_rows_are_not_named_where_the_demonstrations_are_too_long(tmp_path: Path):
    (said,) = fakes.planned(tokenized(tmp_path, [], window=60), "1,30", draws=1).problems
    assert said.startswith("k=30 needs")
    assert "test rows" not in said


def test_rows_that_fit_are_kept_and_others_counted_and_noted(tmp_path: Path):
    task = tokenized(tmp_path, [fakes.WINDOW, 500, 20], test={"too_long": "leave_out"}, window=200)
    left = task.without_too_long()
    assert sorted(row.id for row in left.data.test) == ["long20", *(f"t{i}" for i in range(6))]
    assert left.data.not_asked == 2
    (note,) = [note for note in left.data.notes if "test.too_long" in note]
    assert note.startswith(f"2 test rows of more than {task.room:,} tokens were left out (long")
    assert not fakes.planned(left, "1", draws=1).problems


def test_without_such_a_rule_and_without_such_rows_nothing_changes(tmp_path: Path):
    refusing = tokenized(tmp_path, [fakes.WINDOW])
    assert refusing.without_too_long() is refusing
    fitting = tokenized(tmp_path, [], test={"too_long": "leave_out"})
    assert fitting.without_too_long() is fitting


def test_a_task_of_which_no_row_is_left_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"test\.too_long leaves no test row"):
        tokenized(tmp_path, [], test={"too_long": 1}).without_too_long()


@pytest.mark.parametrize("rule", ["drop", True, 0, -1, 1.5])
def test_another_rule_is_refused(rule: Any, tmp_path: Path):
    with pytest.raises(UserError, match="too_long"):
        load_task(write(tmp_path, [], test={"too_long": rule}))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    """The folder of a run of a task with a row that is too long and two without a label, and of one without such rows."""
    folder = tmp_path_factory.mktemp("runs")
    path = write(
        folder / "task", [3000], test={"too_long": "leave_out"}, labels={"style": "words", "empty": "leave_out"}
    )
    with (folder / "task" / "test.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": f"e{i}", "text": "no label", "label": ""}) + "\n" for i in range(2))
    other = fakes.write_task(folder / "other", name="other")
    words = ("--model", tiny, "--device", "cpu", "--dtype", "float32", "--draws", 2, "--context", 400)
    for task in (path, other):
        sweep = ("--k", "1,3", "--select", "random,bm25", "--results", folder / "results")
        done = run_command("run", "--task", task, *words, *sweep)
        assert done.code == 0, done.err
    return folder


@pytest.fixture
def results(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its results, which a test only reads, in the folder where it is."""
    monkeypatch.chdir(runs)
    monkeypatch.setenv("COLUMNS", "400")
    return runs / "results"


def test_every_table_says_how_many_rows_are_left_out(results: Path):
    stored = read_stored(results)
    assert {meta.rows_left_out for meta in stored.cells.values() if meta.spec.task == "cards"} == {3}
    findings = read_findings(results)
    tables = {
        name: table for name, table in findings.tables() if "variant" in table and "cards" in set(table.get("task", ()))
    }
    assert {"curves", "retrieval_gain", "cost"} <= tables.keys()
    for name, table in tables.items():
        counts = table.groupby("task", observed=True)["rows_left_out"].agg(set).to_dict()
        assert counts == {task: {{"cards": 3, "other": 0}[task]} for task in counts}, name
    assert findings.as_json()["curves"][0]["rows_left_out"] == 3
    said = "3 test rows left out as the task file says (too long, or without a label)"
    summary = run_command("summary").out
    assert summary.count(said) > 1
    for option in (("--frontier",), ("--advice", "any")):
        done = run_command("summary", *option)
        assert (done.code, said in done.out) == (0, True), done
    page = run_command("report", "--out", "page.html")
    assert page.code == 0, page.err
    assert said in Path("page.html").read_text(encoding="utf-8")


def test_without_left_out_rows_tables_are_as_before(results: Path):
    findings = read_findings(results, task="other")
    assert not [name for name, table in findings.tables() if "rows_left_out" in table]
    assert "left out as the task file says" not in run_command("summary", "--task", "other").out


def test_left_out_rows_have_no_prediction_and_are_no_wrong_answers(results: Path):
    predictions = pd.concat(map(pd.read_parquet, results.rglob("*.parquet")))
    of_cards = predictions[predictions["task"] == "cards"]
    assert set(of_cards["test_id"]) == {f"t{i}" for i in range(6)}
    (point, *_) = read_findings(results).as_json()["curves"]
    assert point["test_rows"] == 6


def test_a_check_names_rows_that_are_too_long_to_ask(tmp_path: Path, tiny: Path):
    done = run_command("tasks", "--check", write(tmp_path, [9000]), "--model", tiny)
    assert "too long to ask  1 test row (long9000); test.too_long: leave_out leaves such rows out" in done.out
