"""Advice: the cheapest point that surely loses little to the best, and whether the data tell."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from support.fakes import FREE_TEXT, FakeBackend, plan, runner
from support.predictions import answers, cell, frame, scored

from icl_bench.analysis.advice import ADVICE, LOSS_P, Budget, advise, advise_folder, lines
from icl_bench.analysis.cell_cost import CellCost
from icl_bench.analysis.columns import POINT
from icl_bench.analysis.curves import curves
from icl_bench.analysis.findings.cost import cost
from icl_bench.analysis.statistics.contrast import contrast, judge
from icl_bench.analysis.statistics.paired import holm
from icl_bench.cli import main
from icl_bench.errors import UserError
from icl_bench.models.prices import Prices
from icl_bench.results.reading import read_results
from icl_bench.tasks.label_subset import HalfLabels

ANY = Budget()


def point(right: np.ndarray, tokens: float | None, prompt: float = 5000, cell: str = "c", **names: Any) -> pd.DataFrame:
    """A point's predictions, right or wrong ``(draws, test)``, of which each computes tokens."""
    known = {} if tokens is None else {"prompt_tokens": prompt, "cached_tokens": prompt - tokens}
    return scored(
        right, **{"prompt_tokens": np.nan, "cached_tokens": np.nan, **known}, answer_tokens=3, cell=cell, **names
    )


def shares(share: float, draws: int = 3, test: int = 800) -> np.ndarray:
    """Exactly this share of the test examples is right, in each draw other ones."""
    rng = np.random.default_rng(round(1000 * share))
    right = np.arange(test) < round(share * test)
    return np.array([rng.permutation(right) for _ in range(draws)], dtype=float)


def advised(*points: pd.DataFrame, budget: Budget = ANY, **options: Any) -> pd.DataFrame:
    rows = frame(*points)
    cells = {name: CellCost(seconds=float(name)) for name in rows["cell"].unique() if name != "c"}
    return advise(rows, cost(rows, cells), budget, **options)


def verdicts(table: pd.DataFrame) -> dict[tuple[str, int], str]:
    keys = zip(table["select"], table["k"], strict=True)
    return dict(zip(keys, table["verdict"], strict=True))


def taken(table: pd.DataFrame) -> list[tuple[str, int]]:
    some = table[table["advised"]]
    return list(zip(some["select"], some["k"], strict=True))


def lot(**options: Any) -> pd.DataFrame:
    """Four points: a bad cheap one, a good one, the best, and a dear one that is no better."""
    return advised(
        point(shares(0.30), 30, 300, k=10),
        point(shares(0.69), 30, 900, k=100),
        point(shares(0.70), 600, 6000, k=100, select="hybrid:20"),
        point(shares(0.60), 9000, 9000, k=100, select="bm25", order="relevance"),
        **options,
    )


# -- what is advised ----------------------------------------------------------------------------


def test_the_cheapest_that_is_as_good_as_the_best_is_advised():
    table = lot()
    assert verdicts(table) == {
        ("random", 10): "worse",
        ("random", 100): "as good",
        ("hybrid:20", 100): "best",
        ("bm25", 100): "not cheaper",
    }
    assert taken(table) == [("random", 100)]
    assert list(table.columns) == ADVICE


def test_beside_the_best_found_stands_the_test_of_all_paired_comparisons_one_sided():
    table = lot().set_index(["select", "k"])
    best, good, bad = shares(0.70), shares(0.69), shares(0.30)
    sides = [contrast(side, best, True) for side in (bad, good)]
    p = judge(sides, "less")[2]
    # the limits of a one-sided test: of no loss to three others, and of a large one; the first of two tests
    low, high, _ = judge(sides, level=1 - 2 * 0.05 / 2 / np.array([3, 1]))
    tested = table.loc[[("random", 10), ("random", 100)]]
    assert tested["p"].tolist() == p.tolist()
    assert tested["p_holm"].tolist() == holm(p).tolist()
    np.testing.assert_allclose(tested[["ci_low", "ci_high"]].T, [low, high])
    assert tested["difference"].tolist() == pytest.approx([-0.40, -0.01])
    assert tested[["rows", "draws", "base_draws"]].to_numpy().tolist() == [[800, 3, 3]] * 2
    others = table.loc[[("hybrid:20", 100), ("bm25", 100)]]
    assert others[["difference", "p", "p_holm", "p_worse"]].isna().all(axis=None)
    assert others["p_margin"].notna().tolist() == [True, False]


