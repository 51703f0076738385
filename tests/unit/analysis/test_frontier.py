"""The frontier: costs of a query by hand, domination, and how sure it is."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import fakes, in_process
from support.predictions import AXES, frame, scored

from icl_bench.analysis.advice import Budget, advise
from icl_bench.analysis.all_findings import find, read_findings
from icl_bench.analysis.cascade import cascades
from icl_bench.analysis.columns import POINT
from icl_bench.analysis.frontier import STEPS, compare, frontier_of_folder, leading, undominated
from icl_bench.analysis.query_cost import MEASURES, QueryCosts, check_queries, query_costs
from icl_bench.analysis.statistics.dominance import DOMINATED, ON, UNDECIDED
from icl_bench.errors import UserError
from icl_bench.models.prices import Prices
from icl_bench.results.reading import read_some
from icl_bench.tasks.label_subset import HalfLabels

KNOWN: dict[str, Any] = {
    "predictions": 200,
    "rows_a_cell": 100,
    "prompt_tokens": 1010.0,
    "cached_tokens": 1000.0,
    "computed_tokens": 10.0,
    "answer_tokens": 2.0,
    "seconds": 0.5,
    "prefill_seconds": 20.0,
    "prefix_flops": 5000.0,
    "query_flops": 60.0,
    "whole_flops": 5060.0,
    "training_flops": np.nan,
    "training_tokens": np.nan,
    "training_seconds": np.nan,
}


def costs(**changes: Any) -> pd.DataFrame:
    axes = {name: AXES[name] for name in POINT}
    return pd.DataFrame([{**axes, **KNOWN, **changes}])


def of_a_query(queries: int = 100, prices: Prices | None = None, **changes: Any) -> dict[str, float]:
    (row,) = query_costs(costs(**changes), prices).of(queries)
    return dict(zip(MEASURES, row.tolist(), strict=True))


def test_what_is_shared_is_shared_among_the_queries():
    """1,000 tokens and 5,000 operations once; 20 of a cell's 50 seconds were the prefix."""
    assert of_a_query(100) == pytest.approx(
        {"tokens": 10 + 2 + 10, "operations": 60 + 50, "seconds": 0.3 + 0.2, "money": np.nan}, nan_ok=True
    )
    assert of_a_query(1)["operations"] == 5060
    assert of_a_query(10**9)["tokens"] == pytest.approx(12, abs=1e-5)


def test_retrieved_demonstrations_are_each_querys_own():
    found = of_a_query(100, select="bm25", cached_tokens=1.0, computed_tokens=1009.0)
    assert found["tokens"] == 1012
    assert found["operations"] == 5060
    assert found["seconds"] == 0.5


def test_a_training_is_computed_once():
    found = of_a_query(
        100,
        select="lora",
        cached_tokens=0.0,
        computed_tokens=10.0,
        prefix_flops=0.0,
        prefill_seconds=0.0,
        training_tokens=4000.0,
        training_flops=9000.0,
        training_seconds=70.0,
    )
    assert found["tokens"] == 10 + 2 + 40
    assert found["operations"] == 60 + 90
    assert found["seconds"] == pytest.approx(0.5 + 0.7)
    assert np.isnan(of_a_query(100, Prices(1, 1, 1), select="lora")["money"])
    assert np.isnan(of_a_query(100, select="lora")["operations"]), "no one says what it took"


def test_what_was_computed_once_takes_no_more_than_there_was():
    # of 50 seconds of a cell, 60 that were computed once: nothing is left for its queries
    assert of_a_query(100, prefill_seconds=60.0)["seconds"] == 60 / 100
    unknown = of_a_query(100, prefill_seconds=np.nan, answer_tokens=np.nan)
    assert (unknown["seconds"], unknown["tokens"]) == (0.5, 10 + 10)


def test_reused_demonstrations_are_shared_whatever_chose_them_and_their_tokens_not_counted():
    found = of_a_query(100, Prices(1, 1, 1), select="bm25", attention="block:1,reuse")
    assert np.isnan([found["tokens"], found["money"]]).all()
    assert found["operations"] == 60 + 50
    assert found["seconds"] == pytest.approx(0.3 + 0.2)


