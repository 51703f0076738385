"""``choose --data``: a task file of a user's rows, written into the results folder."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.in_process import run_command

import icl_bench
from icl_bench.choosing.data import FOLDER, task_of_data, with_task
from icl_bench.errors import UserError
from icl_bench.results.reading import finished_cells
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task

LABELS = ("billing", "delivery", "login")


def table(
    path: Path, rows: int = 60, labels: Sequence[str] = LABELS, columns: Sequence[str] = ("body", "queue")
) -> Path:
    """A CSV of tickets with these columns, each text another one."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for number in range(rows):
            writer.writerow([f"case {number} says x{number * 7919 % 1000} y{number}", labels[number % len(labels)]])
    return path


def refused(data: object, results: Path, text: str | None = "body", label: str | None = "queue") -> str:
    with pytest.raises(UserError) as caught:
        task_of_data(data, text, label, results)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_task_file_is_written_beside_the_results_and_reads_the_same_rows(tmp_path: Path) -> None:
    made = task_of_data(table(tmp_path / "tickets.csv"), "body", "queue", tmp_path / "results")
    assert made.path == tmp_path / "results" / FOLDER / "tickets.yaml"
    data = load_data(load_task(made.path))
    assert (len(data.train), len(data.test_pool), data.labels) == (48, 12, LABELS)
    assert any(line.startswith("data: 3 labels; 12 rows held out to test with, 48 to take") for line in made.said)
    assert "check: no test row is among the demonstrations" in made.said
    assert not list(finished_cells(tmp_path / "results"))  # readers of the folder do not take it for results


def test_a_task_file_of_the_same_rows_is_kept_with_what_the_user_changed(tmp_path: Path) -> None:
    data = table(tmp_path / "tickets.csv")
    made = task_of_data(data, "body", "queue", tmp_path / "results")
    changed = made.path.read_text().replace("body: {text}", "ticket: {text}")
    made.path.write_text(changed)
    again = task_of_data(data, None, None, tmp_path / "results")  # by guess the same columns
    assert made.path.read_text() == changed
    assert again.said[-1].endswith("tickets.yaml (as it was)")


def test_what_is_said_is_of_the_rows_that_race(tmp_path: Path) -> None:
    """The check was that of the draft: all test rows, whatever ``--test-size`` and the changed task file say."""
    data, results = table(tmp_path / "tickets.csv"), tmp_path / "results"
    rows = pd.read_csv(data)
    rows["body"] = [f"the very same words again {number // 2}" for number in range(len(rows))]
    rows.to_csv(data, index=False)
    given = {"data": data, "text": "body", "label": "queue"}
    for size in (None, 4):
        options, said = with_task({**given, "test_size": size}, results)
        assert options["test_size"] == size
        read = load_data(load_task(options["task"]), test_size=size)
        shown = {tuple(row.fields.values()) for row in read.train}
        both = sum(tuple(row.fields.values()) in shown for row in read.test)
        assert any(line.startswith(f"check: {both} test rows also among") for line in said)
        assert any(", 4 of them used, 48 to take" in line for line in said) is (size == 4)
    task = Path(options["task"])
    task.write_text(task.read_text().replace("share: 0.2", "share: 0.5"))
    _, said = with_task(given, results)
    assert any(line.startswith("data: 3 labels; 30 rows held out to test with, 12 of them used, 30") for line in said)


@pytest.mark.parametrize("rows", [59, 61])
def test_other_rows_of_the_same_name_are_refused_and_nothing_is_changed(tmp_path: Path, rows: int) -> None:
    data = table(tmp_path / "tickets.csv")
    made = task_of_data(data, "body", "queue", tmp_path / "results")
    before = made.path.read_bytes()
    table(data, rows=rows)
    assert "tickets.yaml is there, made of other rows or columns" in refused(data, tmp_path / "results")
    assert made.path.read_bytes() == before


