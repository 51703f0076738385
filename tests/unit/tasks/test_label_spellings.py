"""Labels that are one, written in several ways: named, joined where a task says so, and never 0% in silence."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icl_bench.errors import UserError
from icl_bench.sweep.facts import _label_rule
from icl_bench.sweep.task_check import check_task
from icl_bench.tasks.examples import TaskData, load_data
from icl_bench.tasks.label_spellings import plain_form, same_labels
from icl_bench.tasks.spec import TaskSpec

PAIRS: list[tuple[Any, Any]] = [
    (0, 0.0),
    ("1", "1.0"),
    ("True", True),
    ("Refund", "refund"),
    ("STRASSE", "straße"),
    (unicodedata.normalize("NFC", "café"), unicodedata.normalize("NFD", "café")),
    ("new\u00a0card", "new card"),
    ("new  card", "new card"),
    ("card", "card\u200b"),
    ("１２", "12"),
    ("ﬁne", "fine"),
    ("-0", "0"),
    ("1e2", "100"),
]


def task(**labels: Any) -> TaskSpec:
    return TaskSpec.model_validate(
        {
            "name": "mine",
            "data": {"fields": {"text": "text", "label": "label"}},
            "template": {"input": "query: {text}", "output": "intent: {label}"},
            "labels": labels,
            "metrics": ["accuracy"],
        }
    )


Load = Callable[..., TaskData]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a task with these labels in its train and test rows."""

    def load(train: list[Any], test: list[Any], **labels: Any) -> TaskData:
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        for name, values in {"train": train, "test": test}.items():
            rows = [{"text": f"{name} {i}", "label": value} for i, value in enumerate(values)]
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return load_data(task(**labels), data_dir=tmp_path)

    return load


def noted(data: TaskData) -> list[str]:
    return [note for note in data.notes if "labels that may be one" in note]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_spellings_of_a_label_are_named(load: Load, one: Any, other: Any):
    (note,) = noted(load([one, other, "another"], ["another"]))
    assert note.endswith("labels.merge: true merges them")


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_spellings_of_a_label_are_joined_as_most_rows_write_it(load: Load, one: Any, other: Any):
    data = load([one, one, other, "another"], [other, "another"], merge=True)
    assert len(data.labels) == 2
    (written,) = set(data.labels) - {"another"}
    assert [row.answer for row in data.train] == [written, written, written, "another"]
    assert {row.answer for row in data.test} == {written, "another"}
    assert written == " ".join(load([one, one, "another"], ["another"]).train[0].answer.split())
    assert not noted(data)
    assert any(note.startswith("labels.merge reads ") for note in data.notes)


@pytest.mark.parametrize(
    ("one", "other"), [("a b", "ab"), ("1", "11"), ("1.5", "15"), ("yes", "true"), ("e", "é"), ("-1", "1")]
)
def test_different_labels_stay_different(load: Load, one: Any, other: Any):
    data = load([one, other, "another"], ["another"], merge=True)
    assert len(data.labels) == 3
    assert not noted(load([one, other, "another"], ["another"]))


def test_blanks_around_a_label_are_no_fault_where_labels_are_joined(load: Load):
    with pytest.raises(UserError, match="begins or ends with a space"):
        load(["refund ", "refund", "card"], ["card"])
    data = load([" refund\u00a0", "refund", "card"], ["card\t"], merge=True)
    assert data.labels == ("card", "refund")
    assert "labels.merge reads ' refund\\xa0' as 'refund', 'card\\t' as 'card'" in data.notes


def test_labels_that_the_task_writes_alike_are_joined(load: Load):
    with pytest.raises(UserError, match=r"duplicated after formatting.*or merge them with labels\.merge: true"):
        load(["a_b", "a b", "c"], ["c"], style="words")
    assert load(["a_b", "a b", "c"], ["c"], style="words", merge=True).labels == ("a b", "c")


def test_a_test_split_of_which_no_label_is_known_is_refused_with_what_joins_them(load: Load):
    with pytest.raises(UserError) as error:
        load(["0", "1"], ["0.0", "1.0"])
    assert str(error.value) == (
        "mine: no test row has a label of the train rows: '0.0', '1.0' in test, '0', '1' in train; "
        "labels.merge: true merges different spellings"
    )
    assert {row.answer for row in load(["0", "1"], ["0.0", "1.0"], merge=True).test} == {"0", "1"}
    with pytest.raises(UserError, match=r"'c' in test, 'a', 'b' in train$"):
        load(["a", "b"], ["c"])
    with pytest.raises(UserError, match=r"'1', '2', '3', '4' and 2 more in test, 'a', 'b', 'c', 'd' and 1 more in"):
        load([*"abcde"], [*"123456"])


