"""A file of rows becomes a task: its columns are guessed or told, and every guess is said."""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.in_process import said

from icl_bench import Task
from icl_bench.errors import UserError
from icl_bench.tasks.drafts import draft_task, task_name
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import as_yaml, load_task, written_from_table

QUEUES = ["billing", "cards", "login"]
Rows = list[dict[str, Any]]


def tickets(count: int = 60, **more: Callable[[int], Any]) -> Rows:
    """Rows of a help desk, with columns that are neither text nor label."""
    columns: dict[str, Callable[[int], Any]] = {
        "number": lambda i: f"T-{i:05}",
        "subject": lambda i: f"Ticket {i}",
        "body": lambda i: f"please help me with thing {i}, thanks",
        "queue": lambda i: QUEUES[i % 3],
        "minutes": lambda i: str(i % 7),
        **more,
    }
    return [{name: value(i) for name, value in columns.items()} for i in range(count)]


def write(path: Path, rows: Rows, encoding: str = "utf-8") -> Path:
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "tickets.csv", tickets())


def test_columns_are_guessed_and_every_guess_is_said(table: Path):
    draft = draft_task(table)
    assert draft.spec.data.fields == {"text": "body", "label": "queue"}
    text, label, test, prompt = draft.said
    assert text == "text: column body, by guess; also possible: subject, number (--text)"
    assert label == "label: column queue, by guess; also possible: minutes (--label)"
    assert test == "test: 20% of the rows of each queue by seed 43, 12 rows, of which 12 are used by default"
    assert prompt == "prompt: a demonstration is 'body: {text}', a line break and 'queue: {label}'"
    assert draft.spec.notes == draft.said


def test_columns_that_are_told_are_taken(table: Path):
    draft = draft_task(table, "subject", "minutes")
    assert draft.spec.data.fields == {"text": "subject", "label": "minutes"}
    assert draft.said[:2] == ("text: column subject", "label: column minutes")
    assert draft.data.labels == tuple("0123456")


@pytest.mark.parametrize(
    ("columns", "text", "label"),
    [
        ({"Customer Message": "m", "Ticket Type": "q"}, "Customer Message", "Ticket Type"),
        ({"q": "q", "m": "m"}, "m", "q"),  # by what they hold
        ({"label": "q", "text_id": "hash", "m": "m"}, "m", "label"),
        ({"hash": "hash", "m": "m", "stars": "n"}, "m", "stars"),
        ({"messageText": "m", "a": "q", "category": "q"}, "messageText", "category"),
    ],
)
def test_guesses_go_by_names_and_by_what_columns_hold(columns: dict[str, str], text: str, label: str, tmp_path: Path):
    values: dict[str, Callable[[int], Any]] = {
        "m": lambda i: f"please help me with thing {i}",
        "q": lambda i: QUEUES[i % 3],
        "hash": lambda i: f"{i:064x}",
        "n": lambda i: str(i % 5),
    }
    rows = [{name: values[kind](i) for name, kind in columns.items()} for i in range(40)]
    assert draft_task(write(tmp_path / "a.csv", rows)).spec.data.fields == {"text": text, "label": label}


def test_the_test_split_is_seeded_and_has_its_share_of_each_label(table: Path):
    draft, again = draft_task(table), draft_task(table)
    assert [row.id for row in draft.data.test] == [row.id for row in again.data.test]
    assert Counter(row.answer for row in draft.data.test_pool) == {"billing": 4, "cards": 4, "login": 4}
    assert not {row.fields["text"] for row in draft.data.test} & {row.fields["text"] for row in draft.data.train}


def test_a_label_of_one_row_is_in_the_train_split(tmp_path: Path):
    for rare in range(10):
        rows = tickets(queue=lambda i, rare=rare: "rare" if i == rare else QUEUES[i % 3])
        draft = draft_task(write(tmp_path / "a.csv", rows))
        assert "rare" in draft.data.labels


def test_many_rows_are_asked_as_many_as_a_task_asks(tmp_path: Path):
    draft = draft_task(write(tmp_path / "a.csv", tickets(2000)))
    assert len(draft.data.test) == 250
    assert "test" not in draft.values