@pytest.mark.parametrize("draws", [2, pytest.param(3, marks=pytest.mark.thorough), 10])
def test_what_stands_beside_a_verdict_does_not_deny_it(draws: int):
    rng = np.random.default_rng(draws)
    seen = set()
    for _ in range(6):
        parts = []
        for k, share in zip((1, 4, 16, 64), (0.5, *rng.uniform(0.5, 0.8, 3)), strict=True):
            of_draw = rng.normal(0, 0.04, (draws, 1))
            parts.append(point((rng.random((draws, 120)) < share + of_draw).astype(float), 10 * k, k=k))
        for row in advised(*parts).to_dict("records"):
            seen.add(row["verdict"])
            if row["verdict"] == "not distinguishable":
                assert row["ci_low"] <= 0 <= row["ci_high"]
                assert row["ci_low"] <= -0.05
                assert row["detectable"] > (row["ci_high"] - row["ci_low"]) / 2 - 1e-9
            elif row["verdict"] == "as good":
                assert row["ci_low"] > -0.05
    assert {"best", "not distinguishable"} <= seen


def test_a_point_that_surely_loses_a_little_may_be_advised():
    """More data do not make advice dearer: a loss far below the margin is no reason against it."""
    right = np.arange(4000) < 2800
    less = np.where(np.arange(4000) % 100 == 0, 0, right)  # wrong on 1 of 100 that are right
    table = advised(point(np.tile(less, (10, 1)), 10, k=1), point(np.tile(right, (10, 1)), 60, k=5))
    assert table["p_holm"][0] < 0.001
    assert verdicts(table) == {("random", 1): "as good", ("random", 5): "best"}
    assert taken(table) == [("random", 1)]
    assert "less than 5 points to the best" in said(table)


def test_a_dear_point_that_may_be_far_better_forbids_advice():
    """The best in truth may be another than the best found: a dear one of few, wild draws."""
    wild = np.stack([np.arange(800) < right for right in (320, 560, 790)]).astype(float)
    points = point(shares(0.69), 30, k=10), point(shares(0.70), 60, k=20)
    assert taken(advised(*points)) == [("random", 10)]
    table = advised(*points, point(wild, 90, k=30, select="balanced"))
    assert verdicts(table)["random", 20] == "best"
    assert taken(table) == [("random", 20)]
    assert verdicts(table)["random", 10] == "not distinguishable"


def test_a_single_draw_is_no_candidate_beside_points_with_more():
    points = point(shares(0.69), 30, k=10), point(shares(0.70), 60, k=20)
    table = advised(*points, point(shares(0.9, 1), 10, k=1))
    assert verdicts(table)["random", 1] == "one draw"
    assert taken(table) == taken(advised(*points))
    assert said(table).endswith("1 point left out: a single draw does not show how much draws differ; try --draws 3")
    # a retrieval's single draw is all there is
    retrieved = point(shares(0.9, 1), 10, k=1, select="bm25", order="relevance")
    assert taken(advised(*points, retrieved)) == [("bm25", 1)]


def test_single_draws_alone_tell_nothing_of_others():
    table = advised(point(shares(0.70, 1, 4000), 30, k=1), point(shares(0.70, 1, 4000), 60, k=5))
    assert verdicts(table) == {("random", 1): "best", ("random", 5): "not cheaper"}
    table = advised(point(shares(0.20, 1, 4000), 30, k=1), point(shares(0.70, 1, 4000), 60, k=5))
    assert verdicts(table) == {("random", 1): "not distinguishable", ("random", 5): "best"}
    assert table[LOSS_P].iloc[0].tolist() == [1, 1]


def test_a_mean_is_that_of_the_curve():
    rows = frame(cell("aabb"), cell("abab", draw=1), cell("aaaa", draw=2).iloc[:1])
    rows = rows.assign(prompt_tokens=9, cached_tokens=0, answer_tokens=1, cell="c")
    table = advise(rows, cost(rows, {}), ANY)
    assert table["mean"].tolist() == curves(rows)["accuracy"].tolist()


def test_the_best_is_advised_where_everything_cheaper_is_worse_or_nothing_is_cheaper():
    table = advised(point(shares(0.3), 30, k=1), point(shares(0.7), 60, k=5))
    assert taken(table) == [("random", 5)]
    assert verdicts(table) == {("random", 1): "worse", ("random", 5): "best"}
    table = advised(point(shares(0.3), 90, k=1), point(shares(0.7), 60, k=5))
    assert verdicts(table) == {("random", 1): "not cheaper", ("random", 5): "best"}


def test_a_few_tokens_fewer_do_not_make_a_far_longer_prompt_the_cheaper_one():
    """Hybrids at other k: own demonstrations of nearly as many tokens behind more shared ones."""
    table = advised(
        point(shares(0.70), 255.2, 489, k=20, select="hybrid:10"),
        point(shares(0.70), 253.9, 12_459, k=500, select="hybrid:10"),
        point(shares(0.70), 300, 400, k=20, select="hybrid:11"),
    )
    assert taken(table) == [("hybrid:10", 20)]
    assert verdicts(table)["hybrid:11", 20] == "not cheaper"


