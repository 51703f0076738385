"""What of free answers is compared, and where a task's right answers come from."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from icl_bench.errors import UserError
from icl_bench.metrics.exact_text import ExactText
from icl_bench.tasks.answers import FreeAnswers, SlowPatternError, extracted
from icl_bench.tasks.examples import TaskData, load_data
from icl_bench.tasks.spec import AnswerRule
from icl_bench.tasks.splits import StoredRow
from icl_bench.tasks.task_files import load_task
from icl_bench.tasks.worked_examples import MARK, read_pool

NUMBER = AnswerRule(extract=r"####\s*(.+)", take="last")
WORD = AnswerRule(unanswerable="no answer")


def task(folder: Path, rows: Any, **changes: Any) -> Path:
    """A task of one file of which half are test rows."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(text, encoding="utf-8")
    spec = {
        "name": "own",
        "data": {
            "file": "rows.jsonl",
            "holdout": {"share": 0.5, "seed": 1},
            "fields": {"question": "question", "answer": "answers"},
        },
        "template": {"input": "Q: {question}", "output": "A: {answer}"},
        "metrics": ["exact_match"],
        **changes,
    }
    path = folder / "own.yaml"
    path.write_text(json.dumps(spec), encoding="utf-8")
    return path


def rows_of(*answers: Any) -> list[dict[str, Any]]:
    return [{"id": f"r{n}", "question": f"q{n}", "answers": a} for n, a in enumerate(answers)]


def loaded(folder: Path, *answers: Any, **changes: Any) -> TaskData:
    return load_data(load_task(task(folder, rows_of(*answers), **changes)))


def by_id(data: TaskData) -> dict[str, Any]:
    return {e.id: e for e in (*data.train, *data.test_pool)}


def refused(folder: Path, *answers: Any, **changes: Any) -> str:
    with pytest.raises(UserError) as error:
        loaded(folder, *answers, **changes)
    assert "\n" not in str(error.value)
    return str(error.value)


# -- what is extracted ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("5 + 5 = 10\n#### 10", "10"),
        ("#### 1 \n#### 2 ", "2"),
        ("the answer is 10", None),
        ("", None),
        ("#### ", None),
        ("#### 3\n#### ", "3"),
    ],
)
def test_the_first_group_of_the_last_match_is_compared(text: str, found: str | None):
    assert extracted(NUMBER, text) == found


def test_the_first_match_counts_where_the_task_does_not_say_otherwise():
    assert extracted(AnswerRule(extract=r"(\d+)|([a-z]+)"), "ab 1 2") == "1"  # "ab" has no first group


def test_another_group_counts_where_the_first_holds_nothing_and_the_task_says_so():
    rule = AnswerRule(extract=r"(\d+)|([a-z]+)", group="any", take="last")
    assert [extracted(rule, text) for text in ("7 ab", "ab 7", "AB")] == ["ab", "7", None]


def test_what_is_for_answers_alone_leaves_right_answers_as_they_are():
    rule = AnswerRule(extract=r"is (\d+)", of="answers")
    assert extracted(rule, "it is 7") == "7"
    assert extracted(rule, "it is 7", is_right=True) == "it is 7"
    assert extracted(AnswerRule(extract=r"is (\d+)"), "it is 7", is_right=True) == "7"


@pytest.mark.parametrize(
    ("ignored", "found"),
    [
        ({"case": True}, "$1,000. a.b"),
        ({"punctuation": True}, "1000 AB"),
        ({"patterns": [",", r"\.\w", r"^\$"]}, "1000. A"),
        ({"case": True, "punctuation": True, "patterns": ["A"]}, "1000 b"),
        ({}, "$1,000. A.B"),
    ],
)
def test_what_makes_no_difference_is_taken_out_of_both_sides(ignored: Any, found: str):
    rule = AnswerRule(ignore=ignored)
    assert extracted(rule, " $1,000. A.B ") == found
    assert extracted(rule, "$1,000. A.B", is_right=True) == found
    assert extracted(AnswerRule.model_validate({"ignore": {"punctuation": True}}), "...") is None


def test_exact_text_tells_letters_and_blanks_apart():
    golds = [("Ann", "Bee"), ("Ann",), ("Ann",), ("Ann Bee",)]
    found = ExactText().score_golds(golds, ["Bee", "ann", "Ann", "Ann  Bee"])
    assert found["exact_text"].tolist() == [1, 0, 1, 0]


def test_the_word_for_no_answer_is_read_as_the_empty_answer():
    assert extracted(WORD, " No answer. ") == ""
    assert extracted(WORD, "no answers") == "no answers"
    assert extracted(WORD, " \n") is None  # which nobody has written down as an answer
    both = AnswerRule(extract="is (.*)", unanswerable="unanswerable")
    assert extracted(both, "it is unanswerable") == extracted(both, "Unanswerable") == ""
    assert extracted(both, "it is so") == "so"
    assert extracted(both, "what?") is None