@pytest.mark.parametrize(
    ("columns", "text", "label", "message"),
    [
        ({}, "mesage", None, "no column 'mesage'; columns: number, subject, body, queue, minutes"),
        ({}, "body", "body", "body cannot be both text and label"),
        ({}, "body", "number", "number differs in all 60 rows: no label. Free text needs a task file"),
        ({"queue": lambda _: "one"}, None, "queue", "train has one label, 'one'"),
        (
            {"queue": lambda i: str(i), "minutes": lambda i: str(i)},
            None,
            None,
            "no column looks like a label; name one",
        ),
        ({"queue": lambda _: ""}, None, "queue", "queue is a list or an object, or empty: no label"),
    ],
)
def test_what_makes_no_task_is_refused_with_what_to_do(
    columns: Any, text: str | None, label: str | None, message: str, tmp_path: Path
):
    with pytest.raises(UserError) as error:
        draft_task(write(tmp_path / "a.csv", tickets(**columns)), text, label)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_without_texts_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"no column looks like a text; name one \(--text\)\. Columns: a, b"):
        draft_task(write(tmp_path / "a.csv", [{"a": str(i), "b": str(i % 2)} for i in range(20)]))


def test_a_file_of_another_kind_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="not a file of rows"):
        draft_task(tmp_path / "a.txt")