def test_a_training_of_which_a_part_is_known_has_the_costs_of_that_part():
    for select, attention, k in (("lora", "full", 5), ("random", "vectors:5", 5)):
        of = {"select": select, "attention": attention, "k": k, "training_seconds": 70.0}
        found = of_a_query(100, **of)
        assert np.isnan([found["tokens"], found["operations"]]).all()
        assert not np.isnan(found["seconds"])
    bare = of_a_query(100, select="lora", k=0)
    assert bare["tokens"] == 12  # nothing was learnt, and nothing is shared


def test_a_point_can_be_added_to_others_and_its_costs_shared_as_theirs():
    both = query_costs(costs(), None).with_one(QueryCosts(np.arange(4.0), np.full(4, 100.0)))
    assert both.each.shape == both.once.shape == (2, 4)
    assert both.of(50)[1].tolist() == [2, 3, 4, 5]
    assert both.of(100)[0].tolist() == pytest.approx(list(of_a_query(100).values()), nan_ok=True)


@pytest.mark.parametrize(("queries", "fine"), [(1, True), (0, False), (-1, False), (10**15, True), (10**15 + 1, False)])
def test_there_is_one_query_or_more_and_not_more_than_anybody_can_mean(queries: int, fine: bool):
    if fine:
        check_queries(queries)
    else:
        with pytest.raises(UserError, match=f"--queries {queries:,}: expected 1 or more"):
            check_queries(queries)


def test_money_is_of_new_cached_and_written_tokens():
    found = of_a_query(100, Prices(3.0, 0.5, 10.0))["money"]
    # of 100 queries one writes the shared tokens and 99 read them
    assert found * 1e6 == pytest.approx(3 * (10 + 1000 / 100) + 0.5 * (1000 - 1000 / 100) + 10 * 2)
    retrieved = of_a_query(100, Prices(3.0, 0.5, 10.0), select="dense")["money"]
    assert retrieved * 1e6 == pytest.approx(3 * 1010 + 10 * 2)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4) | st.none()), min_size=1, max_size=9))
def test_a_point_is_on_the_frontier_unless_another_costs_no_more_and_scores_no_less(points):
    scores = np.array([s for s, _ in points], dtype=float)
    paid = np.array([np.nan if c is None else c for _, c in points], dtype=float)
    for i, on in enumerate(undominated(scores, paid)):
        dominated = any(
            paid[j] <= paid[i] and scores[j] >= scores[i] and (paid[j] < paid[i] or scores[j] > scores[i])
            for j in range(len(points))
        )
        assert on == (not np.isnan(paid[i]) and not dominated)


def points(**accuracies: float) -> pd.DataFrame:
    """A point for each k (named ``k5``) with its share of right answers, three draws of 200."""
    rng, parts = np.random.default_rng(4), []
    chance = rng.random((3, 200))
    for name, accuracy in accuracies.items():
        parts.append(scored(chance < accuracy, k=int(name[1:]), cell=name))
    rows = frame(*parts)
    return rows.assign(score=rows["correct"].astype(float), metric="accuracy")


def found(rows: pd.DataFrame, flops: dict[int, float]) -> pd.DataFrame:
    paid = pd.concat([costs(k=k, query_flops=f, prefix_flops=0.0) for k, f in flops.items()])
    return compare(rows, paid, [1000], None).table.set_index("k")


def test_what_is_cheaper_and_better_dominates_and_what_is_alike_is_undecided():
    table = found(points(k1=0.3, k2=0.6, k3=0.5, k4=0.605), {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0})
    verdicts = table["verdict_operations"]
    assert (verdicts[1], verdicts[2], verdicts[3]) == (ON, ON, DOMINATED)
    assert verdicts[4] == UNDECIDED
    assert table["verdict_money"].isna().all()
    assert 0.05 < table["p_operations"][4] < 1