@given(st.text(max_size=40))
def test_what_is_extracted_stands_in_the_text(text: str):
    found = extracted(NUMBER, text)
    assert found is None or (found in text and found == found.strip() and found)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"extract": "abc"}, "no group"),
        ({"extract": "(abc"}, "not a regular expression"),
        ({"extract": "a{99999999999}(b)"}, "not a regular expression"),
        ({}, "give extract"),
        ({"take": "last", "unanswerable": "none"}, "a match of extract, which is missing"),
        ({"unanswerable": "the"}, "differs from an empty answer"),
        ({"unanswerable": " x"}, "without spaces"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rule: dict[str, str], reason: str):
    with pytest.raises(ValidationError, match=reason):
        AnswerRule(**rule)


# -- right answers --------------------------------------------------------------------------------


def test_of_several_right_answers_demonstrations_show_the_first(tmp_path: Path):
    found = by_id(loaded(tmp_path, ["Paris", "paris", "Paris"], ["Rome"], "Bonn", 7))
    assert (found["r0"].answer, found["r0"].golds) == ("Paris", ("Paris", "paris"))
    assert [(found[n].answer, found[n].golds) for n in ("r1", "r2", "r3")] == [
        ("Rome", None),
        ("Bonn", None),
        ("7", None),
    ]


def test_right_answers_are_extracted_as_answers_are(tmp_path: Path):
    rule = {"extract": r"####\s*(.+)", "take": "last"}
    changes = {"answer": rule, "metrics": ["numeric"]}
    found = by_id(loaded(tmp_path, "2+2=4\n#### 4", "#### 1,000", **changes))
    assert (found["r0"].answer, found["r0"].golds) == ("2+2=4\n#### 4", ("4",))
    said = refused(tmp_path, "2+2=4", "#### 1", **changes)
    assert said.endswith("rows.jsonl:1: answer.extract finds nothing in answers, '2+2=4'")
    said = refused(tmp_path, "#### four", "#### 1", **changes)
    assert said.endswith("rows.jsonl:1: answers: 'four' is not a number, for numeric")


def test_the_answer_of_a_text_with_two_end_marks_follows_the_last_as_in_a_file_of_worked_examples(tmp_path: Path):
    thought = f"It may be 3. {MARK}3. No, {MARK}4"
    rule = {"ends": MARK, "opens": "", "think": True, "limit": 9}
    found = by_id(loaded(tmp_path, thought, f"5. {MARK}", answer=rule))
    assert [found[name].answer for name in ("r0", "r1")] == ["4", f"5. {MARK}"]
    (tmp_path / "pool.txt").write_text(f"Q: 2 + 2?\nA: {thought}.\n", encoding="utf-8")
    (worked,) = read_pool(tmp_path / "pool.txt", {}).rows
    assert worked.cells["target"] == "4"


def test_right_answers_that_hold_what_ends_an_answer_are_noted(tmp_path: Path):
    def noted(*answers: Any, **changes: Any) -> list[str]:
        return [note for note in loaded(tmp_path, *answers, **changes).notes if "ends answers" in note]

    long = [f"first {n}\n\nsecond" for n in range(6)]
    blank = {"input": "Q: {question}", "output": "A: {answer}", "separator": "\n\n"}
    (note,) = noted(*long, template=blank)
    rule = r"'\n\n', the separator, which ends answers without --chat"
    assert note.startswith(f"the right answers of 3 test rows contain {rule} (first 'r")
    assert note.endswith("'): a model's answer ends before it; choose another separator or stop")
    (note,) = noted("a b", "a b", stop=["a"])
    assert note.startswith("the right answer of 1 test row contains 'a', which ends answers (first 'r")
    assert noted(*[[one, "second"] for one in long], template=blank) == noted("a", "b", template=blank) == []
    assert noted("a.", "b.", stop=["\n"]) == noted(*long) == []


def test_a_delimiter_that_holds_what_ends_an_answer_is_noted(tmp_path: Path):
    def noted(delimiter: str, **changes: Any) -> list[str]:
        template = {"engine": "jinja", "input": "Q: {{question}}\nA:", "output": "answers", "delimiter": delimiter}
        data = {"file": "rows.jsonl", "holdout": {"share": 0.5, "seed": 1}}
        found = loaded(tmp_path, "a", "b", template=template, data=data, **changes)
        return [note for note in found.notes if "delimiter" in note]

    (note,) = noted("\n", stop=["\n"])
    assert note.startswith("answers follow the delimiter '\\n', which contains '\\n', a text that ends answers")
    assert len(noted("\n\n")) == 1
    assert noted(" ", stop=["\n"]) == noted("\n") == noted("\n", stop=["\n\n"]) == []
    thinks = {"think": True, "ends": "So it is ", "limit": 9}
    assert noted("\n", stop=["\n"], answer=thinks) == []