def test_a_point_that_is_only_not_significantly_worse_is_not_advised():
    rng = np.random.default_rng(1)
    cheap, middle, best = (answers(rng, (1, 1, 40), share)[0] for share in (0.6, 0.7, 0.7))
    table = advised(point(cheap, 10, k=1), point(middle, 20, k=2), point(best, 30, k=3))
    assert verdicts(table)["random", 1] == "not distinguishable"
    row = table.iloc[0]
    assert row["p_holm"] > 0.05
    assert row["ci_low"] < -0.05
    assert verdicts(table)[taken(table)[0]] == "best"


def test_of_equally_good_points_the_cheapest_is_the_best():
    table = advised(point(shares(0.7), 60, k=5), point(shares(0.7), 30, k=9))
    assert verdicts(table) == {("random", 5): "not cheaper", ("random", 9): "best"}


def test_prompts_that_compute_as_many_tokens_differ_by_their_whole_length():
    table = advised(point(shares(0.70), 30.4, 300, k=10), point(shares(0.705), 29.8, 3000, k=100))
    assert verdicts(table) == {("random", 10): "as good", ("random", 100): "best"}
    assert taken(table) == [("random", 10)]


# -- the budget ---------------------------------------------------------------------------------


def test_what_is_over_the_budget_is_neither_the_best_nor_advised():
    table = lot(budget=Budget(tokens=599))
    assert verdicts(table)["hybrid:20", 100] == verdicts(table)["bm25", 100] == "over budget"
    assert verdicts(table)["random", 100] == "best"
    assert taken(table) == [("random", 100)]
    assert taken(lot(budget=Budget(tokens=600))) == [("random", 100)]
    assert verdicts(lot(budget=Budget(tokens=600)))["hybrid:20", 100] == "best"


def test_seconds_are_another_budget_and_another_cost():
    points = (
        point(shares(0.70), 30, k=10, cell="4800"),  # seconds of a cell: 2,400 predictions
        point(shares(0.69), 900, k=20, cell="2400"),
        point(shares(0.30), 30, k=30, cell="480"),
        point(shares(0.90), 30, k=40, cell="48000"),
    )
    table = advised(*points, budget=Budget(seconds=5))
    assert table["seconds"].tolist() == [2, 1, 0.2, 20]
    assert list(verdicts(table).values()) == ["best", "as good", "worse", "over budget"]
    assert taken(table) == [("random", 20)]


def test_a_cost_that_is_not_known_is_no_cost_of_nothing():
    table = advised(point(shares(0.9), None, k=1), point(shares(0.7), 60, k=5))
    assert verdicts(table) == {("random", 1): "cost unknown", ("random", 5): "best"}
    table = advised(point(shares(0.9), 30, k=1), budget=Budget(seconds=5))
    assert verdicts(table) == {("random", 1): "cost unknown"}
    assert taken(table) == []


@pytest.mark.parametrize(
    ("budget", "amount"), [(ANY, "100 prompt tokens a query"), (Budget(queries=10), "103 computed tokens a query")]
)
def test_imports_without_operations_or_cached_tokens_are_ranked_by_the_tokens_that_are_known(
    budget: Budget, amount: str
):
    points = (
        point(shares(0.69), 0, prompt=100, k=5, select="bm25", order="relevance"),
        point(shares(0.70), 0, prompt=900, k=50, select="bm25", order="relevance"),
    )
    rows = frame(*points).assign(cached_tokens=np.nan)
    table = advise(rows, cost(rows, {}), budget)
    assert verdicts(table) == {("bm25", 5): "as good", ("bm25", 50): "best"}
    text = said(table, budget)
    assert f"use bm25, relevance, k=5 (69.0%, {amount})" in text
    assert "not known" not in text


def test_seconds_are_ranked_by_before_tokens_where_operations_are_not_known():
    budget = Budget(queries=10)
    points = point(shares(0.69), 900, k=10, cell="2400"), point(shares(0.70), 30, k=20, cell="4800")
    table = advised(*points, budget=budget)
    assert verdicts(table) == {("random", 10): "as good", ("random", 20): "best"}
    assert "use random, drawn, k=10 (69.0%, 1 s a query)" in said(table, budget)


@pytest.mark.parametrize("number", [0, -1, float("nan"), float("inf")])
def test_a_budget_of_nothing_is_refused(number):
    for name in ("tokens", "seconds"):
        with pytest.raises(UserError, match=r"--advice: a budget of .*: must be above 0"):
            Budget(**{name: number})
    with pytest.raises(UserError, match="tokens or in seconds per query, not both"):
        Budget(1, 1)


