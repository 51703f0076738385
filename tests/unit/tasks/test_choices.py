"""Choices of each row: its own list, in the forms that data sets have, and the right one of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icl_bench.errors import UserError
from icl_bench.tasks.choices import read_list
from icl_bench.tasks.data_report import report_on
from icl_bench.tasks.examples import TaskData, load_data
from icl_bench.tasks.spec import Labels, TaskSpec
from icl_bench.tasks.splits import StoredRow
from icl_bench.tasks.task_files import load_task

TEXTS = ["a bank", "the mall", "a_library"]
OBJECTS = [{"label": f"{n}", "text": text} for n, text in enumerate(TEXTS, 1)]
COLUMNS = {"text": [*TEXTS], "label": ["1", "2", "3"]}
ROW = {"question": "Where?", "choices": TEXTS, "answer": "the mall"}

Load = Callable[..., TaskData]


def task(labels: dict[str, Any] | None = None, **changes: Any) -> TaskSpec:
    fields = {name: name for name in ("question", "choices", "answer")}
    written = {
        "name": "mine",
        "data": {"fields": fields},
        "template": {"input": "Question: {question}", "output": "Answer: {answer}"},
        "labels": {"choices": "choices", **(labels or {})},
        "metrics": ["accuracy"],
    }
    return TaskSpec.model_validate(written | changes)


SHOWN = {"input": "Question: {question}\n{choices}", "output": "Answer: {answer}"}


def letters(**more: Any) -> TaskSpec:
    return task({"style": "letters", **more}, template=SHOWN)


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a task with these rows in both splits."""

    def load(spec: TaskSpec, *rows: dict[str, Any]) -> TaskData:
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        for name in ("train.jsonl", "test.jsonl"):
            (folder / name).write_text(lines, encoding="utf-8")
        return load_data(spec, data_dir=tmp_path)

    return load


def complaint(load: Load, spec: TaskSpec, **changes: Any) -> str:
    with pytest.raises(UserError) as error:
        load(spec, ROW, ROW | changes)
    assert "\n" not in str(error.value)
    return str(error.value).rpartition("train.jsonl:")[2]


# -- what a row says ----------------------------------------------------------------------------


@pytest.mark.parametrize("listed", [TEXTS, OBJECTS, COLUMNS], ids=["texts", "objects", "columns"])
def test_choices_are_a_list_of_texts_or_of_objects_or_two_columns(load: Load, listed: Any):
    (row,) = load(task(), ROW | {"choices": listed}).train
    assert row.choices == ("a bank", "the mall", "a_library")
    assert row.answer == "the mall"
    assert row.fields == {"question": "Where?"}


@pytest.mark.parametrize(
    ("gold", "listed", "value"),
    [
        ("text", OBJECTS, "the mall"),
        ("key", OBJECTS, "2"),
        ("key", OBJECTS, 2),
        ("key", COLUMNS, "2"),
        ("key", TEXTS, "B"),
        ("index", OBJECTS, 1),
        ("index", TEXTS, "1"),
    ],
)
def test_the_right_one_is_named_by_text_key_or_index_as_the_task_says(load: Load, gold: str, listed: Any, value: Any):
    (row,) = load(task({"gold": gold}), ROW | {"choices": listed, "answer": value}).train
    assert row.answer == "the mall"


@pytest.mark.parametrize(
    ("gold", "value", "said"),
    [
        ("text", "a shop", "not the text of one of the row's choices ('a bank', 'the mall', "),
        ("text", "B", "answer is 'B', not the text"),
        ("text", 1, "answer is 1, not the text"),
        ("text", None, "answer is empty"),
        ("key", "the mall", "not the key of one of the row's choices ('A', 'B', 'C')"),
        ("index", 3, "answer is 3, not the index, from 0, of one of the row's choices ('0', '1'"),
        ("index", -1, "answer is -1"),
        ("index", True, "answer is True"),
        ("index", "B", "answer is 'B'"),
    ],
)
def test_an_answer_that_is_none_of_the_choices_is_refused_with_its_line(load: Load, gold: str, value: Any, said: str):
    first = {"text": "the mall", "key": "B", "index": 1}[gold]
    with pytest.raises(UserError) as error:
        load(task({"gold": gold}), ROW | {"answer": first}, ROW | {"answer": value})
    assert "train.jsonl:2: " in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            "a bank",
            "2: choices must be a list of texts, of objects with text and label, or an object of keys and texts, not 'a bank'",
        ),
        (None, "2: choices must be a list of texts"),
        ({"a": 1}, "2: choices has one choice, '1'; expected several"),
        ([], "2: choices has no choice; expected several"),
        (["a bank"], "2: choices has one choice, 'a bank'; expected several"),
        (["a", "b", "a"], "2: choices has the choice 'a' twice"),
        (["a", None], "2: choices has a choice that is not a text: None"),
        (["a", ["b"]], "2: choices has a choice that is not a text: a list"),
        (["a", ""], "2: choices has a choice that is written as an empty text: ''"),
        (["a", "b\nc"], "2: choices: the choice 'b\\nc' holds a line break"),
        (["a", " b"], "2: choices: the choice ' b' begins or ends with a space"),
        (["a", "\ud800"], "2: choices has half a character"),
        ([{"label": "A"}, {"label": "B"}], "2: choices has a choice without text: a mapping"),
        ([{"label": "A", "text": "a"}, {"label": "A", "text": "b"}], "2: choices has the label 'A' twice"),
        ({"text": ["a", "b"], "label": ["A"]}, "2: choices has other numbers of texts and of labels"),
    ],
)
def test_what_is_no_list_of_different_texts_is_refused_with_its_line(load: Load, value: Any, said: str):
    assert complaint(load, task(), choices=value).startswith(said)