def test_what_rows_lack_is_decided_and_said(tmp_path: Path):
    rows = tickets(
        id=lambda i: str(i // 2),
        queue=lambda i: ["Billing", "billing ", "cards", ""][i % 4],
        body=lambda i: f"hällo thing {i}",
    )
    draft = draft_task(write(tmp_path / "a.csv", rows, "cp1252"))
    assert draft.data.labels == ("Billing", "cards")
    assert draft.data.not_asked == 3
    assert len(draft.data.train) + len(draft.data.test_pool) == 45
    said = " ".join(draft.said)
    for part in (
        "encoding: cp1252",
        "id: does not identify rows",
        "labels.empty: 15 rows",
        "labels.merge: labels that differ only",
    ):
        assert part in said


def test_a_file_that_is_neither_utf_8_nor_windows_is_refused_as_what_it_is_not(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b"text,label\n\x81\x8d,a\n")
    with pytest.raises(UserError, match=r"a.csv:2: not UTF-8 \(byte 0x81\)"):
        draft_task(tmp_path / "a.csv")


def test_the_task_file_that_is_written_is_the_same_task(table: Path, tmp_path: Path, monkeypatch):
    (tmp_path / "tasks").mkdir()
    draft, beside = written_from_table(table, None, None, None)
    _, elsewhere = written_from_table(table, tmp_path / "tasks" / "mine.yaml", None, None)
    assert beside == tmp_path / "tickets.yaml"
    monkeypatch.chdir(tmp_path / "tasks")
    for path in (beside, elsewhere):
        data = load_data(load_task(path))
        assert (data.train, data.test, data.labels, data.files) == (
            draft.data.train,
            draft.data.test,
            draft.data.labels,
            draft.data.files,
        )
    assert "# label: column queue, by guess" in beside.read_text(encoding="utf-8")
    with pytest.raises(UserError, match="is there already"):
        written_from_table(table, None, None, None)


def test_rows_of_a_file_are_a_task_where_a_task_is_asked_for(table: Path):
    spec = load_task(str(table), "subject", "queue")
    assert spec == Task.from_file(table, text="subject", label="queue")
    assert spec.name == "tickets"
    assert load_task(table).data.fields["text"] == "body"
    for option in ({"text": "body"}, {"label": "queue"}):
        with pytest.raises(UserError, match=r"--(text body|label queue): is for a file of rows"):
            load_task("trec", **option)


@pytest.mark.parametrize("kind", ["json", "jsonl", "tsv", "parquet"])
def test_every_kind_of_file_makes_the_same_task(table: Path, kind: str, tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, rows = tmp_path / f"tickets.{kind}", tickets()
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "tsv":
        path.write_text(
            table.read_text(encoding="utf-8").replace(", thanks", "").replace(",", "\t").replace('"', ""),
            encoding="utf-8",
        )
    else:
        lines = [json.dumps(row) for row in rows]
        path.write_text("\n".join(lines) if kind == "jsonl" else f"[{','.join(lines)}]", encoding="utf-8")
    made, other = draft_task(table), draft_task(path)
    assert other.spec.data.fields == made.spec.data.fields
    assert [row.answer for row in other.data.test] == [row.answer for row in made.data.test]


def test_class_numbers_of_a_parquet_file_are_guessed_and_decided_by_their_names(tmp_path: Path):
    import datasets

    kinds = ["Billing", "billing", "cards"]
    numbers = [i % 4 - 1 for i in range(60)]  # -1 is no label
    columns = {"text": [f"please help with {i}" for i in range(60)], "kind": numbers, "stars": numbers}
    features = datasets.Features(
        text=datasets.Value("string"), stars=datasets.Value("int64"), kind=datasets.ClassLabel(names=kinds)
    )
    path = tmp_path / "a.parquet"
    datasets.Dataset.from_dict(columns, features=features).to_parquet(path)
    draft = draft_task(path)
    assert draft.said[1] == "label: column kind, by guess; also possible: stars (--label)"
    assert "labels.empty: 15 rows without a label are left out" in draft.said
    assert any("are merged ('Billing' and 'billing')" in said for said in draft.said)
    assert set(draft.data.labels) < {*kinds}


def test_of_equal_columns_of_a_parquet_file_the_last_one_is_guessed_as_in_any_file(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"m": f"please help with {i}", "zeta": QUEUES[i % 3], "alpha": QUEUES[i % 3]} for i in range(30)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    label = "label: column alpha, by guess; also possible: zeta (--label)"
    assert draft_task(tmp_path / "a.parquet").said[1] == draft_task(write(tmp_path / "a.csv", rows)).said[1] == label


def test_an_id_that_only_later_rows_have_names_no_rows(tmp_path: Path):
    rows = [row if i < 9 else {**row, "id": "same"} for i, row in enumerate(tickets())]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert draft_task(path).values["data"]["id"] is False


def test_labels_that_are_joined_are_named_or_counted(tmp_path: Path):
    names = "abcdefg"
    rows = tickets(queue=lambda i: names[i % 7].upper() if i % 2 else names[i % 7])
    (said,) = (said for said in draft_task(write(tmp_path / "a.csv", rows)).said if said.startswith("labels.merge"))
    assert said.endswith("('A' and 'a'; 'B' and 'b'; 'C' and 'c'; 'D' and 'd'; 'E' and 'e'; and 2 more)")


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("tickets.csv", "tickets"),
        ("a b.csv.gz", "a_b"),
        ("Anträge 1.xlsx", "Antr_ge_1"),
        ("問.csv", "table"),
        (".csv", "table"),
    ],
)
def test_a_task_is_called_after_its_file(name: str, task: str):
    assert task_name(Path(name)) == task


ODD = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(ODD.filter(str.strip), min_size=2, max_size=4, unique=True),
    labels=st.lists(ODD, min_size=2, max_size=4, unique=True),
    seed=st.integers(0, 9),
)
@example(names=["0", "0\x85"], labels=["0", "1"], seed=0)
def test_any_table_makes_a_task_or_is_refused_in_one_line(
    names: list[str], labels: list[str], seed: int, tmp_path: Path
):
    rng = random.Random(seed)
    rows = [
        {name: rng.choice(labels) if place == 0 else f"text {i} {place}" for place, name in enumerate(names)}
        for i in range(20)
    ]
    path = write(tmp_path / "a.csv", rows)
    refusals: list[str] = []
    for columns in ((names[1], names[0]), (None, None)):
        try:
            draft = draft_task(path, *columns)
        except UserError as error:
            refusals.append(str(error))
            continue
        (tmp_path / "a.yaml").unlink(missing_ok=True)
        written_from_table(path, None, *columns)
        assert load_data(load_task(tmp_path / "a.yaml")).train == draft.data.train
    assert not [refusal for refusal in refusals if "\n" in refusal]