# -- what is compared ---------------------------------------------------------------------------


def test_training_upper_bounds_and_shuffled_orders_are_no_candidates():
    table = advised(
        point(shares(0.5), 30, k=1),
        *(point(shares(0.9), 30, k=1, select=name) for name in ("lora", "lora-paper", "knn")),
        point(shares(0.9), 30, k=1, order="shuffled:3"),
    )
    assert len(table) == 1
    assert verdicts(table) == {("random", 1): "best"}


def test_tasks_and_models_have_advice_of_their_own():
    table = advised(
        point(shares(0.5), 30, k=1),
        point(shares(0.9), 60, k=5),
        point(shares(0.9), 30, k=1, task="u"),
        point(shares(0.5), 60, k=5, task="u"),
        point(shares(0.2), 10, k=1, model="n"),
    )
    chosen = table[table["advised"]]
    assert chosen[["task", "model", "k"]].to_numpy().tolist() == [["t", "m", 5], ["t", "n", 1], ["u", "m", 1]]


def test_draws_are_matched_where_both_sides_draw_alike_and_else_each_has_its_own():
    rng = np.random.default_rng(0)
    few, many = answers(rng, (2, 3, 100), 0.6)
    many[:] = np.maximum(many, few)  # the same draws, a little better
    for select, matched in [
        ("hybrid:20", True),
        ("random", True),
        ("bm25", False),
        ("balanced", False),
        ("centroids", False),
        ("own name", False),
    ]:
        table = advised(point(few, 10, k=1), point(many, 20, k=5, select=select))
        (p,) = table["p"].dropna()
        # with two points, draws' variance is moderated a little
        apart = [abs(np.log(p / judge([contrast(few, many, way)], "less")[2][0])) for way in (matched, not matched)]
        assert 2 * apart[0] < apart[1], select
        assert p != judge([contrast(few, many, not matched)], "less")[2][0], select


def test_a_retrieval_of_one_draw_is_tested_against_all_draws_of_random():
    rng = np.random.default_rng(0)
    random, own = answers(rng, (1, 5, 100), 0.5)[0], answers(rng, (1, 1, 100), 0.7)[0]
    table = advised(point(random, 10, k=5), point(own, 500, k=5, select="dense"))
    (row,) = table[table["p"].notna()].to_dict("records")
    assert (row["draws"], row["base_draws"], row["rows"]) == (5, 1, 100)


def test_points_on_other_test_examples_are_no_candidates():
    here = point(shares(0.7, test=40), 30, k=1)
    other = here.assign(test_id="other " + here["test_id"], k=5, cached_tokens=4000)
    other["correct"] = True
    table = advised(here, other)
    assert verdicts(table) == {("random", 1): "best", ("random", 5): "other test examples"}
    assert taken(table) == [("random", 1)]
    said = lines(table, ANY)
    assert said[-1].endswith("1 point left out: missing more than a quarter of the test rows that most points have")


def test_few_easy_test_examples_are_not_the_best():
    """All of a cheap point's first 80 examples are right, and of a dear one's, asked 80 alone."""
    right = np.zeros((3, 800))
    right[:, :560] = 1
    cheap, dear = point(right, 30, k=100), point(right[:1, :80], 9000, k=500, select="bm25")
    table = advised(cheap, dear)
    assert verdicts(table) == {("random", 100): "best", ("bm25", 500): "other test examples"}
    assert taken(table) == [("random", 100)]


def test_all_means_are_on_the_test_examples_that_most_points_were_asked():
    right = np.zeros((3, 800))
    right[:, :80] = 1
    few = [point(right[:, :100], tokens, k=k) for tokens, k in ((30, 1), (40, 5))]
    table = advised(*few, point(right, 90, k=9)).set_index("k")
    assert table["mean"].tolist() == [0.8, 0.8, 0.8]
    assert table["verdict"].tolist() == ["best", "not cheaper", "not cheaper"]


def test_free_text_is_judged_by_its_scores():
    rows = frame(point(shares(0.7), 30, k=1), point(shares(0.7), 60, k=5)).assign(correct=None)
    rows["rougeL"] = np.random.default_rng(0).random(len(rows)) / 2 + (rows["k"] == 5) / 2
    table = advise(rows, cost(rows, {}), ANY)
    scores = rows.assign(score=rows["rougeL"], metric="rougeL")
    pd.testing.assert_frame_equal(advise(scores, cost(rows, {}), ANY), table)
    assert verdicts(table) == {("random", 1): "worse", ("random", 5): "best"}
    assert set(table["metric"]) == {"rougeL"}
    assert re.search(r"use random, drawn, k=5 \(7\d\.\d% ROUGE-L, computes 60 of", said(table))


