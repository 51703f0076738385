"""What stands in the data is printed as it stands there: no markup, no emoji, no commands."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import FakeBackend, model, planned, runner, small_tokenizer, write_rows, write_task
from support.in_process import run_command
from support.models import llama_tokenizer, tiny_checkpoint
from support.predictions import cell, frame

from icl_bench.escaping import visible
from icl_bench.results.exporting import export_results
from icl_bench.results.importing import import_predictions
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task

ODD = "[a][/red] :tada: [link=x]y[/] \\[b] \\"
"""Rich would end in an error, leave a part out, colour one, or draw a picture."""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "600")  # no line is broken
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Imported points, all of whose names and texts are odd."""
    rows = frame(cell("aabb"), cell("abab", k=7), cell("abba", select="other"))
    rows = rows.drop(columns=["variant", "correct", "valid"])
    for name in ("task", "model", "order", "select", "gold", "prediction", "test_id"):
        rows[name] = f"{name} {ODD} " + rows[name]
    rows["attention"] = f"attention {ODD}"
    rows.to_parquet(tmp_path / "mine.parquet")
    import_predictions(tmp_path / "mine.parquet", tmp_path / "results")
    return tmp_path / "results"


def odd_task(folder: Path) -> Path:
    """A task whose labels, ids and texts are odd; its name cannot be."""
    path = write_task(folder, labels={"style": "as-is"}, description=ODD)
    rows = [{"id": f"{ODD}{i}", "text": f"{ODD} {i}", "label": f"{ODD}{i % 2}"} for i in range(20)]
    write_rows(folder / "train.jsonl", rows)
    write_rows(folder / "test.jsonl", [{**row, "id": f"test {row['id']}"} for row in rows])
    return path


def test_summary_and_leaderboard_print_odd_names_as_they_are(results: Path):
    done = run_command("summary", "--results", results, "--cost")
    assert (done.code, done.err) == (0, "")
    for name in ("task", "model", "select", "order", "attention"):
        assert f"{name} {ODD}" in done.out
    done = run_command("summary", "--results", results, "--advice", "any")
    assert done.code == 0
    assert f"task {ODD} t · model {ODD} m" in done.out
    done = run_command("leaderboard", "--results", results)
    assert done.code == 0
    assert r"task \[a\]\[/red\] :tada: \[link=x\]y\[/\] \\\[b\] \\ t" in done.out


def test_check_prints_odd_names_as_they_are(results: Path, tmp_path: Path):
    export_results(results, tmp_path / "base.parquet")
    done = run_command("check", "--baseline", tmp_path / "base.parquet", "--results", results)
    assert (done.code, done.err) == (0, "")
    for name in ("task", "model", "select", "order", "attention"):
        assert f"{name} {ODD}" in done.out


def test_a_tasks_data_and_plan_are_printed_as_they_are(tmp_path: Path):
    folder = tiny_checkpoint(tmp_path / "[a][b] :tada:", tokenizer=llama_tokenizer())
    path = odd_task(tmp_path / "[b][i]")
    done = run_command("tasks", "--check", path, "--model", folder)
    assert (done.code, done.err) == (0, "")
    assert str(tmp_path / "[b][i]") in done.out
    assert "[a][b] :tada:" in done.out
    done = run_command("plan", "--task", path, "--model", folder, "--k", "1", "--device", "cpu", "--draws", "1")
    assert (done.code, done.err) == (0, "")
    assert "cards · [a][b] :tada:, tokens" in done.out
    assert str(tmp_path / "[b][i]") in done.out
    shutil.rmtree(folder)
    done = run_command("tasks", "--check", path, "--model", folder)
    assert done.code == 2
    assert "[a][b] :tada:" in done.err


def test_show_prints_a_prediction_as_it_is(tmp_path: Path):
    data = load_data(load_task(odd_task(tmp_path / "task")))
    tokenizer: Any = small_tokenizer()
    made = planned(TokenizedTask(data, model(), tokenizer), "1", draws=1)
    runner(made, tmp_path / "results", FakeBackend()).run()
    done = run_command("show", "--task", "cards", "--k", 1, "--results", tmp_path / "results")
    assert done.code == 0
    assert f"query: {ODD}" in done.out
    assert f"gold  {ODD}" in done.out
    assert f"test id  test {ODD}" in done.out


def test_a_terminal_is_given_no_commands_by_the_data(results: Path, tmp_path: Path):
    rows = frame(cell("aabb")).drop(columns=["variant", "correct", "valid"])
    evil = "\x1b[2J\x9b2J\x07\u202e\x7f"
    rows["task"] = evil
    rows.to_parquet(tmp_path / "evil.parquet")
    import_predictions(tmp_path / "evil.parquet", results)
    for words in ([], ["--advice", "any"], ["--task", evil + "x"]):
        done = run_command("summary", "--results", results, *words)
        assert done.code == (2 if "--task" in words else 0)
        assert not set(evil) & set(done.out + done.err) - set("[2J")
        assert r"\x1b[2J\x9b2J\x07\u202e\x7f" in done.out + done.err


@given(st.text())
def test_only_what_cannot_be_shown_is_written_otherwise(text: str):
    shown = visible(text)
    shown.encode()
    if text.isprintable():
        assert shown == text