@pytest.mark.parametrize("mark", ["\x85", "\u2028", "\u2029", "\n", "\x0b", "\ufeff"])
def test_line_breaks_of_any_kind_in_names_and_labels_are_written_and_read(mark: str):
    values = {"name": f"0{mark}", f"{mark}key": [f"a{mark}b", f"c {mark} d", mark]}
    assert yaml.safe_load(as_yaml(values)) == values


# -- the commands ---------------------------------------------------------------------------------


def test_the_command_writes_the_file_and_shows_a_prompt(table: Path):
    shown = said("tasks", "--from-csv", table)
    assert f"Written: {table.with_suffix('.yaml')}".replace("\n", "") in shown.replace("\n", "")
    assert "label: column queue, by guess; also possible: minutes (--label)" in shown
    assert "\nqueue: " in shown
    assert shown.count("\nbody: please help me with thing") == 2
    assert "is there already" in said("tasks", "--from-csv", table, code=2)


def test_the_command_takes_columns_and_a_place_and_gives_json(table: Path, tmp_path: Path):
    record = json.loads(
        said(
            "tasks",
            "--from-csv",
            table,
            "--text",
            "subject",
            "--label",
            "queue",
            "--out",
            tmp_path / "x.yaml",
            "--json",
        )
    )
    assert (record["text"], record["label"], record["labels"]) == ("subject", "queue", QUEUES)
    assert record["file"] == str(tmp_path / "x.yaml")
    assert load_task(tmp_path / "x.yaml").data.fields == {"text": "subject", "label": "queue"}


ROWS = "a file of rows ends in .jsonl, .ndjson, .json, .csv, .tsv, .xlsx or .parquet: --task tickets.csv --text COLUMN"


@pytest.mark.parametrize("task", ["tickets.txt", "tickets", "./tickets.txt", "./tickets"])
def test_a_file_that_is_no_task_says_what_a_file_of_rows_is(task: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(task).write_text("body,queue\nwhere is my card,cards\n")
    with pytest.raises(UserError) as refused:
        load_task(task)
    assert ROWS in str(refused.value)
    assert str(refused.value).startswith(f"{task}: ")
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("task", ["own", "./own"])
def test_a_folder_as_a_task_names_a_file_in_it(task: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own").mkdir()
    with pytest.raises(
        UserError, match=r"^own: is a folder; give a task file \(.yaml\) or a file of rows, like own/ti"
    ):
        load_task(task)
    Path("own/queues.csv").write_text("body,queue\n")
    with pytest.raises(UserError, match=r"like own/queues.csv$"):
        load_task(task)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("quue", "did you mean queue? columns: "),
        ("QUEUE", "did you mean queue? columns: "),
        ("zzz", "'zzz'; columns: "),
    ],
)
def test_a_mistyped_column_asks_for_the_nearest(table: Path, column: str, said: str):
    with pytest.raises(UserError, match=f"no column '{column}'; ") as refused:
        draft_task(table, label=column)
    assert said in str(refused.value)


@pytest.mark.parametrize("option", ["--text", "--label"])
def test_columns_without_a_file_are_refused(option: str):
    assert f"{option}: needs --check or --from-csv" in said("tasks", option, "body", code=2)
    assert f"{option} body: is for a file of rows" in said("tasks", "--check", "stdlib_six", option, "body", code=2)


def test_a_table_is_checked_with_the_columns_that_run_takes(table: Path):
    shown = said("tasks", "--check", table, "--text", "body", "--label", "queue")
    assert "column queue" in shown
    assert "by guess" not in shown


def test_a_table_is_planned_in_one_go_and_every_guess_is_noted(table: Path, tiny: Path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    options = ("--model", tiny, "--k", "1", "--draws", 1, "--device", "cpu")
    shown = said("plan", "--task", table, "--text", "body", "--label", "queue", *options)
    assert "note: label: column queue" in shown
    assert "note: prompt: a demonstration is 'body: {text}', a line break and 'queue: {label}'" in shown
    assert "by guess" in said("plan", "--task", table, *options)
    assert "no column 'kind'" in said("plan", "--task", table, "--label", "kind", *options, code=2)
    assert "--text body: is for a file of rows" in said(
        "plan", "--task", "stdlib_six", "--text", "body", *options, code=2
    )