def test_frames_with_categories_and_other_orders_give_the_same():
    rows = frame(point(shares(0.69), 30, k=10), point(shares(0.7), 60, k=5, select="hybrid:2"))
    coded = rows.sample(frac=1, random_state=0).astype(dict.fromkeys(POINT[:-1], "category"))
    expected = advise(rows, cost(rows, {}), ANY)
    pd.testing.assert_frame_equal(advise(coded, cost(coded, {}), ANY), expected)


def test_no_predictions_are_no_advice():
    rows = point(shares(0.7), 30, k=1).iloc[:0]
    table = advise(rows, cost(rows, {}), ANY)
    assert table.empty
    assert list(table.columns) == ADVICE
    assert lines(table, ANY) == []


# -- missing scores -----------------------------------------------------------------------------


def torn(rows: pd.DataFrame, share: float, seed: int = 0, hard: np.ndarray | None = None):
    """Without a share of the predictions, at random or those of ``hard`` test examples first."""
    weight = np.ones(len(rows)) if hard is None else hard[rows["test_id"].str[4:].astype(int)]
    lost = np.random.default_rng(seed).random(len(rows)) < share * weight / weight.mean()
    return rows[~lost].reset_index(drop=True)


def test_random_gaps_of_5_percent_leave_nearly_all_predictions_in():
    """The part that is complete in all of ten draws has 60% of them."""
    points = [point(shares(share, 10, 250), 30 * k, k=k) for k, share in ((1, 0.6), (5, 0.8))]
    whole = advised(*points).set_index("k")
    table = advised(torn(frame(*points), 0.05)).set_index("k")
    assert table["rows"][1] == 250
    # what one side of a matched pair lacks, the other cannot use
    assert table["left_out"][1] < 0.06 * 5000
    assert table["mean"].to_numpy() == pytest.approx(whole["mean"].to_numpy(), abs=0.006)
    assert table["ci_low"][1] == pytest.approx(whole["ci_low"][1], abs=0.01)
    assert table["possible"].tolist() == [2500, 2500]
    assert 200 < table["missing"].sum() < 300


def test_single_draws_with_gaps_are_candidates_on_what_they_have_in_common():
    """Retrieval has one draw: each point lacks other test examples altogether."""
    names = {"select": "bm25", "order": "relevance"}
    points = [point(shares(0.6 + k / 50, 1), 30 * k, k=k, **names) for k in (1, 2, 3, 4, 5)]
    table = advised(torn(frame(*points), 0.05))
    assert set(table["verdict"]) <= {"worse", "best", "not distinguishable", "as good"}
    assert table["rows"].dropna().between(690, 750).all()  # 800 of which either lacks 5%
    assert table["mean"].tolist() == pytest.approx([0.62, 0.64, 0.66, 0.68, 0.7], abs=0.015)


def test_hard_rows_that_fail_do_not_make_a_point_the_best():
    rng = np.random.default_rng(0)
    of_test = rng.normal(0, 2, 400)
    hard = expit(-2 * of_test)
    for draws in (1, 10):
        good, bad = (answers(rng, (1, draws, 400), a, 0, of_test)[0] for a in (0.80, 0.75))
        names = {"select": "bm25"} if draws == 1 else {}
        points = point(good, 30, k=1, **names), point(bad, 60, k=5, **names)
        whole = advised(*points)["mean"].to_numpy()
        lacking = torn(points[1], 0.15, hard=hard)
        # in the part that is complete in ten draws it has 90% instead of 65%
        table = advised(points[0], lacking)
        assert verdicts(table)[points[0]["select"][0], 1] == "best"
        assert table["mean"].to_numpy() == pytest.approx(whole, abs=0.03 if draws == 1 else 0.015)


def test_it_is_said_what_is_missing_and_whether_it_is_missing_at_random():
    rng = np.random.default_rng(0)
    of_test = rng.normal(0, 2, 250)
    points = [point(answers(rng, (1, 5, 250), 0.7, 0, of_test)[0], 9 * k, k=k) for k in (1, 5)]
    rows = torn(frame(*points), 0.1, hard=expit(-2 * of_test))
    text = said(advised(rows))
    assert f"\n  {2500 - len(rows)} of 2,500 scores missing\n" in text
    assert re.search(
        r"\n  missing not at random: test rows with many gaps score [\d.]+ points below "
        r"the others \(p < 0.0001\)$",
        text,
    )
    text = said(advised(torn(frame(*points), 0.1)))
    assert "of 2,500 scores missing" in text
    assert "not at random" not in text
    assert "missing" not in said(advised(*points))


# -- one draw -----------------------------------------------------------------------------------


