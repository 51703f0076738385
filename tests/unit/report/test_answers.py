"""The answer says what to use as far as a test holds it, and that nothing can be said where none does."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from support.predictions import frame, scored

from icl_bench.analysis.advice import Budget, advise
from icl_bench.analysis.all_findings import Findings, find
from icl_bench.analysis.findings.cost import cost
from icl_bench.analysis.query_cost import QUERIES
from icl_bench.analysis.words import power
from icl_bench.cli.output.answers import MOST_WHOLE, print_answers
from icl_bench.cli.output.findings import print_finding
from icl_bench.registry import FINDINGS
from icl_bench.report.answers import Answer, said
from icl_bench.report.naming import Naming
from icl_bench.results.reading import Stored
from icl_bench.results.stored_meta import CellMeta

TOKENS = {0: 5.0, 1: 20.0, 5: 100.0, 20: 400.0, 100: 2000.0}


def sweep(
    accuracies: dict[int, float], draws: int = 5, tokens: bool = True, noise: float = 0.0, **changes: Any
) -> list[pd.DataFrame]:
    """Points of these accuracies by k; with more ``noise``, a row that is hard at one k is less so at another."""
    rng = np.random.default_rng(7)
    hard = (37 * np.arange(250) + 11 * np.arange(draws)[:, None]) % 250
    cells = []
    for k, accuracy in accuracies.items():
        rank = (hard + rng.normal(0, noise, 250)).argsort(axis=1).argsort(axis=1)
        made = scored(rank < 250 * accuracy, k=k, **changes)
        amounts = {"prompt_tokens": TOKENS[k], "cached_tokens": 0.0, "answer_tokens": 1.0} if tokens else {}
        cells.append(made.assign(**amounts, cell=f"{changes.get('select', 'random')}-{k}"))
    return cells


def found(*cells: pd.DataFrame, metas: dict[str, CellMeta] | None = None) -> Findings:
    return find(Stored(frame(*cells), metas or {}, {}, ()))


def words(findings: Findings) -> list[Answer]:
    return said(findings, Naming.of(findings.summary))


def test_the_answer_is_the_point_that_the_advice_takes_with_its_own_score_and_cost():
    findings = found(*sweep({1: 0.4, 5: 0.6, 20: 0.9, 100: 0.9}))
    (row,) = findings.answers.to_dict("records")
    table = advise(findings.context.unperturbed, cost(findings.context.unperturbed, {}), Budget(queries=QUERIES))
    (advised,) = table[table["advised"]].to_dict("records")
    assert (row["select"], row["k"], row["verdict"]) == (advised["select"], advised["k"], advised["verdict"])
    assert row["k"] == 20
    assert row["score"] == pytest.approx(advised["mean"])
    assert row["score_low"] < row["score"] < row["score_high"]
    assert row["tokens"] == pytest.approx(advised["computed_tokens"])
    assert row["points"] == 4


def test_a_cheaper_point_that_is_as_good_is_not_shown_to_be_worse_than_the_best():
    (answer,) = words(found(*sweep({1: 0.4, 5: 0.6, 20: 0.9, 100: 0.904}, noise=5)))
    assert answer.use == "random, k = 20"
    assert answer.why_not == ""
    first, second = answer.against
    assert first.startswith("Not shown to be worse than the best found, random, k = 100 (")
    assert second.startswith("It loses less than 5 points to whichever point is the best (p = ")
    assert "401 computed tokens" in answer.cost


def test_the_best_of_all_says_that_every_cheaper_one_is_worse():
    (answer,) = words(found(*sweep({1: 0.4, 5: 0.6, 20: 0.8, 100: 0.95})))
    assert answer.use == "random, k = 100"
    assert answer.against[0] == "None of 4 compared points scored higher."
    assert answer.against[1].startswith("Every cheaper one was shown to be worse; the best of them is random, k = 20 (")


def test_a_cheaper_point_that_cannot_be_told_from_the_best_is_named():
    (answer,) = words(found(*sweep({5: 0.6, 20: 0.86, 100: 0.9}, draws=3, noise=200)))
    assert answer.use == "random, k = 100"
    assert answer.against[1].startswith("A cheaper one was not shown to be worse: random, k = 20 (")


def test_several_cheaper_points_that_cannot_be_told_from_the_best_are_counted():
    (answer,) = words(found(*sweep({5: 0.87, 20: 0.86, 100: 0.9}, draws=3, noise=200)))
    assert answer.use == "random, k = 100"
    start = "2 cheaper ones were not shown to be worse; the best of them is random, k = 5 ("
    assert answer.against[1].startswith(start)


def test_a_comparison_that_could_show_no_difference_says_so():
    assert power({"detectable": 0.126}) == "; 80% power from 12.6 points on"
    assert power({"detectable": 1.326}) == "; too little data to show any difference"
    assert power({"detectable": float("nan")}) == ""


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        (sweep({1: 0.4, 20: 0.9}, draws=1), "too little data: 1 draw, try --draws 3"),
        (sweep({20: 0.9}), "it is the only point that was tested"),
        (
            sweep({1: 0.4, 20: 0.9}, tokens=False),
            "what a query costs is not known, so cheaper points were not compared",
        ),
    ],
)
def test_where_nothing_can_be_advised_it_says_why_and_names_the_highest(cells: list[pd.DataFrame], why: str):
    (answer,) = words(found(*cells))
    assert answer.why_not == why
    assert answer.use == "random, k = 20"
    assert answer.against == ()
    assert answer.score.endswith(")")


def test_a_point_without_demonstrations_is_a_candidate_also_without_random_ones():
    bare = sweep({0: 0.952}, draws=1)
    (row,) = found(*bare, *sweep({5: 0.6, 100: 0.8}, select="bm25")).answers.to_dict("records")
    assert (row["select"], row["k"], row["verdict"]) == ("random", 0, "best")
    assert row["score"] == pytest.approx(0.952)
    assert row["score_low"] < 0.952 < row["score_high"]
    assert row["points"] == 3


def test_halves_of_a_label_space_are_never_the_answer():
    halves = [
        one[one["test_id"].isin(one["test_id"].unique()[:140])].assign(label_space="half:1", variant="h")
        for one in sweep({1: 0.9, 5: 0.9, 20: 0.9, 100: 0.99})
    ]
    (row,) = found(*sweep({1: 0.4, 20: 0.6}), *halves).answers.to_dict("records")
    assert (row["k"], row["points"]) == (20, 2)


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        (
            [*sweep({1: 0.5, 5: 0.6}, draws=3), *sweep({100: 0.95}, draws=1)],
            "the highest could not be compared with others (one draw)",
        ),
        (
            [
                *sweep({1: 0.5, 5: 0.6}),
                *(one[one["test_id"].isin(one["test_id"].unique()[:120])] for one in sweep({100: 0.95})),
            ],
            "the highest could not be compared with others (other test rows)",
        ),
        (
            [*sweep({1: 0.5}), *sweep({5: 0.7, 20: 0.95}, tokens=False)],
            "the highest could not be compared with others (cost unknown)",
        ),
        ([*sweep({1: 0.95}), *sweep({5: 0.5, 20: 0.7}, tokens=False)], "no other point could be compared with it"),
    ],
)
def test_a_point_that_no_test_was_made_of_is_neither_passed_over_nor_an_answer(cells: list[pd.DataFrame], why: str):
    (answer,) = words(found(*cells))
    assert answer.why_not == why
    highest = max(cells, key=lambda one: one["correct"].mean())
    assert answer.use == f"random, k = {highest['k'].iloc[0]}"


def test_the_terminal_says_below_the_highest_points_which_could_not_be_compared():
    few = [one[one["test_id"].isin(one["test_id"].unique()[:120])] for one in sweep({100: 0.95})]
    console = Console(file=io.StringIO(), width=120)
    assert print_finding(FINDINGS["best_points"], found(*sweep({1: 0.5, 5: 0.6}), *few), console, {})
    assert "t · m: the highest could not be compared with others (other test rows)" in console.file.getvalue()
    console = Console(file=io.StringIO(), width=120)
    assert print_finding(FINDINGS["best_points"], found(*sweep({1: 0.5, 5: 0.6})), console, {})
    assert "could not be compared" not in console.file.getvalue()


def test_other_points_that_no_test_was_made_of_are_counted():
    (answer,) = words(found(*sweep({1: 0.4, 20: 0.9}), *sweep({5: 0.3}, draws=1)))
    assert answer.use == "random, k = 20"
    assert answer.against[:2] == (
        "1 other point could not be compared (one draw, other test rows or unknown cost).",
        "None of 2 compared points scored higher.",
    )


def test_with_too_little_data_the_highest_is_named_and_not_the_cheapest_that_is_as_good():
    (answer,) = words(found(*sweep({1: 0.4, 5: 0.9, 100: 0.904}, draws=2)))
    assert answer.why_not == "too little data: 2 draws, try --draws 5"
    assert answer.use == "random, k = 100"


def test_single_draws_of_others_are_too_little_to_advise_a_prompt_without_demonstrations():
    (answer,) = words(found(*sweep({0: 0.5, 1: 0.49, 5: 0.495}, draws=1)))
    assert answer.why_not == "too little data: 1 draw, try --draws 3"


def test_the_command_is_that_of_the_answers_own_cells():
    def meta(k: int, command: str | None) -> CellMeta:
        spec = {"task": "t", "model": "m", "select": "random", "order": "drawn", "attention": "full", "k": k, "draw": 0}
        stored = {"spec": spec, "facts": {}, "run": {"command": command}, "variant": "v", "cell": f"random-{k}"}
        return CellMeta.model_validate(stored)

    cells = sweep({1: 0.4, 20: 0.95})
    metas = {"random-1": meta(1, "icl-bench run --k 1"), "random-20": meta(20, "icl-bench run --k 20")}
    variants = {meta.variant for meta in metas.values()}
    cells = [one.assign(variant=variants.copy().pop()) for one in cells]
    assert len(variants) == 1
    (answer,) = words(found(*cells, metas=metas))
    assert answer.commands[0] == "icl-bench run --k 20"
    assert answer.commands[1] == "icl-bench summary --task t --model m --advice any --queries 1000"
    (imported,) = words(found(*sweep({1: 0.4, 20: 0.95})))
    assert imported.commands == answer.commands[1:]


def test_summary_prints_reasons_of_few_answers_and_a_line_for_each_of_many():
    def printed(tasks: int) -> str:
        cells = [cell for n in range(tasks) for cell in sweep({1: 0.4, 20: 0.95}, task=f"t{n}")]
        text = io.StringIO()
        print_answers(found(*cells), Console(file=text, width=300))
        return text.getvalue()

    few = printed(1)
    assert few.startswith("what to use\n  t0 · m: random, k = 20; accuracy ")
    assert "Every cheaper one was shown to be worse" in few
    assert "reproduce: icl-bench summary --task t0" in few
    many = printed(MOST_WHOLE + 1)
    assert many.count("random, k = 20") == MOST_WHOLE + 1
    assert "Every cheaper" not in many