@pytest.mark.parametrize("seed", range(4))
def test_a_verdict_never_denies_the_scores_and_missing_ones_leave_no_point_without(seed: int):
    """A dear point that lacks hard test examples in some draws has a higher share of right answers than score."""
    rng = np.random.default_rng(seed)
    rows = points(k1=0.5, k2=0.7, k3=0.7, k4=0.75)
    hard = rng.random(200) < 0.3
    gone = (rows["k"] == 4) & rows["draw"].ne(0) & np.resize(hard, len(rows)) & ~rows["correct"].astype(bool)
    rows = rows.assign(score=rows["score"].mask(gone | (rng.random(len(rows)) < 0.02)))
    table = found(rows, {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0})
    assert table["p_operations"].notna().all()
    for k, row in table.iterrows():
        cheaper = table[table["operations"] < row["operations"]]["score"]
        if row["verdict_operations"] == ON:
            assert (cheaper < row["score"]).all(), k
        elif row["verdict_operations"] == DOMINATED:
            assert (cheaper >= row["score"]).any(), k


def test_a_point_without_the_hard_test_examples_is_not_dominated_by_one_with_a_lower_score():
    """The cheap point is better on the examples that both have, but its score is lower: nothing is said."""
    rows = points(k1=0.62, k2=0.5)
    hard = rows["test_id"].isin(sorted(set(rows["test_id"]))[:48])
    rows = rows.assign(score=rows["score"].mask(hard, 0.0))
    table = found(rows[~hard | (rows["k"] == 1)].reset_index(drop=True), {1: 1.0, 2: 2.0})
    assert table.loc[1, "score"] < table.loc[2, "score"]
    assert table.loc[2, "verdict_operations"] == UNDECIDED


@pytest.mark.thorough
def test_the_best_of_ten_is_hardly_ever_called_dominated():
    """Nine cheap points at 78% and the dearest at 80%: it was dominated in a third of the samples before."""
    called = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        of_test = rng.normal(0, 2, 250)
        parts = []
        for k in range(1, 11):
            odds = (1.97 if k < 10 else 2.14) + rng.normal(0, 0.3, (3, 1)) + of_test
            parts.append(scored(rng.random((3, 250)) < 1 / (1 + np.exp(-odds)), k=k, cell=f"k{k}"))
        rows = frame(*parts)
        rows = rows.assign(score=rows["correct"].astype(float), metric="accuracy")
        called.append(found(rows, {k: float(k) for k in range(1, 11)}).loc[10, "verdict_operations"])
    assert called.count(DOMINATED) <= 3


def test_a_single_draw_of_what_is_drawn_has_no_verdict():
    rows = points(k1=0.3, k2=0.6)
    single = frame(rows[rows["k"] == 1], rows[(rows["k"] == 2) & (rows["draw"] == 0)])
    assert found(single, {1: 1.0, 2: 2.0})["verdict_operations"].tolist() == [ON, None]
    retrieved = single.assign(select=single["select"].where(single["k"] == 1, "bm25"))
    paid = pd.concat([costs(k=1, query_flops=1.0), costs(k=2, query_flops=2.0, select="bm25", prefix_flops=0.0)])
    assert compare(retrieved, paid, [1000], None).table["verdict_operations"].notna().all()


def test_unknown_costs_have_no_verdict_and_other_test_examples_are_told_apart():
    rows = points(k1=0.3, k2=0.6)
    table = found(rows, {1: 1.0, 2: np.nan})
    assert table["verdict_operations"].tolist() == [ON, None]
    other = rows["test_id"].where(rows["k"] == 1, rows["test_id"] + " other")
    more = frame(rows.assign(test_id=other), points(k7=0.4))
    table = found(more, {1: 1.0, 2: 0.5, 7: 3.0})
    assert table["other_tests"].to_dict() == {1: False, 2: True, 7: False}
    assert table["verdict_operations"].to_dict() == {1: ON, 2: None, 7: ON}


def test_a_point_that_no_cost_is_given_of_has_no_verdict():
    table = found(points(k1=0.3, k2=0.6, k3=0.7), {1: 1.0, 3: 3.0})
    assert table["verdict_operations"].to_dict() == {1: ON, 2: None, 3: ON}
    assert table["operations"].tolist() == pytest.approx([1, np.nan, 3], nan_ok=True)