def test_choices_that_are_written_alike_are_duplicates(load: Load):
    written = complaint(load, task({"style": "words"}), choices=["the mall", "a_b", "a b"])
    assert written.startswith("2: choices has the choice 'a b' twice")


def test_a_row_without_the_list_is_refused_and_one_without_a_question_left_out(load: Load):
    bare = {"question": "Where?", "answer": "the mall"}
    with pytest.raises(UserError, match=r"train.jsonl:2: no column 'choices'; columns: question"):
        load(task(), ROW, bare)
    data = load(task(), ROW, ROW | {"question": "", "choices": "no list"})
    assert data.left_out == {"train": 1, "test": 1}


def test_numbers_are_choices_too(load: Load):
    (row,) = load(task(), ROW | {"choices": [12, 1.5, "x"], "answer": 12}).train
    assert (row.choices, row.answer) == (("12", "1.5", "x"), "12")


# -- how it is written --------------------------------------------------------------------------


def test_letters_stand_for_the_choices_which_the_prompt_shows(load: Load):
    data = load(letters(), ROW, ROW | {"choices": [*TEXTS, "home"], "answer": "home"})
    first, second = data.train
    assert first.fields["choices"] == "A. a bank\nB. the mall\nC. a_library"
    assert (first.answer, first.choices) == ("B", ("A", "B", "C"))
    assert (second.answer, second.choices) == ("D", ("A", "B", "C", "D"))
    assert data.labels == ("A", "B", "C", "D")


def test_choices_that_are_written_out_are_shown_behind_dashes_and_are_no_labels(load: Load):
    data = load(task({"style": "words"}, template=SHOWN), ROW)
    assert data.train[0].fields["choices"] == "- a bank\n- the mall\n- a library"
    assert data.labels == ()
    assert report_on(data).labels == ()


def test_letters_tell_equal_choices_apart_and_the_user_is_told(load: Load):
    twice = {"choices": ["a", "b", "a"], "answer": 2}
    data = load(letters(gold="index"), ROW | {"answer": 1}, ROW | twice)
    assert data.train[1].answer == "C"
    assert any("2 rows have a choice twice, under two letters" in note for note in data.notes)
    with pytest.raises(UserError, match=r"train.jsonl:1: answer is 'a', which choices has twice"):
        load(letters(), ROW | {"choices": ["a", "b", "a"], "answer": "a"})


def test_there_are_26_letters(load: Load):
    many = [str(i) for i in range(27)]
    row = ROW | {"choices": many[:26], "answer": "25"}
    assert load(letters(), row).train[0].answer == "Z"
    with pytest.raises(UserError, match="27 choices; letters are for 26 at most"):
        load(letters(), ROW | {"choices": many, "answer": "25"})
    assert load(task({"gold": "key"}), ROW | {"choices": many, "answer": "26"}).train[0].answer == "26"


@given(
    st.lists(st.text("ab_ é", min_size=1).filter(lambda t: t == t.strip()), min_size=2, max_size=6, unique=True),
    st.data(),
    st.sampled_from(["as-is", "letters"]),
)
def test_every_way_to_name_the_right_one_gives_the_same(texts: list[str], data: Any, style: Any):
    right = data.draw(st.integers(0, len(texts) - 1))
    said = {"text": texts[right], "key": "ABCDEF"[right], "index": right}
    expected = tuple(texts) if style == "as-is" else tuple("ABCDEF"[: len(texts)])
    for gold, value in said.items():
        labels, row = Labels(choices="c", style=style, gold=gold), StoredRow("here", {"c": texts, "a": value})
        choices = read_list(labels, row, texts, "c")
        assert choices.right(labels, row, "a") == right
        assert choices.written == expected


