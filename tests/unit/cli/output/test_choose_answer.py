"""How the answer of ``choose`` is printed."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from icl_bench.analysis.query_cost import MEASURES, QueryCosts
from icl_bench.choosing.race import Answer, Candidate, Standing
from icl_bench.cli.output.choose import cheaper, print_answer, why
from icl_bench.cli.output.terminal import Terminal

LINES = ("Use: a setting with a long description of what it is", "Next: icl-bench run --task a --model b --k 1,2,3")


def printed(terminal: bool) -> str:
    written = io.StringIO()
    print_answer(LINES, Terminal(file=written, width=30, force_terminal=terminal, color_system=None))
    return written.getvalue()


def test_on_a_terminal_lines_break_between_words_and_commands_do_not():
    assert printed(terminal=True) == (
        "Use: a setting with a long \ndescription of what it is\nNext: icl-bench run --task a --model b --k 1,2,3\n"
    )


def test_elsewhere_each_line_is_one():
    assert printed(terminal=False) == "".join(f"{line}\n" for line in LINES)


def standing(name: str, score: float, *, out: bool = False, asked: int = 60) -> Standing:
    return Standing(Candidate(name), asked, 1, score, score - 0.05, score + 0.05, out, False, False)


def raced(costs: list[float], measure: str | None = "operations") -> Any:
    each = np.zeros((len(costs), len(MEASURES)))
    each[:, MEASURES.index("operations")] = costs
    return SimpleNamespace(
        measure=measure, costs=QueryCosts(each, np.zeros_like(each)), spec=SimpleNamespace(queries=1000)
    )


FOUR = (standing("a", 0.9), standing("b", 0.89), standing("c", 0.87), standing("d", 0.86))


def test_the_best_of_the_cheaper_settings_that_may_be_as_good_is_named_with_its_cost() -> None:
    said = cheaper(raced([100, 200, 0.25, 0.1]), Answer(0, False, FOUR), 1)
    assert (
        said
        == "; cheaper and perhaps as good: c, 87.0% (82.0 to 92.0) of 60 answers, at 0.0025 times the cost (operations)"
    )


@pytest.mark.parametrize(
    ("costs", "measure", "second"),
    [
        ([100, 200, 99, 300], "operations", 1),  # saves too little
        ([100, 50, 0.25, 0.1], "operations", 1),  # the runner-up is cheaper, which its own line says
        ([100, 200, 0.25, 0.1], None, 1),
        ([100, np.nan, np.nan, np.nan], "operations", 1),
    ],
)
def test_no_cheaper_setting_is_named_where_none_saves_anything(costs: list[float], measure: str, second: int) -> None:
    assert not cheaper(raced(costs, measure), Answer(0, False, FOUR), second)


def test_a_setting_that_is_out_or_has_no_answers_is_not_named_as_perhaps_as_good() -> None:
    standings = (*FOUR[:2], standing("c", 0.87, out=True), standing("d", np.nan, asked=0))
    assert not cheaper(raced([100, 200, 0.25, 0.1]), Answer(0, False, standings), 1)


@pytest.mark.parametrize(("choice", "highest"), [(0, True), (1, False)])
def test_an_undecided_answer_says_whether_any_setting_scores_higher(choice: int, highest: bool) -> None:
    contest: Any = SimpleNamespace(spec=SimpleNamespace(margin=2.0), ended="the time is spent")
    said = why(contest, Answer(choice, False, FOUR))
    assert ("none has a higher score so far, but 3 other settings may be better" in said) is highest
    assert "undecided, the time is spent: " in said