def test_many_queries_make_what_is_computed_once_cheap():
    rows = points(k1=0.3, k2=0.6)
    paid = pd.concat([costs(k=1, query_flops=5.0, prefix_flops=0.0), costs(k=2, query_flops=1.0, prefix_flops=1000.0)])
    table = compare(rows, paid, [10, 1000], None).table
    verdicts = table.set_index(["k", "queries"])["verdict_operations"].to_dict()
    assert verdicts == {(1, 10): ON, (2, 10): ON, (1, 1000): DOMINATED, (2, 1000): ON}
    assert table["score"].nunique() == 2


def test_the_finding_has_every_number_of_queries_and_none_without_costs(tmp_path: Path):
    made = fakes.plan(tmp_path / "task", "1,4", draws=2)
    fakes.runner(made, tmp_path / "results", fakes.FakeBackend()).run()
    table = read_findings(tmp_path / "results").frontier
    assert sorted(set(table["queries"])) == list(STEPS)
    assert len(table) == 2 * len(STEPS)
    stored = read_some(tmp_path / "results")
    bare = stored.predictions.assign(prompt_tokens=None, cached_tokens=None, answer_tokens=None)
    assert find(replace(stored, given=bare, cells={})).frontier.empty


def test_no_point_is_a_checkpoint_that_test_rows_chose_or_a_shuffle():
    rows = points(k1=0.3)
    more = frame(rows, rows.assign(select="lora-paper"), rows.assign(order="shuffled:1"))
    assert len(found(more, {1: 1.0})) == 1