def test_an_empty_list_is_a_question_without_an_answer_where_the_task_has_a_word_for_it(tmp_path: Path):
    word = {"answer": {"unanswerable": "unanswerable"}}
    found = by_id(loaded(tmp_path, [], ["yes", "Yes!"], "", **word))
    assert (found["r0"].answer, found["r0"].golds) == ("unanswerable", ("",))
    assert found["r2"].golds == ("",)
    assert found["r1"].golds == ("yes", "Yes!")
    said = refused(tmp_path, ["yes"], [])
    assert "rows.jsonl:2: answers is an empty list; for questions without an answer, set answer.unanswerable" in said
    said = refused(tmp_path, ["yes"], [], **word, metrics=["f1", "rouge"])
    assert "metric rouge has no score where the right answer is the empty one" in said


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"text": "x"}, "must be text or a list of texts, not a mapping"),
        (["a", None], "must be a list of texts"),
        ([["a"]], "must be a list of texts"),
        (["a", " "], "is empty: it holds ' '"),
        (None, "is empty"),
        ("  ", "is empty"),
        ("", "is empty"),
        ([""], "is empty"),
        (["\ud800"], "half a character"),
    ],
)
def test_what_is_no_right_answer_is_refused_with_its_row(tmp_path: Path, value: Any, reason: str):
    said = refused(tmp_path, "fine", value)
    assert "rows.jsonl:2: answers" in said
    assert reason in said


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"answer": {"extract": "(x)"}}, "answer.extract is for free text"), ({"stop": ["\n"]}, "stop is for free text")],
)
def test_labels_have_neither_stops_nor_extraction(tmp_path: Path, changes: Any, reason: str):
    said = refused(tmp_path, "a", "b", labels={}, metrics=["accuracy"], **changes)
    assert reason in said


def test_a_blank_stop_is_refused(tmp_path: Path):
    assert "an answer begins with a space" in refused(tmp_path, "a", "b", stop=["\n\n", " "])
    refused(tmp_path, "a", "b", stop=[])


# -- one file, and paths into its rows ------------------------------------------------------------


def test_one_file_is_cut_by_the_rule_of_holdouts(tmp_path: Path):
    data = loaded(tmp_path, *map(str, range(9)))
    order = np.random.default_rng(1).permutation(9)
    assert [e.answer for e in data.test_pool] == [str(i) for i in order[:5]]
    assert [e.answer for e in data.train] == [str(i) for i in order[5:]]
    assert sorted(data.files) == ["rows.jsonl:test", "rows.jsonl:train"]
    assert not any("same rows" in note for note in data.notes)
    assert "0.5 of its rows by seed 1" in data.origin


def test_a_packed_file_in_the_data_folder_is_read(tmp_path: Path):
    path = task(tmp_path, rows_of("a", "b", "c"))
    (tmp_path / "data" / "sets").mkdir(parents=True)
    packed = tmp_path / "data" / "sets" / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "rows.jsonl").read_bytes()))
    spec = json.loads(path.read_text())
    spec["data"] |= {"file": "rows.jsonl.gz", "folder": "sets"}
    path.write_text(json.dumps(spec))
    assert len(load_data(load_task(path), data_dir=tmp_path / "data").train) == 1
    packed.unlink()
    with pytest.raises(UserError, match=r"no data: .*sets has no rows\.jsonl\.gz"):
        load_data(load_task(path), data_dir=tmp_path / "data")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"holdout": None}, "holdout is missing"),
        ({"file": None}, "file is missing"),
        ({"train": "a", "test": "b"}, "one file with a holdout, or another source"),
        ({"folder": "x", "file": "../y.jsonl"}, "file is in the folder x"),
    ],
)
def test_a_file_that_is_one_source_of_several_is_refused(tmp_path: Path, data: Any, reason: str):
    path = task(tmp_path, rows_of("a", "b"))
    spec = json.loads(path.read_text())
    spec["data"] |= data
    path.write_text(json.dumps(spec))
    with pytest.raises(UserError, match=reason):
        load_task(path)


def test_a_holdout_of_everything_is_refused(tmp_path: Path):
    assert "its holdout leaves no train row of 1" in refused(tmp_path, "a")