def test_a_task_file_that_reads_another_file_is_refused_though_the_rows_are_the_same(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        table(tmp_path / folder / "tickets.csv")
    made = task_of_data(tmp_path / "a" / "tickets.csv", "body", "queue", tmp_path / "results")
    message = refused(tmp_path / "b" / "tickets.csv", tmp_path / "results")
    assert "tickets.yaml is there, and reads" in message
    assert str(Path("a") / "tickets.csv") in message
    again = tmp_path / "b" / ".." / "a" / "tickets.csv"  # the same file by another path
    assert task_of_data(again, "body", "queue", tmp_path / "results").path == made.path


@pytest.mark.parametrize("data", ["", "  "])
def test_an_empty_name_is_refused_in_whole_words(tmp_path: Path, data: str) -> None:
    assert refused(data, tmp_path / "results").startswith("--data: is empty; expected a file of rows like tickets.csv")


def test_in_python_options_are_checked_before_a_task_file_is_written(tmp_path: Path) -> None:
    frame = pd.read_csv(table(tmp_path / "tickets.csv"))
    for wrong in ({"batch": True}, {"on": "ray"}, {"model": None}):
        with pytest.raises(UserError):
            icl_bench.choose(**{"data": frame, "model": "m", "results": tmp_path / "results", **wrong})
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"text": ["body"]}, "--text a list: expected text"),
        ({"label": {"queue"}}, "--label a set: expected text"),
        ({"text": 3}, "data:1: no column '3'"),
        ({"model": [["a"]]}, "--model a list: expected a model's name"),
    ],
)
def test_in_python_a_wrong_type_is_one_line(tmp_path: Path, wrong: dict[str, object], message: str) -> None:
    frame = pd.read_csv(table(tmp_path / "tickets.csv"))
    with pytest.raises(UserError) as caught:
        icl_bench.choose(**{"data": frame, "model": "m", "results": tmp_path / "results", "quiet": True, **wrong})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_task_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "tickets.csv"
    frame = pd.read_csv(table(data))
    frame.assign(subject=frame["body"].str.upper()).to_csv(data, index=False)
    task_of_data(data, "body", "queue", tmp_path / "results")
    assert "made of other rows or columns" in refused(data, tmp_path / "results", text="subject")


def test_a_missing_column_names_those_that_are_there(tmp_path: Path) -> None:
    message = refused(table(tmp_path / "tickets.csv"), tmp_path / "results", text="bdy")
    assert message.endswith("no column 'bdy'; did you mean body? columns: body, queue")
    assert not (tmp_path / "results").exists()


def test_fewer_rows_than_labels_need_are_refused(tmp_path: Path) -> None:
    labels = [f"queue {number}" for number in range(20)]
    data = table(tmp_path / "tickets.csv", rows=39, labels=labels)
    message = refused(data, tmp_path / "results")
    assert "39 rows for 20 labels; at least 40 are needed, 2 of each label" in message
    assert task_of_data(table(data, rows=40, labels=labels), "body", "queue", tmp_path / "results")


def test_leaks_duplicates_and_labels_of_one_row_are_named(tmp_path: Path) -> None:
    frame = pd.read_csv(table(tmp_path / "tickets.csv"))
    frame.loc[:29, "body"] = "the very same words again and again"
    frame = pd.concat([frame, pd.DataFrame([{"body": f"rare {n}", "queue": f"rare {n}"} for n in range(20)])])
    frame.to_csv(tmp_path / "tickets.csv", index=False)
    made = task_of_data(tmp_path / "tickets.csv", "body", "queue", tmp_path / "results")
    check = next(line for line in made.said if line.startswith("check: "))
    assert "also among the demonstrations" in check
    assert "20 labels have too few rows for a test row (rare 0, rare 1, rare 10 and 17 more)" in check
    assert "more than once" in "".join(made.said)


def test_a_frame_gives_the_same_task_as_its_file_and_its_rows_are_written(tmp_path: Path) -> None:
    frame = pd.read_csv(table(tmp_path / "tickets.csv"))
    of_file = load_data(load_task(task_of_data(tmp_path / "tickets.csv", "body", "queue", tmp_path / "results").path))
    made = task_of_data(frame, "body", "queue", tmp_path / "results")
    assert made.path.name.startswith("frame-")
    of_frame = load_data(load_task(made.path))
    assert [(one.fields, one.answer) for one in of_frame.test] == [(one.fields, one.answer) for one in of_file.test]
    assert task_of_data(frame.to_dict("records"), "body", "queue", tmp_path / "results").path == made.path
    other = task_of_data(frame.iloc[:40], "body", "queue", tmp_path / "results")
    assert other.path != made.path  # another frame is another task