def test_a_choice_of_all_rows_is_found_by_its_plain_form_where_labels_are_joined(load: Load):
    shared = {"choices": ["True", "False"]}
    with pytest.raises(UserError, match=r"label is 'true', not the text .*; labels\.merge: true reads it as 'True'"):
        load(["True", "true"], ["False"], **shared)
    data = load(["True", True, "FALSE "], ["False"], merge=True, **shared)
    assert [row.answer for row in data.train] == ["True", "True", "False"]
    with pytest.raises(UserError, match="label is 'maybe', not the text"):
        load(["maybe"], ["False"], merge=True, **shared)


def test_joined_labels_are_another_setting():
    """Gold answers differ where only test rows have another spelling, and prompts do not."""
    assert _label_rule(task(merge=True)) == {"merge": True}
    assert _label_rule(task()) == {}


def test_a_check_names_the_spellings(load: Load, tmp_path: Path):
    load(["Refund", "refund", "card"] * 5, ["card"])
    path = tmp_path / "mine.yaml"
    data = {
        "file": "mine/train.jsonl",
        "holdout": {"share": 0.3, "seed": 1},
        "fields": {"text": "text", "label": "label"},
    }
    path.write_text(json.dumps(task().model_dump(mode="json", exclude_unset=True) | {"data": data}), encoding="utf-8")
    report = check_task(str(path), model=None, data_dir=None, test_size=None)
    assert any("'Refund' and 'refund'" in note for note in report["notes"])


def test_many_groups_are_counted(load: Load):
    labels = [f"{case}{i}" for i in range(8) for case in "xX"]
    (note,) = noted(load(labels, ["x1"]))
    assert "; and 3 more. labels.merge" in note


@given(st.text())
def test_a_plain_form_is_its_own_plain_form(text: str):
    assert plain_form(plain_form(text)) == plain_form(text)


@given(
    st.text(), st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]), st.sampled_from([str.upper, str.lower, str.casefold])
)
def test_unicode_form_and_blanks_change_no_plain_form(text: str, form: Any, case: Callable[[str], str]):
    same = unicodedata.normalize(form, f"  {text}\u00a0")
    assert plain_form(same) == plain_form(text)
    ascii_text = text.encode("ascii", "ignore").decode()
    assert plain_form(case(ascii_text)) == plain_form(ascii_text)


@given(st.lists(st.text(st.sampled_from("aA1.0 é"), max_size=3)))
def test_groups_hold_each_label_once_and_only_equal_ones(labels: list[str]):
    groups = same_labels(labels)
    named = [label for group in groups for label in group]
    assert len(named) == len(set(named))
    assert all(len({plain_form(label) for label in group}) == 1 for group in groups)
    alone = set(labels) - set(named)
    assert len({plain_form(label) for label in alone} | {plain_form(group[0]) for group in groups}) == len(alone) + len(
        groups
    )


def test_a_label_that_is_renamed_is_renamed_in_each_of_its_spellings(load: Load):
    names = {"ABBR": "abbreviation", "DESC": "description", "none": "nothing"}
    data = load(["ABBR", "abbr", "DESC", "Desc "], ["abbr", "DESC"], merge=True, names=names)
    assert data.labels == ("abbreviation", "description")
    assert [row.answer for row in data.train] == ["abbreviation"] * 2 + ["description"] * 2
    assert "labels.merge reads 'abbr' as 'abbreviation', 'Desc ' as 'description'" in data.notes
    (unused,) = (note for note in data.notes if "no row has" in note)
    assert unused.startswith("labels.names: no row has the label 'none'; ")
    spelled = load(["abbr", "DESC"], ["DESC"], merge=True, names=names | {"abbr": "short form", "ABBR": "short form"})
    assert spelled.labels == ("description", "short form")


def test_a_label_that_is_merged_has_one_name(load: Load):
    names = {"ABBR": "abbreviation", "abbr ": "short form"}
    with pytest.raises(
        ValueError, match=r"names writes 'ABBR' and 'abbr ', which merge: true reads as one, in two ways"
    ):
        load(["ABBR", "DESC"], ["DESC"], merge=True, names=names)
    assert load(["ABBR", "abbr "], ["abbr "], names=names).labels == ("abbreviation", "short form")