CELLS = {
    "answerKey": "B",
    "a.b": "dotted",
    "ctxs": [{"text": "one"}, {"text": "two", "n": None}],
    "choices": [{"label": "A", "text": "x"}, {"label": "B", "text": "y"}],
    "none": None,
    "columns": {"label": ["A", "B"], "text": ["x", "y"], "odd": ["z"]},
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("answerKey", "B"),
        ("a.b", "dotted"),
        ("ctxs.0.text", "one"),
        ("ctxs.1.text", "two"),
        ("choices.label=answerKey.text", "y"),
        ("columns.label=answerKey.text", "y"),
        ("columns.text.0", "x"),
        ("none.0.text", None),
        ("ctxs.1.n.deeper", None),
    ],
)
def test_a_path_leads_to_what_lies_in_a_cell(path: str, value: Any):
    assert StoredRow("f:1", CELLS).cell(path) == value


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("ctxs.2.text", "f:1: no 2 in ctxs, which is a list of 2"),
        ("ctxs.0.title", "no title in ctxs.0, which has text"),
        ("answerKey.x", "no x in answerKey, which is 'B', with nothing in it"),
        ("ctxs.-1.text", "no -1 in ctxs"),
        ("nothing.0", "no column 'nothing.0'"),
        ("choices.label=none", "has no item whose label is none, None"),
        ("columns.text=answerKey", "has no item whose text is answerKey, 'B'"),
        ("columns.label=answerKey.odd", "no odd in columns.label=answerKey, which has label, text"),
        ("choices.label=gone", "no column 'gone'"),
        ("ctxs.99999999999999999999", "is a list of 2"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path: str, reason: str):
    with pytest.raises(UserError) as error:
        StoredRow("f:1", CELLS).cell(path)
    assert reason in str(error.value)


def places(value: Any, *steps: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every place in cells, with what is there."""
    if steps:
        yield steps, value
    inner = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for name, part in inner:
        yield from places(part, *steps, str(name))


PLACES = dict(places(CELLS))


def test_every_place_has_a_path():
    assert len(PLACES) == 25
    for steps, value in PLACES.items():
        assert StoredRow("f:1", CELLS).cell(".".join(steps)) == value


@given(
    st.sampled_from(sorted(PLACES)),
    st.integers(0, 3),
    st.lists(st.sampled_from(["ctxs", "choices", "0", "1", "label=answerKey", "=", "text", "\n", ""]), max_size=3),
)
def test_a_path_that_goes_on_otherwise_gives_a_value_or_is_refused(
    steps: tuple[str, ...], kept: int, others: list[str]
):
    path = ".".join([*steps[:kept], *others])
    try:
        value = StoredRow("f:1", CELLS).cell(path)
    except UserError as error:
        assert "f:1: " in str(error)  # noqa: PT017
    else:
        assert value is None or value == CELLS or value in PLACES.values()


def test_paths_lead_into_parquet_files_too(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"q": f"q{n}", "key": "B", "c": CELLS["choices"], "other": 1} for n in range(4)]
    path = task(tmp_path, [])
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    spec = json.loads(path.read_text())
    fields = {"question": "q", "answer": "c.label=key.text"}
    spec["data"] |= {"file": "rows.parquet", "fields": fields}
    path.write_text(json.dumps(spec))
    assert {e.answer for e in load_data(load_task(path)).train} == {"y"}


@pytest.mark.parametrize("rule", [{"extract": "((a+)+)$"}, {"ignore": {"patterns": ["(a+)+$"]}}])
def test_a_pattern_that_tries_too_many_ways_is_named_with_its_text(rule, monkeypatch):
    monkeypatch.setattr("icl_bench.tasks.answers.SECONDS", 0.05)
    field, pattern = ("answer.extract", "((a+)+)$") if "extract" in rule else ("answer.ignore.patterns", "(a+)+$")
    text = "a" * 40 + "b"
    with pytest.raises(SlowPatternError) as error:
        extracted(AnswerRule.model_validate(rule), text)
    assert str(error.value).startswith(f"{field} {pattern!r} takes more than 0.05 s on the text {text!r}: ")


def test_a_right_answer_that_a_pattern_takes_too_long_on_is_named_with_its_row(tmp_path, monkeypatch):
    monkeypatch.setattr("icl_bench.tasks.answers.SECONDS", 0.05)
    row = StoredRow("train.jsonl:7", {"answer": "a" * 40 + "b"})
    task = load_task("gsm8k_answers")
    spec = task.model_copy(update={"answer": AnswerRule(extract="((a+)+)$")})
    with pytest.raises(UserError, match=r"^train\.jsonl:7: answer: answer\.extract '\(\(a\+\)\+\)\$' takes more than"):
        FreeAnswers(spec).of(row, "answer")