def test_a_polars_frame_is_read(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = pd.read_csv(table(tmp_path / "tickets.csv"))
    made = task_of_data(frame, "body", "queue", tmp_path / "results")
    assert (
        task_of_data(polars.DataFrame(frame.to_dict("list")), "body", "queue", tmp_path / "results").path == made.path
    )


def test_a_frame_that_makes_no_task_leaves_no_file(tmp_path: Path) -> None:
    frame = pd.DataFrame({"body": ["a b", "c d", "e f"], "queue": ["x", "y", "z"]})
    message = refused(frame, tmp_path / "results")
    assert message.startswith("data: ")
    assert not [path for path in (tmp_path / "results").rglob("*") if path.is_file()]


@pytest.mark.parametrize("data", [3, {"body": ["a"]}, [], [1, 2], pd.DataFrame()])
def test_what_is_no_data_is_refused_in_one_line(data: object, tmp_path: Path) -> None:
    assert refused(data, tmp_path / "results")


@pytest.mark.parametrize("results", ["memory://x", "s3://bucket/results"])
def test_results_that_are_no_folder_are_refused_before_anything_is_read(results: str, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    with pytest.raises(UserError):
        task_of_data(tmp_path / "none.csv", None, None, results)


def test_a_task_and_data_together_or_neither_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leave --task out"):
        with_task({"task": "trec", "data": "tickets.csv"}, tmp_path)
    with pytest.raises(UserError, match="give rows of your own with --data"):
        with_task({"model": "m"}, tmp_path)
    with pytest.raises(UserError, match="--task: is missing"):
        icl_bench.choose(model="m", results=tmp_path)


ROWS = st.lists(
    st.tuples(st.text(max_size=12), st.one_of(st.sampled_from(["a", "b"]), st.text(max_size=3), st.none())), max_size=30
)


@given(rows=ROWS)
def test_any_rows_make_a_task_or_end_in_one_line(rows: list[tuple[str, str | None]], tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("rows")
    records = [{"text": text, "label": label} for text, label in rows]
    made, message = None, ""
    try:
        made = task_of_data(records, "text", "label", folder)
    except UserError as error:
        message = str(error)
    if made is None:
        assert message
        assert "\n" not in message
        return
    first = load_data(load_task(made.path))
    assert task_of_data(records, "text", "label", folder).path == made.path
    assert {one.id for one in first.train}.isdisjoint(one.id for one in first.test_pool)


def test_the_command_races_on_the_rows_and_its_next_step_names_the_task_file(tmp_path: Path, tiny: Path) -> None:
    data = table(tmp_path / "tickets.csv", rows=100)
    words = ("--model", tiny, "--k", "0,1", "--select", "bm25", "--device", "cpu", "--dtype", "float32")
    command = ("choose", "--data", data, "--text", "body", "--label", "queue", "--margin", "40", *words)
    ended = run_command(*command, "--results", tmp_path / "results")
    assert ended.code == 0, ended.err
    assert "data: 3 labels; 20 rows held out to test with, 80 to take demonstrations from" in ended.err
    assert f"--task {tmp_path / 'results' / FOLDER / 'tickets.yaml'}" in ended.out
    assert run_command(*command, "--results", tmp_path / "results").out == ended.out  # reused, nothing is asked again


def test_the_command_reports_duplicates_once(tmp_path: Path, tiny: Path) -> None:
    data = table(tmp_path / "tickets.csv", rows=100)
    frame = pd.read_csv(data)
    frame.loc[:29, "body"] = "the very same words again and again"
    frame.to_csv(data, index=False)
    words = ("--model", tiny, "--k", "0,1", "--select", "bm25", "--device", "cpu", "--dtype", "float32")
    command = ("choose", "--data", data, "--text", "body", "--label", "queue", "--margin", "40", *words)
    ended = run_command(*command, "--results", tmp_path / "results")
    assert ended.code == 0, ended.err
    told = " ".join(ended.err.split())  # lines are folded
    assert told.count("also among the demonstrations") == 1
    assert "in the pool" not in told
    assert "with a near duplicate among the examples" in " ".join(ended.out.split())
    task = tmp_path / "results" / FOLDER / "tickets.yaml"
    of_task = run_command("choose", "--task", task, "--margin", "40", *words, "--results", tmp_path / "results")
    assert " in the pool: retrieval shows it, with its answer" in " ".join(of_task.err.split())  # lines are folded


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data", "{}", "--text", "bdy"), "did you mean body? columns: body, queue"),
        (("--data", "{}", "--task", "trec"), "--data: makes a task of rows; leave --task out"),
        (("--data", "none.csv"), "none.csv"),
        ((), "--task: is missing"),
    ],
)
def test_wrong_data_is_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    data = table(tmp_path / "tickets.csv")
    given = [word.format(data) for word in words]
    ended = run_command("choose", *given, "--model", "m", "--results", tmp_path / "results")
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
    assert message in ended.err
