"""Facts of cells: what is stored and hashed of them, and when two agree."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from icl_bench.results.cells import CellSpec, Identity
from icl_bench.results.facts import UNKNOWN, ChatFacts, Facts

SPEC = CellSpec(task="t", model="m", select="random", order="drawn", attention="full", k=1, draw=0)
KNOWN: dict[str, Any] = {
    "backend": "fake",
    "seed": 0,
    "template": {"input": "{text}", "start": None},
    "chat": {"style": "turns", "arguments": {"think": None}, "template": "x", "around": ["<u>"]},
    "measured_by": "a plugin",
}


def test_facts_are_stored_as_they_are_given_and_read_back():
    facts = Facts(**KNOWN)
    assert facts.known() == KNOWN
    assert json.loads(facts.model_dump_json()) == KNOWN
    assert Facts(**json.loads(json.dumps(KNOWN))) == facts


def test_a_fact_that_a_later_version_adds_renames_no_cell():
    bare, with_none = Facts(seed=0), Facts(seed=0, perturbation=None, chat=None, of_a_plugin=None)
    assert with_none.known() == {"seed": 0}
    assert Identity(SPEC, with_none).name == Identity(SPEC, bare).name
    assert Identity(SPEC, bare.with_more(perturbation="inputs-only")).variant != Identity(SPEC, bare).variant


def test_further_facts_make_another_cell():
    one, other = (Identity(SPEC, Facts(seed=0, measured_by=by)) for by in ("a", "b"))
    assert one.variant != other.variant
    assert one.cell != other.cell


def test_other_facts_replace_those_that_there_are():
    facts = Facts(**KNOWN).with_more(seed=1, backend=None, further=[1])
    assert facts.known() == {**{n: v for n, v in KNOWN.items() if n != "backend"}, "seed": 1, "further": [1]}


@pytest.mark.parametrize("wrong", [{"seed": "0"}, {"data": ["a"]}, {"chat": "turns"}, {"chat": {}}, {"test_rows": 1.5}])
def test_a_fact_of_another_kind_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ValidationError):
        Facts(**wrong)


def test_facts_agree_where_all_that_both_have_are_the_same():
    one = Facts(seed=0, dtype="float32")
    assert one.agrees(Facts(seed=0, sentence_encoder="x"))
    assert one.agrees(UNKNOWN)
    assert not one.agrees(Facts(seed=1, dtype="float32"))


def test_only_facts_of_a_run_say_what_decided_its_predictions():
    assert Facts(seed=0).are_of_a_run
    assert not UNKNOWN.are_of_a_run
    assert not Facts(imported="theirs.csv").are_of_a_run


def test_answers_are_written_out_unless_they_are_letters_or_labels():
    written = [Facts(choice_style=style).written_out for style in (None, "letters", "as-is", "words")]
    assert written == [False, False, True, True]


def test_a_chat_without_more_has_its_style_alone():
    assert ChatFacts(style="turns") == ChatFacts(style="turns", system=None, arguments={}, template="", around=[])