def test_advice_from_one_draw_says_that_it_is_over_test_examples_only():
    points = point(shares(0.2, 1), 30, k=1), point(shares(0.7, 1), 60, k=5)
    table = advised(*points)
    assert table["interval_over"].tolist() == ["test examples only"] * 2
    text = said(table)
    assert "800 test rows, 1 draw beside 1, over test rows only)" in text
    warning = (
        "1 draw: this advice is over test rows only; it does not show the effect of other demonstrations; try --draws 3"
    )
    assert text.count(warning) == 1
    assert said(advised(points[1])).count(warning) == 1  # nothing to compare it with
    several = advised(point(shares(0.2), 30, k=1), point(shares(0.7), 60, k=5))
    assert several["interval_over"].tolist() == ["draws and test examples"] * 2
    assert "over test rows" not in said(several)


def test_advice_that_stands_on_retrieval_alone_needs_no_other_draws():
    names = {"select": "bm25", "order": "relevance"}
    table = advised(point(shares(0.2, 1), 30, k=1, **names), point(shares(0.7, 1), 60, k=5, **names))
    assert "1 draw: this advice" not in said(table)
    assert "1 draw beside 1, over test rows only)" in said(table)


# -- how often it is wrong ----------------------------------------------------------------------


def simulated(
    truth: dict[int, float], trials: int, *, draws: int = 3, test: int = 250, of_draws: float = 0.15
) -> list[dict[int, tuple[str, bool]]]:
    """Verdict of each k and whether it is advised, in many samples; k is the cost too.

    Draws and test examples differ in difficulty, as in real sweeps. A sample is a task.
    """
    rng = np.random.default_rng([len(truth), trials, test])
    points = []
    for trial in range(trials):
        hard = rng.normal(0, 1, (1, 1, test))
        for k, share in truth.items():
            of_draw = rng.normal(0, of_draws, (1, draws, 1))
            (right,) = answers(rng, (1, draws, test), share, of_draw, hard)
            points.append(point(right, 10 * k, k=k, task=f"{trial:03}"))
    found: list[dict[int, tuple[str, bool]]] = [{} for _ in range(trials)]
    for row in advised(*points).itertuples():
        found[int(row.task)][row.k] = row.verdict, row.advised
    return found


@pytest.mark.thorough
def test_a_cheaper_point_that_loses_the_margin_is_hardly_ever_advised():
    # of the median example; over all of them it is about 5 points
    found = simulated({1: 0.68, 2: 0.74}, 80, draws=10)
    assert np.mean([run[1][1] and run[1][0] == "as good" for run in found]) <= 0.05


@pytest.mark.thorough
def test_one_of_several_that_are_truly_worse_is_hardly_ever_advised():
    found = simulated({1: 0.66, 2: 0.67, 3: 0.67, 4: 0.68, 5: 0.74}, 40)
    cheaper = [[run[k] for k in (1, 2, 3, 4)] for run in found]
    assert np.mean([any(told == ("as good", True) for told in run) for run in cheaper]) <= 0.05
    assert np.mean([any(verdict == "worse" for verdict, _ in run) for run in cheaper]) < 0.6


def test_a_cheaper_point_that_loses_a_tenth_of_the_margin_is_found_with_ten_draws():
    found = simulated({1: 0.734, 2: 0.74}, 50, draws=10, of_draws=0.08)
    assert np.mean([run[1][1] for run in found]) >= 0.8


# -- in words -----------------------------------------------------------------------------------


def said(table: pd.DataFrame, budget: Budget = ANY) -> str:
    return "\n".join(lines(table, budget))


def test_what_to_take_is_said_with_its_cost_and_the_test_behind_it():
    text = said(lot(budget=Budget(tokens=2000)), Budget(tokens=2000))
    first, second, third, last = text.splitlines()
    assert first == "t · m, up to 2,000 computed tokens a query:"
    assert second.startswith(
        "  use random, drawn, k=100 (69.0%, computes 30 of 900 tokens): it loses less than 5 "
        "points to the best point, whichever that is (p=0.0"
    )
    assert ", one-sided, Holm over 2 cheaper points); against the best found -1.0 points, 95% " in second
    assert second.endswith(" (paired by test row; 800 test rows, 3 draws beside 3)")
    assert third == ("  the best found is hybrid:20, drawn, k=100 (70.0%, computes 600 of 6,000 tokens)")
    assert last.startswith(
        "  every cheaper point is worse than the best, and may lose 5 points or more; the best of "
        "them is random, drawn, k=10 (30.0%, computes 30 of 300 tokens) (p="
    )
    assert "for no loss); against the best found -40.0 points, 95% interval " in last


