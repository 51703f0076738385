"""Findings stand below the question that they answer."""

from __future__ import annotations

from collections import Counter

from icl_bench.analysis.questions import OTHERS, QUESTIONS, by_question
from icl_bench.registry import FINDINGS


def test_every_finding_that_is_printed_answers_one_question():
    answers = Counter(name for names in QUESTIONS.values() for name in names)
    assert set(answers.values()) == {1}
    built_in = [name for name in FINDINGS.names if name not in FINDINGS.added()]
    assert {name for name in built_in if FINDINGS[name].printed} == set(answers)


def test_questions_come_in_their_order_and_other_findings_last_by_name():
    found = list(by_question(["zebra", "cost", "apes", "retrieval_order", "retrieval_gain", "models"]))
    assert found == [
        ("What scores best?", ["models"]),
        ("Which demonstrations, in which order?", ["retrieval_gain", "retrieval_order"]),
        ("What does it cost?", ["cost"]),
        (OTHERS, ["apes", "zebra"]),
    ]
