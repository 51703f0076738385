"""How the answer of ``choose`` is printed."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from icl_bench.analysis.query_cost import MEASURES, QueryCosts
from icl_bench.choosing.race import Answer, Ask, Candidate, Race, Rules, Standing
from icl_bench.cli.output.choose import _left_settings, cheaper, on_common, print_answer, why, without_near_duplicates
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


def raced(costs: list[float], measure: str | None = "operations", scores: dict[int, float] | None = None) -> Any:
    """A contest: every setting has 60 answers; ``scores`` are those of settings that differ from 0.5 on them."""
    each = np.zeros((len(costs), len(MEASURES)))
    each[:, MEASURES.index("operations")] = costs
    race = Race([Candidate(str(i)) for i in range(len(costs))], Rules(rows=30, draws=2, first=30))
    for i in range(len(costs)):
        for start in (0, 30):
            race.tell(Ask(i, start, start + 30), np.full(30, (scores or {}).get(i, 0.5)))
    return SimpleNamespace(
        measure=measure,
        costs=QueryCosts(each, np.zeros_like(each)),
        spec=SimpleNamespace(queries=1000),
        race=race,
        settings=[
            SimpleNamespace(entrant=0, select="bm25", k=5, flops=lambda _, cost=cost: cost * 1e9) for cost in costs
        ],
        entrants=[SimpleNamespace(rate=1e9)],
    )


FOUR = (standing("a", 0.9), standing("b", 0.89), standing("c", 0.87), standing("d", 0.86))


@pytest.mark.parametrize(
    ("scores", "named", "takes"),
    [
        ({}, "d, 86.0% (81.0 to 91.0) of 60 answers, at 1/1,000 of", "5 min"),  # both are within the margin
        ({3: 0.47}, "c, 87.0% (82.0 to 92.0) of 60 answers, at 1/400 of", "12 min"),  # the cheapest is not
    ],
)
def test_the_cheapest_setting_within_the_margin_is_named_with_its_cost(
    scores: dict[int, float], named: str, takes: str
) -> None:
    contest = raced([300, 400, 0.75, 0.3], scores=scores)
    said = cheaper(contest, Answer(0, False, FOUR), 1)
    assert said == f"; cheaper and perhaps as good: {named} the cost (operations; all queries {takes})"
    contest.entrants[0].rate = None
    assert cheaper(contest, Answer(0, False, FOUR), 1).endswith(" the cost (operations)")


def test_no_setting_as_good_is_named_where_none_has_a_score_within_the_margin() -> None:
    assert not cheaper(raced([100, 200, 25, 11], scores={2: 0.4, 3: 0.41}), Answer(0, False, FOUR), 1)


def test_the_best_of_far_cheaper_settings_is_named_where_none_of_them_is_within_the_margin() -> None:
    said = cheaper(raced([100, 200, 10, 0.1], scores={2: 0.45, 3: 0.41}), Answer(0, False, FOUR), 1)
    assert said == (
        "; far cheaper and not ruled out: c, 87.0% (82.0 to 92.0) of 60 answers, at 0.1 times the cost (operations; "
        "all queries 2.8 h)"
    )
    both = cheaper(raced([100, 200, 50, 0.1], scores={3: 0.41}), Answer(0, False, FOUR), 1)
    assert "; cheaper and perhaps as good: c, " in both
    assert "; far cheaper and not ruled out: d, " in both
    out = (*FOUR[:3], standing("d", 0.86, out=True))
    assert "far cheaper" not in cheaper(raced([100, 200, 50, 0.1], scores={3: 0.41}), Answer(0, False, out), 1)
    assert "far cheaper" not in cheaper(raced([100, 5, 50, 0.1], scores={3: 0.41}), Answer(0, False, FOUR), 1)


@pytest.mark.parametrize(
    ("costs", "measure", "second"),
    [
        ([100, 200, 99, 300], "operations", 1),  # saves too little
        ([100, 0.1, 0.25, 0.1], "operations", 1),  # the runner-up costs no more, which its own line says
        ([100, 200, 0.25, 0.1], None, 1),
        ([100, np.nan, np.nan, np.nan], "operations", 1),
    ],
)
def test_no_cheaper_setting_is_named_where_none_saves_anything(costs: list[float], measure: str, second: int) -> None:
    assert not cheaper(raced(costs, measure), Answer(0, False, FOUR), second)


def test_a_setting_cheaper_than_a_cheaper_runner_up_is_named() -> None:
    assert "as good: d" in cheaper(raced([100, 50, 60, 0.1]), Answer(0, False, FOUR), 1)


def test_a_setting_that_is_out_or_has_no_answers_is_not_named_as_perhaps_as_good() -> None:
    standings = (*FOUR[:2], standing("c", 0.87, out=True), standing("d", np.nan, asked=0))
    assert not cheaper(raced([100, 200, 0.25, 0.1]), Answer(0, False, standings), 1)


def test_scores_of_different_answers_are_repeated_on_those_that_both_have() -> None:
    race = Race([Candidate("a"), Candidate("b")], Rules(rows=30, draws=2, first=30))
    race.tell(Ask(0, 0, 30), [1.0] * 15 + [0.0] * 15)
    for start, scores in ((0, [0.0] * 12 + [1.0] * 18), (30, [1.0] * 30)):
        race.tell(Ask(1, start, start + 30), scores)
    contest: Any = SimpleNamespace(race=race)
    assert (
        on_common(contest, Answer(0, False, FOUR[:2]), 1)
        == " (on the same test rows and draws 60.0%, the choice 50.0%)"
    )
    race.tell(Ask(0, 30, 60), [1.0] * 30)
    assert not on_common(contest, Answer(0, False, FOUR[:2]), 1)


def test_the_score_without_rows_that_have_near_duplicates_is_given_where_there_are_some() -> None:
    race = Race([Candidate("a")], Rules(rows=4, draws=2, first=4))
    race.tell(Ask(0, 0, 4), [1, 1, 0, 1])
    race.tell(Ask(0, 4, 6), [0, 1])
    near = np.array([False, True, False, False])
    contest: Any = SimpleNamespace(
        near_duplicates=near, rows="abcd", scores_without_near_duplicates=lambda: race.means(~near), race=race
    )
    said = without_near_duplicates(contest, 0)  # a mean of rows: 0.5, 0, 1
    assert said == (
        " (expect 50.0% on new texts: this is without the 1 of 4 test rows with a near duplicate among the examples)"
    )
    contest.near_duplicates = np.zeros(4, dtype=bool)
    assert not without_near_duplicates(contest, 0)
    few = Race([Candidate("a")], Rules(rows=4, draws=2, first=1))
    few.tell(Ask(0, 0, 1), [1])
    contest.near_duplicates, contest.race = near, few
    assert not without_near_duplicates(contest, 0)  # none of them is answered: the score has nothing of them


@pytest.mark.parametrize(("scores", "highest"), [({}, True), ({1: 0.6}, False)])
def test_an_undecided_answer_says_whether_any_setting_scores_higher_where_both_answered(
    scores: dict[int, float], highest: bool
) -> None:
    race = raced([1.0] * 4, scores=scores).race
    contest: Any = SimpleNamespace(spec=SimpleNamespace(margin=2.0), ended="the time is spent", race=race)
    said = why(contest, Answer(0, False, FOUR))
    assert "undecided, the time is spent: 3 other settings are not ruled out (may be better by" in said
    assert (", but so far none of them scores higher on the same test rows and draws" in said) is highest


@pytest.mark.parametrize(
    ("select", "k", "described"),
    [
        ("knn", 200, "b (the most similar examples vote), 89.0%"),
        ("hybrid:5,by=dense", 10, "b (examples of which some are chosen for the query), 89.0%"),
        ("bm25", 5, "b, 89.0%"),
        ("random", 0, "b, 89.0%"),
    ],
)
def test_a_setting_of_another_kind_than_the_choice_is_described(select: str, k: int, described: str):
    contest = raced([8, 2, 8, 8])
    contest.settings[1].select, contest.settings[1].k = select, k
    assert f"cheaper and perhaps as good: {described}" in cheaper(contest, Answer(0, False, FOUR), 2)


def test_what_costs_as_little_as_the_choice_is_not_cheaper():
    assert not cheaper(raced([0, 5, 0, 0]), Answer(0, True, FOUR), 1)


def test_a_training_that_left_the_race_is_not_tried_although_a_smaller_one_of_its_method_raced():
    named = (("probe", 200, True), ("probe", 1000, False), ("lora", 1000, False))
    settings = [SimpleNamespace(name=f"{one}, k={k}", select=one, k=k, learner=1) for one, k, _ in named]
    answer = SimpleNamespace(standings=[SimpleNamespace(raced=raced) for _, _, raced in named])
    assert _left_settings(SimpleNamespace(settings=settings), answer) == "probe, k=1000 (left out), "  # type: ignore[arg-type]