def test_it_is_said_when_the_best_is_to_be_taken_and_why():
    text = said(advised(point(shares(0.3), 30, k=1), point(shares(0.7), 60, k=5)))
    assert text.startswith("t · m, whatever it costs:\n  use random, drawn, k=5 (70.0%, computes 60 of 5,000 tokens)")
    assert "every cheaper point is worse than the best" in text
    text = said(advised(point(shares(0.3), 30, k=1)))
    assert "no cheaper point could be tested" in text


def test_it_is_said_when_the_data_do_not_tell():
    points = (
        point(shares(0.69, 2, 100), 10, k=1),
        point(shares(0.68, 2, 100), 15, k=2),
        point(shares(0.70, 20, 100), 20, k=3),
        point(shares(0.71, 20, 100), 30, k=4),
    )
    table = advised(*points)
    assert list(verdicts(table).values()) == [*["not distinguishable"] * 3, "best"]
    text = said(table)
    assert "use random, drawn, k=4 (71.0%, computes 30 of 5,000 tokens): the best found\n" in text
    assert "the best point cannot be determined: another may be better by 5 poi" in text
    assert (
        "whether a cheaper point is enough cannot be determined: random, drawn, k=3 (70.0%, computes 20 of "
        "5,000 tokens) may be the best, and may lose 5 points or more (as may 2 others): "
    ) in text
    text = said(advised(points[0], points[3]))
    assert re.search(
        r"100 test rows, 2 draws beside 2\); 80% power from [0-9.]+ points on; 2 draws, try --draws 5", text
    )
    assert "(as may" not in text
    # the wild ones aside, it is told
    text = said(advised(*points[2:]))
    assert "use random, drawn, k=3 (70.0%, computes 20 of 5,000 tokens): it loses less" in text
    assert "the best found is random, drawn, k=4 (71.0%, computes 30 of" in text


def test_it_is_said_when_nothing_is_within_the_budget_or_a_cost_is_not_known():
    budget = Budget(tokens=10)
    text = said(lot(budget=budget), budget)
    assert text == (
        "t · m, up to 10 computed tokens a query:\n  no point is within the budget; the cheapest point is "
        "random, drawn, k=10 (30.0%, computes 30 of 300 tokens)"
    )
    budget = Budget(seconds=1)
    text = said(lot(budget=budget), budget)
    assert text == ("t · m, up to 1 s a query:\n  4 points left out: their seconds are unknown")


def test_a_cost_is_told_as_the_budget_counts_it():
    points = (
        point(shares(0.70), 30, k=10, cell="4800"),  # seconds of a cell: 2,400 predictions
        point(shares(0.69), 900, k=20, cell="2400"),
        point(shares(0.90), None, k=40, cell="c"),
    )
    budget = Budget(seconds=5)
    text = said(advised(*points, budget=budget), budget)
    assert text.startswith("t · m, up to 5 s a query:\n  use random, drawn, k=20 (69.0%, 1 s a query)")
    assert "the best found is random, drawn, k=10 (70.0%, 2 s a query)" in text
    assert text.endswith("1 point left out: their seconds are unknown")
    budget = Budget(tokens=2000, queries=10)
    table = advised(point(shares(0.7), 30, k=10, select="random"), budget=budget)
    (row,) = table.to_dict("records")
    # 30 of the prompt, three of the answer, and a tenth of what is shared
    assert row["computed_tokens"] == pytest.approx(30 + 3 + 4970 / 10)
    assert "use random, drawn, k=10 (70.0%, 530 computed tokens a query)" in said(table, budget)


def test_points_that_no_advice_can_be_about_are_counted():
    points = point(shares(0.69), 30, k=10), point(shares(0.70), 60, k=20)
    rows = frame(
        *points,
        point(shares(0.9), 10, k=1).iloc[:300],
        point(shares(0.9), 10, k=2).iloc[:300],
        point(shares(0.9, 1), 10, k=3),
        point(shares(0.9, 1), 10, k=4),
    )
    text = said(advised(rows))
    assert "2 points left out: missing more than a quarter of the test rows that most points" in text
    assert "2 points left out: a single draw does not show how much draws differ; try --draws 3" in text


def test_an_attention_that_is_not_the_full_one_is_named():
    text = said(advised(point(shares(0.3), 30, k=1, attention="block")))
    assert "random, drawn, block attention, k=1" in text


def test_two_settings_that_differ_in_their_variant_alone_are_told_apart():
    text = said(advised(point(shares(0.3), 30, k=1), point(shares(0.7), 30, k=1, variant="w")))
    assert "use random, drawn, k=1, variant w (70.0%" in text


def test_a_choice_that_has_seen_the_queries_is_said_to_have_seen_them():
    text = said(advised(point(shares(0.3), 30, k=1, select="centroids,of=queries")))
    assert text.endswith("the texts of the test queries were used to choose its demonstrations")