def climbing(**changes: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Predictions with probabilities at k = 2, 8, 32, and what they take."""
    rng, parts = np.random.default_rng(5), []
    for k in (2, 8, 32):
        sure = rng.random((2, 90))
        right = rng.random((2, 90)) < 0.2 + 0.6 * sure
        parts.append(
            scored(
                right,
                k=k,
                cell=f"k{k}",
                margin=sure.ravel() / 2,
                label_mass=0.5,
                prompt_tokens=10 * k + 7,
                cached_tokens=10 * k,
                **changes,
            )
        )
    rows = frame(*parts)
    paid = [
        costs(
            k=k,
            query_flops=float(k),
            prefix_flops=100.0 * k,
            prefill_seconds=1.0 * k,
            seconds=1.0 + 0.01 * k,
            **changes,
        )
        for k in (2, 8, 32)
    ]
    return rows.assign(score=rows["correct"].astype(float), metric="accuracy"), pd.concat(paid)


@pytest.mark.parametrize(("order", "once"), [("drawn", 3200.0), ("by-label", 4200.0)])
def test_a_cascade_is_a_point_that_pays_for_every_k_at_which_it_asks(order: str, once: float):
    rows, paid = climbing(order=order)
    table = compare(rows, paid, [50], Prices(hour=3600)).table
    assert table["cascade"].dropna().tolist() == ["chosen", "0.1", "0.3", "0.5", "0.7", "0.9"]
    assert (table.loc[table["cascade"].notna(), "k"] == 32).all()
    assert table["metric"].eq("accuracy").all()
    by_k = rows.set_index(["k", "draw", "test_id"]).sort_index()
    told = table.set_index("cascade").loc["0.7"]
    right, flops, seconds = [], [], []
    for draw, test in {ids[1:] for ids in by_k.index}:
        spent = [0.0, 0.0]
        for k in (2, 8, 32):
            one = by_k.loc[(k, draw, test)]
            spent[0], spent[1] = spent[0] + k, spent[1] + 1.0
            if one["margin"] / one["label_mass"] >= 0.7 or k == 32:
                break
        right.append(one["correct"])
        flops.append(spent[0])
        seconds.append(spent[1])
    assert told["score"] == pytest.approx(np.mean(right))
    assert told["operations"] == pytest.approx(np.mean(flops) + once / 50)
    assert told["seconds"] == pytest.approx(np.mean(seconds) + (2 + 8 + 32) / 50)
    assert told["money"] == pytest.approx(told["seconds"])
    assert (told["draws"], told["test_rows"]) == (2, 90)
    assert told["verdict_operations"] in (ON, DOMINATED, UNDECIDED)


def test_a_cascade_pays_for_calibrating_every_k_and_for_rationales_once():
    more = {"calibration_flops": 10.0, "calibration_seconds": 0.5, "calibration_tokens": 20.0}
    more |= {"rationales_flops": 7.0, "rationales_seconds": 30.0, "rationales_elsewhere": 0.0}
    more |= {f"rationales_{name}_tokens": 0.0 for name in ("new", "cached", "written")}
    told = []
    for changes in ({}, more):
        rows, paid = climbing(order="drawn", **changes)
        told.append(compare(rows, paid, [50], None).table.set_index("cascade").loc["0.7", list(MEASURES[:3])])
    extra = ((told[1] - told[0]).astype(float) * 50).to_dict()
    assert extra == pytest.approx({"tokens": 3 * 20, "operations": 3 * 10 + 7, "seconds": 3 * 0.5 + 30})


def test_the_chosen_cascade_is_that_of_the_table_of_cascades():
    rows, paid = climbing()
    point = compare(rows, paid, [50], None).table.set_index("cascade")
    (row,) = cascades(rows, paid).query("rule == 'chosen'").to_dict("records")
    assert point.loc["chosen", "score"] == row["score"]
    assert point.loc["chosen", "ci_low"] == row["ci_low"]


def test_advice_counts_what_the_frontier_counts():
    """A training pays from many queries on; cascades and upper bounds are no advice."""
    prompts = points(k100=0.7)
    rows = frame(prompts, prompts.assign(select="lora"), prompts.assign(select="lora-paper"))
    lora = costs(
        k=100,
        select="lora",
        prefix_flops=0.0,
        query_flops=10.0,
        cached_tokens=0.0,
        training_tokens=1.0,
        training_flops=1e6,
        training_seconds=1.0,
    )
    paid = pd.concat([costs(k=100), lora])
    assert advised(rows, paid, Budget()) == {"random"}
    assert advised(rows, paid, Budget(queries=10)) == {"random"}
    assert advised(rows, paid, Budget(queries=10**6)) == {"lora"}
    table = advise(rows, paid, Budget(queries=10))
    shown = compare(rows, paid, [10], None).table
    assert dict(zip(table["select"], table["operations"], strict=True)) == dict(
        zip(shown["select"], shown["operations"], strict=True)
    )
    few = Budget.parse("operations=1e-6", 10)  # 1,000 operations
    assert set(advise(rows, paid, few)["verdict"]) == {"best", "over budget"}
    money = Budget.parse("money=1", 10, Prices(1, 1, 1))
    assert advised(rows, paid, money) == {"random"}, "a training has no price of tokens"
    assert str(few) == "up to 0.000001 GFLOP a query, 10 queries"
    for text, queries, why in (
        ("operations=5", None, "needs --queries N"),
        ("money=5", 10, "needs --price"),
        ("any", 0, "--queries 0"),
    ):
        with pytest.raises(UserError, match=why):
            Budget.parse(text, queries)
    with pytest.raises(UserError, match="--price: needs --queries"):
        Budget.parse("any", None, Prices(1, 1, 1))


def advised(rows: pd.DataFrame, paid: pd.DataFrame, budget: Budget) -> set[str]:
    table = advise(rows, paid, budget)
    return set(table.loc[table["advised"], "select"])


def test_what_is_trained_somewhere_else_is_not_free():
    of = {"attention": "vectors:5", "training_flops": np.nan}
    assert np.isnan(of_a_query(100, **of)["operations"])
    assert of_a_query(100, **of, k=0)["operations"] > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("input=1,cached=2", "output missing; write input=0.5"),
        ("input=1", "cached and output missing"),
        ("input=-1,cached=0,output=0", "input is -1; a price is 0 or more"),
        ("input=inf,cached=0,output=0", "a price is 0 or more"),
        ("input=x,cached=0,output=0", "input=x: not a number"),
        ("input=1,input=2,output=0", "input=2: write"),
        ("", "write input=0.5"),
    ],
)
def test_prices_that_are_wrong_are_named(text: str, said: str):
    with pytest.raises(UserError) as caught:
        Prices.parse(text)
    assert str(caught.value).startswith(f"--price {text or repr('')}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert Prices.parse(" input=1, cached=0 ,output=2.5") == Prices(1, 0, 2.5)


def test_what_is_shown_first_is_money_at_a_price_else_the_first_that_is_known():
    table = pd.DataFrame({name: [1.0, np.nan] for name in MEASURES})
    prices = Prices(1, 1, 1)
    assert leading(table, prices) == "money"
    assert leading(table, None) == "operations"
    no_money = table.assign(money=np.nan)
    assert leading(no_money, prices) == "operations"
    no_flops = no_money.assign(operations=np.nan)
    assert (leading(no_flops, prices), leading(no_flops, None)) == ("seconds", "seconds")
    tokens = no_flops.assign(seconds=np.nan)
    assert (leading(tokens, prices), leading(tokens, None)) == ("tokens", "tokens")
    assert leading(tokens.assign(tokens=np.nan), None) == "tokens"


def test_halves_and_perturbed_demonstrations_are_no_points_of_a_folder(tmp_path: Path):
    results = tmp_path / "results"
    half = fakes.plan(tmp_path / "task", "4", half=HalfLabels(1))
    fakes.runner(half, results, fakes.FakeBackend()).run()
    with pytest.raises(UserError, match="no finished cell to compare"):
        frontier_of_folder(results, 10, None)
    for changes in ({}, {"perturbation": "inputs-only"}):
        made = fakes.plan(tmp_path / "task", "1,4", **changes)
        fakes.runner(made, results, fakes.FakeBackend()).run()
    table = frontier_of_folder(results, 10, Prices(1, 1, 1))
    assert table["k"].tolist() == [1, 4]
    assert set(table["queries"]) == {10}
    assert table["money"].notna().all()
    other = fakes.plan(tmp_path / "other", "2", name="other")
    fakes.runner(other, results, fakes.FakeBackend()).run()
    assert frontier_of_folder(results, 10, None)["task"].tolist() == ["cards", "cards", "other"]
    assert frontier_of_folder(results, 10, None, {"task": "other"})["k"].tolist() == [2]


def test_the_command_prints_every_point(tmp_path: Path):
    made = fakes.plan(tmp_path / "task", "1,4", draws=2, selects=["random", "bm25"])
    fakes.runner(made, tmp_path / "results", fakes.FakeBackend()).run()

    said = partial(in_process.said, "summary", "--results", tmp_path / "results")
    prices = "input=1,cached=0.1,output=2"
    told = said("--frontier", "--queries", "50", "--price", prices)
    assert "for 50 queries" in told
    assert told.count("bm25") == told.count("random") == 2
    assert "variant" not in told
    again = fakes.plan(tmp_path / "task", "4", draws=2, scoring="exact")
    fakes.runner(again, tmp_path / "results", fakes.FakeBackend()).run()
    told_apart = said("--frontier").count("random, variant")
    shutil.rmtree(tmp_path / "results")
    fakes.runner(made, tmp_path / "results", fakes.FakeBackend()).run()
    assert told_apart == 2, "two ways to score at k=4"
    table = json.loads(said("--frontier", "--price", prices, "--json"))
    assert (table["queries"], table["prices"]["cached"]) == (1000, 0.1)
    assert len(table["frontier"]) == 4
    assert {row["verdict_money"] for row in table["frontier"]} <= {ON, DOMINATED, UNDECIDED}
    assert "--queries 0: expected 1 or more" in said("--frontier", "--queries", "0", code=2)
    assert "--price: goes with --frontier or --advice" in said("--price", prices, code=2)
    assert "--queries: goes with --frontier or --advice" in said("--queries", "5", code=2)
