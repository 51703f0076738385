"""What stored files say of themselves: what is kept, and what is refused in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from icl_bench.results.batches import CellBatches
from icl_bench.results.cells import Prediction
from icl_bench.results.stored_meta import (
    CellMeta,
    FailureMeta,
    ImportMeta,
    LossesMeta,
    PriorMeta,
    SpecMeta,
    StudyMeta,
    as_stored,
    checked,
    checked_prediction,
    json_content,
)

SPEC: dict[str, Any] = {
    "task": "trec",
    "model": "m",
    "select": "random",
    "order": "random",
    "attention": "full",
    "k": 4,
    "draw": 0,
}
CELL: dict[str, Any] = {"spec": SPEC, "facts": {}}
SHAPE: dict[str, Any] = {"parameters": 5, "heads_width": 4, "windows": [None, 8], "key_width": 2}
LABELS: dict[str, Any] = {
    **CELL,
    "task": {"metrics": ["macro_f1"], "labels": ["a", "b"]},
    "demonstration_ids": ["1", "2"],
    "demonstration_labels": {"a": ["1", "3"], "b": ["2"]},
}
PREDICTION: dict[str, Any] = {
    "test_id": "t",
    "gold": "a",
    "prediction": "b",
    "correct": False,
    "valid": True,
    "prompt_tokens": 9,
    "cached_tokens": 3,
    "answer_tokens": 1,
    "prompt_hash": "h",
}


def without(found: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in names}


def said(found: Any, kind: Any = CellMeta) -> str:
    """In which words it is refused; empty where it is not."""
    raw = found if isinstance(found, bytes) else json.dumps(found).encode()
    try:
        assert as_stored(checked(raw, kind)) == json.loads(raw)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (SPEC, SpecMeta),
        (CELL, CellMeta),
        ({**CELL, "more": {"of": "it"}}, CellMeta),
        ({**CELL, "seconds": 1, "architecture": SHAPE}, CellMeta),
        (LABELS, CellMeta),
        ({"source": "a.csv", "sha256": "0", "rows": 3}, ImportMeta),
        (
            {
                "model": "m",
                "fingerprint": "f",
                "dtype": "float32",
                "attention": "full",
                "sha256": "0",
                "length": 4,
                "by_length": {"full": {"4": 1.5}},
            },
            LossesMeta,
        ),
        ({"spec": SPEC, "reason": "r", "cell": "c", "variant": "v"}, FailureMeta),
        ({"study": "s", "cells": [{**SPEC, "setting": "plain", "cell": "c"}]}, StudyMeta),
    ],
)
def test_what_a_file_says_is_given_as_it_stands(found: dict[str, Any], kind: Any):
    assert said(found, kind) == ""


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (without(CELL, "facts"), "facts: Field required"),
        ({**CELL, "spec": {**SPEC, "k": "4"}}, "spec.k: Input should be a valid integer"),
        ({**CELL, "spec": without(SPEC, "draw")}, "spec.draw: Field required"),
        ({**CELL, "seconds": "1"}, "seconds: Input should be a valid number"),
        ({**CELL, "training": {"tokens": "many"}}, "training.tokens: Input should be a valid number"),
        ({**CELL, "architecture": without(SHAPE, "windows")}, "architecture: Value error, KeyError('windows')"),
        (
            {**CELL, "architecture": without(SHAPE, "parameters")},
            "architecture: Value error, TypeError(\"Architecture.__init__() missing 1 required positional argument: 'parameters'\")",
        ),
        (b"[" * 100_000, "nested too deeply"),
        (b"{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ],
)
def test_what_is_of_another_kind_is_named_with_its_place(found: Any, words: str):
    assert said(found) == words


def test_a_file_that_holds_no_object_is_refused_without_a_place():
    assert said([1]).startswith("Input should be ")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (without(LABELS, "demonstration_labels"), "demonstration_labels are missing"),
        (
            {**LABELS, "demonstration_labels": {"a": ["1"], "b": ["3"]}},
            "demonstration_labels do not name all demonstrations",
        ),
        ({**LABELS, "demonstration_labels": {}}, "demonstration_labels do not name all demonstrations"),
        (
            {**without(LABELS, "demonstration_labels"), "facts": {"choice_style": "letters"}},
            "demonstration_labels are missing",
        ),
    ],
)
def test_a_label_is_known_of_each_demonstration_that_is_named(found: Any, words: str):
    assert said(found) == f"Value error, {words}"


@pytest.mark.parametrize(
    "found",
    [
        without(LABELS, "demonstration_labels", "task"),
        {**without(LABELS, "demonstration_labels"), "task": {"metrics": ["f1"]}},
        {**without(LABELS, "demonstration_labels"), "facts": {"choice_style": "texts"}},
        {**without(LABELS, "demonstration_ids"), "demonstration_labels": {}},
        {**LABELS, "demonstration_ids": []},
    ],
)
def test_labels_are_asked_for_only_where_rows_have_them_in_common(found: Any):
    assert said(found) == ""


def test_a_journals_line_is_a_prediction_with_or_without_seconds():
    expected = Prediction(**PREDICTION)
    assert checked_prediction(json.dumps(PREDICTION).encode()) == expected
    timed = {**PREDICTION, "seconds": 1.5, "golds": ["a", "c"]}
    assert checked_prediction(json.dumps(timed).encode()) == Prediction(**PREDICTION, golds=("a", "c"))


@pytest.mark.parametrize("wrong", [{"prompt_tokens": "9"}, {"valid": 1}, {"gold": None}, {"correct": "no"}])
def test_a_journals_line_with_a_value_of_another_kind_is_refused(wrong: dict[str, Any]):
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        checked_prediction(json.dumps({**PREDICTION, **wrong}).encode())
    with pytest.raises(ValueError, match="prompt_hash"):
        checked_prediction(json.dumps(without(PREDICTION, "prompt_hash")).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"spec": SPEC, "reason": "k=4 does not fit", "cell": "c", "variant": "v"},
        {"task": "trec", "name": "stated", "shares": {"a": 0.25, "b": 0.75}},
        {"study": "s", "cells": [{**SPEC, "setting": "plain", "cell": "c"}]},
        {"batches": [{"rows": [["a", "1f"], ["b", "2e"]], "token": "t", "id": "batch-7"}]},
    ],
    ids=["failure", "prior", "study", "batches"],
)
def test_no_flipped_bit_and_no_lost_part_of_a_json_file_changes_what_it_says(fields: dict[str, Any]):
    (kind,) = (k for k in (FailureMeta, PriorMeta, StudyMeta, CellBatches) if k.model_fields.keys() >= fields.keys())
    whole = json_content(fields)
    meant = checked(whole, kind)
    broken = [whole[:i] + bytes([whole[i] ^ 1 << bit]) + whole[i + 1 :] for i in range(len(whole)) for bit in range(8)]
    broken += [whole[:i] + whole[j:] for i in range(len(whole)) for j in (i + 1, i + 2, i + 9, i + 29)]
    for raw in broken:
        try:
            found = checked(raw, kind)
        except ValueError:
            continue
        shown = found.model_dump(exclude_unset=True)
        assert {name: value for name, value in shown.items() if name in fields} == meant.model_dump(
            exclude_unset=True
        ), raw


def test_a_json_file_keeps_names_of_files_that_are_not_unicode():
    raw = json_content({"study": "\udcff é", "cells": []})
    assert raw.decode().endswith("}\n")
    assert "\\udcff é" in raw.decode()
    assert checked(raw, StudyMeta).study == "\udcff é"


@pytest.mark.parametrize("name", ["checo", "xheck", "chec"])
def test_a_file_whose_hash_has_lost_its_name_is_not_as_it_was_written(name: str):
    fields = {"spec": SPEC, "reason": "memory", "cell": "0" * 12, "variant": "1" * 8}
    written = json_content(fields)
    assert checked(written, FailureMeta).spec == SpecMeta(**SPEC)
    changed = written.replace(b'"check"', f'"{name}"'.encode()).replace(b'"trec"', b'"t`ec"')
    assert changed.count(b"t`ec") == 1
    with pytest.raises(ValueError, match="not as it was written"):
        checked(changed, FailureMeta)
    earlier = json.dumps(fields).encode()  # earlier versions wrote no hash
    assert checked(earlier, FailureMeta).spec == SpecMeta(**SPEC)