# -- on a folder --------------------------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["summary", *words])
    assert (ended.value.code or 0) == code
    caught = capsys.readouterr()
    return caught.err if code else caught.out


def test_summary_advises_from_what_was_run_and_nothing_that_is_not_plain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    results = tmp_path / "results"
    for changes in (
        {"selects": ["random", "bm25", "hybrid:2"]},
        {"perturbation": "inputs-only"},
        {"half": HalfLabels(1)},
        {"queries": "copied"},
    ):
        runner(plan(tmp_path / "task", "2,4", **changes), results, FakeBackend()).run()
    text = told(capsys, "--results", str(results), "--advice", "any")
    assert text.startswith("cards · small, whatever it costs:\n  use ")
    table = json.loads(told(capsys, "--results", str(results), "--advice", "tokens=90", "--json"))
    assert table["budget"] == "up to 90 computed tokens a query"
    points = {(row["select"], row["k"]) for row in table["advice"]}
    assert points == {(s, k) for s in ("random", "bm25", "hybrid:2") for k in (2, 4)}
    assert len(table["advice"]) == 6
    frame = read_results(results)
    plain = frame[frame[["perturbation", "queries", "label_space"]].isna().all(axis=1)]
    means = plain.groupby(["select", "k"], observed=True)["correct"].mean()
    for row in table["advice"]:
        assert row["mean"] == pytest.approx(means[row["select"], row["k"]])


def test_free_text_is_advised_on_by_its_first_score(tmp_path: Path):
    made = plan(tmp_path / "task", "2,4", **FREE_TEXT)
    runner(made, tmp_path / "results", FakeBackend()).run()
    table = advise_folder(tmp_path / "results", Budget())
    frame = read_results(tmp_path / "results")
    assert table["mean"].tolist() == pytest.approx(frame.groupby("k")["rouge1"].mean().tolist())


@pytest.mark.parametrize("asked", ["", "2000", "tokens", "tokens=many", "tokens=0", "hours=1"])
def test_a_budget_that_cannot_be_read_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: str):
    said = told(capsys, "--results", str(tmp_path), f"--advice={asked}", code=2)
    assert said.startswith("error: --advice")
    assert said.count("\n") == 1


def test_what_a_budget_limits_and_how_it_is_told():
    prices = Prices(1, 1, 1)
    for budget, cost_, limit, text in (
        (ANY, "computed_tokens", None, "whatever it costs"),
        (Budget(tokens=2000), "computed_tokens", 2000, "up to 2,000 computed tokens a query"),
        (Budget(seconds=0.5), "seconds", 0.5, "up to 0.5 s a query"),
        (Budget(queries=5), "operations", None, "whatever it costs"),
        (Budget(queries=5, prices=prices), "money", None, "whatever it costs"),
        (Budget(operations=10, queries=5000), "operations", 1e10, "up to 10 GFLOP a query, 5,000 queries"),
        (Budget(money=0.002, queries=20, prices=prices), "money", 0.002, "up to 2 for 1,000 queries, 20 queries"),
        (Budget(seconds=1, queries=1), "seconds", 1, "up to 1 s a query, 1 query"),
    ):
        assert (budget.cost, budget.limit, str(budget)) == (cost_, limit, text)


def test_a_budget_that_needs_to_know_more_is_refused():
    prices = Prices(1, 1, 1)
    for given, why in (
        ({"operations": 1}, "--advice operations: needs --queries N"),
        ({"money": 1, "prices": prices}, "--price: needs --queries N"),
        ({"money": 1}, "--advice money: needs --queries N"),
        ({"money": 1, "queries": 5}, "--advice money: needs --price input=..,cached=..,output=.."),
        ({"queries": 0}, "--queries 0"),
        ({"seconds": 1, "money": 2}, "give a budget in seconds or in money per query, not both"),
    ):
        with pytest.raises(UserError) as caught:
            Budget(**given)
        assert why in str(caught.value)
    with pytest.raises(UserError) as caught:
        Budget.parse("h" * 50)
    assert str(caught.value) == (
        f"--advice {'h' * 40}: a budget per query is written tokens=2000, seconds=0.5 or any, and "
        "with --queries operations=10 (GFLOP) or money=0.001"
    )


def test_budgets_are_read_as_they_are_written():
    prices = Prices(1, 2, 3)
    assert Budget.parse("any", 7, prices) == Budget(queries=7, prices=prices)
    assert Budget.parse("money=0.25", 7, prices) == Budget(money=0.25, queries=7, prices=prices)
    assert Budget.parse("tokens=2000") == Budget(tokens=2000)
    assert Budget.parse("seconds=0.5") == Budget(seconds=0.5)
    assert Budget.parse("any") == Budget()