# -- task files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "changes", "said"),
    [
        ({"choices": None, "style": "letters"}, {}, "style: letters is for choices of each row"),
        ({"choices": None, "gold": "key"}, {}, "gold: key is for choices of each row"),
        ({"choices": "options"}, {}, "labels.choices uses {options}, which data.fields does not"),
        ({"choices": "answer"}, {}, "answer is the answer; expected the field of the list"),
        ({"names": {"a": "b"}}, {}, "names are of labels that all rows share"),
        ({"style": "letters"}, {}, "style: letters needs {choices} in the template's input"),
        ({"style": "letters", "normalize": "bytes"}, {"template": SHOWN}, "as long as one another"),
        ({}, {"metrics": ["accuracy", "macro_f1"]}, "metric macro_f1 needs labels that all rows share"),
    ],
)
def test_what_does_not_go_together_is_refused(labels: Any, changes: Any, said: str):
    with pytest.raises(ValueError) as error:
        task(labels, **changes)
    assert said in str(error.value)


def test_macro_f1_of_letters_is_one(load: Load):
    spec = task({"style": "letters"}, template=SHOWN, metrics=["accuracy", "macro_f1"])
    assert spec.has_common_labels
    assert not task().has_common_labels
    assert task().is_classification


def test_commonsenseqa_reads_the_real_rows(data_dir: Path):
    data = load_data(load_task("commonsenseqa"), data_dir=data_dir)
    assert len(data.train) + len(data.test_pool) == 1221
    assert (len(data.test), data.labels) == (250, tuple("ABCDE"))
    (row,) = [
        r
        for r in (*data.train, *data.test_pool)
        if "A. bank\n" in r.fields["choices"] and "revolving door" in r.fields["question"]
    ]
    assert row.answer == "A"
    assert row.fields["choices"] == ("A. bank\nB. library\nC. department store\nD. mall\nE. new york")
    assert any("24 rows have a choice twice" in note for note in data.notes)


# -- choices that are no plain texts --------------------------------------------------------------


def test_a_choice_that_a_letter_stands_for_may_be_any_text(load: Load):
    listed = ["first line\nsecond", " with blanks ", "c"]
    (row,) = load(letters(), ROW | {"choices": listed, "answer": " with blanks "}).train
    assert row.answer == "B"
    assert row.fields["choices"] == "A. first line\nsecond\nB.  with blanks \nC. c"


@pytest.mark.parametrize(("answer", "gold"), [(True, "text"), ("true", "text"), (0, "index"), ("A", "key")])
def test_truth_values_are_choices_as_json_writes_them(load: Load, answer: Any, gold: str):
    (row,) = load(task({"gold": gold}), ROW | {"choices": [True, False], "answer": answer}).train
    assert (row.choices, row.answer) == (("true", "false"), "true")


def test_a_truth_value_is_no_index(load: Load):
    with pytest.raises(UserError, match="answer is True, not the index"):
        load(task({"gold": "index"}), ROW | {"choices": [True, False], "answer": True})


@pytest.mark.parametrize(("gold", "answer"), [("key", "B"), ("text", "the mall"), ("index", 1)])
def test_an_object_of_keys_and_texts_lists_choices(load: Load, gold: str, answer: Any):
    listed = {"A": "a bank", "B": "the mall", "C": "a_library", "D": None}
    (row,) = load(letters(gold=gold), ROW | {"choices": listed, "answer": answer}).train
    assert row.answer == "B"
    assert row.fields["choices"] == "A. a bank\nB. the mall\nC. a_library"


@pytest.mark.parametrize("listed", [{"text": "a", "label": "b"}, {"A": ["a"], "B": "b"}, {"A": {"x": 1}, "B": "b"}])
def test_an_object_that_lists_no_choices_is_refused(load: Load, listed: Any):
    with pytest.raises(UserError, match=r"train\.jsonl:1: choices (must be|has a choice that is not a text)"):
        load(task(), ROW | {"choices": listed})


def test_a_jinja_task_takes_an_object_of_keys_and_texts(load: Load):
    jinja = {"engine": "jinja", "input": "{{question}}", "output": "answer"}
    spec = task({"gold": "key"}, data={}, template=jinja)
    (row,) = load(spec, ROW | {"choices": {"x": "a bank", "y": "the mall"}, "answer": "y"}).train
    assert (row.choices, row.answer) == (("a bank", "the mall"), "the mall")


def test_labels_of_all_rows_may_be_truth_values_and_numbers(load: Load):
    shared = {"choices": [True, False]}
    rows = load(task(shared), ROW | {"answer": True}, ROW | {"answer": "false"})
    assert rows.labels == ("false", "true")
    assert [row.answer for row in rows.train] == ["true", "false"]
    assert Labels.model_validate({"choices": [0, 1.5]}).choices == ("0", "1.5")
    assert Labels.model_validate({"names": {0: "negative", True: "yes"}}).names == {"0": "negative", "true": "yes"}


def test_a_yes_that_yaml_reads_as_true_is_told(load: Load):
    with pytest.raises(UserError, match="YAML reads yes, no, on and off as true and false: put them in quotes"):
        load(task({"choices": [True, False]}), ROW | {"answer": "yes"})
