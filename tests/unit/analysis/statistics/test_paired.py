"""Comparisons at each k are paired, corrected, and say what they left out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.predictions import answers, cell, frame, scored
from support.stored import facts_of

from icl_bench.analysis.all_findings import find
from icl_bench.analysis.draws import DRAWS_AND_TESTS, ONE_SIDE, TESTS_ONLY
from icl_bench.analysis.findings import comparisons
from icl_bench.analysis.findings.comparisons import (
    compare_models,
    perturbation_effect,
    retrieval_gain,
    retrieval_order,
    sorting_penalty,
    source,
    training_gain,
)
from icl_bench.analysis.statistics import paired
from icl_bench.analysis.statistics.contrast import contrast, judge
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.paired import compare, holm, holm_steps
from icl_bench.results.facts import ChatFacts, Facts
from icl_bench.results.reading import Stored

DRAWN = {"order": "drawn"}


def two(k: int = 5, *, draws: int = 3, gain: float = 0.2, seed: int = 0, **other: str) -> pd.DataFrame:
    """A base and another side of 100 test examples that is right more often."""
    rng = np.random.default_rng([seed, k])
    base, better = (answers(rng, (1, draws, 100), a)[0] for a in (0.5, 0.5 + gain))
    return frame(scored(base, k=k), scored(better, k=k, **other))


# -- two sides ----------------------------------------------------------------------------------


def test_a_difference_is_that_of_the_means_over_common_draws_and_test_examples():
    rows = frame(
        cell("aabb"), cell("abab", draw=1), cell("bbbb", order="by-label"), cell("abbb", draw=1, order="by-label")
    )
    (found,) = compare(rows, DRAWN).itertuples()
    assert (found.order, found.base_order, found.k) == ("by-label", "drawn", 5)
    assert (found.mean, found.base_mean) == (5 / 8, 6 / 8)
    assert found.difference == -1 / 8
    assert (found.rows, found.draws, found.base_draws, found.left_out) == (4, 2, 2, 0)
    first = np.array([[0, 0, 1, 1], [1, 0, 1, 1]], dtype=float)
    second = np.array([[1, 1, 1, 1], [1, 0, 0, 1]], dtype=float)
    low, high, p = judge([contrast(first, second, True)])
    assert (found.ci_low, found.ci_high, found.p) == (max(low[0], -1), min(high[0], 1), p[0])


def test_only_common_draws_and_test_examples_are_compared():
    rows = frame(
        cell("aabb"),
        cell("bbaa", draw=1),
        cell("babb", draw=0, order="by-label").iloc[:3],
        cell("abbb", draw=2, order="by-label"),
    )
    (found,) = compare(rows, DRAWN).itertuples()
    assert (found.rows, found.draws) == (3, 1)
    assert found.difference == pytest.approx(-1 / 3)
    assert found.left_out == len(rows) - 6


def test_matched_sides_are_compared_on_all_that_both_answered():
    rows = frame(
        cell("aabb"),
        cell("bbaa", draw=1),
        cell("babb", order="by-label").iloc[:3],
        cell("abbb", draw=1, order="by-label"),
    )
    (found,) = compare(rows, DRAWN).itertuples()
    assert (found.rows, found.draws, found.base_draws, found.left_out) == (4, 2, 2, 1)
    differences = np.array([[-1, 0, 0, np.nan], [1, 0, 1, 1]])
    assert found.difference == pytest.approx(TwoWayLayout(differences).mean)


def test_unmatched_sides_count_each_test_example_alike():
    rows = frame(cell("aabb"), cell("bbbb", draw=1).iloc[1:], cell("abab", draw=7, order="by-label"))
    (found,) = compare(rows, DRAWN, matched=False).itertuples()
    assert (found.rows, found.draws, found.base_draws, found.left_out) == (4, 1, 2, 0)
    base = np.array([[1, 1, 1, 1], [np.nan, 0, 1, 1]])
    assert found.base_mean == pytest.approx(TwoWayLayout(base).mean)


def test_without_a_common_draw_test_examples_alone_are_paired():
    rows = frame(cell("aabb", draw=0), cell("abbb", draw=1), cell("abab", draw=7, order="by-label").iloc[1:])
    (found,) = compare(rows, DRAWN).itertuples()
    assert (found.rows, found.draws, found.base_draws, found.left_out) == (3, 1, 2, 2)
    assert found.difference == pytest.approx(1 / 3 - 5 / 6)


def test_sides_without_a_common_test_example_have_no_difference():
    rows = frame(cell("aabb").iloc[:2], cell("aabb", order="by-label").iloc[2:])
    (found,) = compare(rows, DRAWN).itertuples()
    assert np.isnan([found.difference, found.ci_low, found.ci_high, found.p, found.p_holm]).all()
    assert pd.isna(found.advice)
    assert (found.rows, found.left_out) == (0, 4)


def test_the_order_of_the_predictions_changes_nothing():
    rows = frame(two(order="by-label"), two(1, order="by-label"))
    mixed = rows.sample(frac=1, random_state=0).reset_index(drop=True)
    pd.testing.assert_frame_equal(compare(mixed, DRAWN), compare(rows, DRAWN))


def test_frames_with_categories_are_compared_like_others():
    rows = two(order="by-label")
    coded = rows.astype({"order": "category", "select": "category", "variant": "category"})
    assert compare(coded, DRAWN)["p"].tolist() == compare(rows, DRAWN)["p"].tolist()


def test_what_differs_in_other_columns_than_the_bases_is_not_compared():
    rows = frame(cell("aabb"), cell("bbaa", order="by-label", select="bm25"))
    assert compare(rows, DRAWN).empty
    assert len(compare(rows, {"select": "random", **DRAWN})) == 1


def test_any_column_of_scores_can_be_compared():
    rows = two(order="by-label")
    rows["rougeL"] = np.random.default_rng(0).random(len(rows))
    (found,) = compare(rows.assign(score=rows["rougeL"], metric="rougeL"), DRAWN).itertuples()
    means = rows.groupby("order")["rougeL"].mean()
    assert found.metric == "rougeL"
    assert found.difference == pytest.approx(means["by-label"] - means["drawn"])
    answers = rows.assign(score=rows["correct"].astype(float), metric="accuracy")
    pd.testing.assert_frame_equal(compare(answers, DRAWN), compare(rows, DRAWN))


def test_limits_of_a_difference_of_shares_stay_between_minus_1_and_1():
    rows = frame(cell("bbaa"), cell("aabb", order="by-label"))
    (found,) = compare(rows, DRAWN).itertuples()
    assert found.difference == 1
    assert found.ci_high == 1


def test_nothing_to_compare_is_an_empty_table_with_all_columns():
    full = compare(two(order="by-label"), DRAWN)
    for rows in (cell("aabb"), cell("aabb").iloc[:0], cell("aabb").assign(correct=None)):
        empty = compare(rows, DRAWN)
        assert empty.empty
        assert list(empty.columns) == list(full.columns)
        assert empty["p"].dtype == float
        assert empty["advice"].dtype == object


# -- variants -----------------------------------------------------------------------------------


def test_a_point_is_compared_with_the_base_of_its_own_variant():
    rows = frame(*(cell("aabb", variant=v, order=o) for v in "vw" for o in ("drawn", "by-label")))
    found = compare(rows, DRAWN)
    assert found[["variant", "base_variant"]].to_numpy().tolist() == [["v", "v"], ["w", "w"]]


def test_where_its_variant_has_no_base_a_point_is_compared_with_that_of_each():
    rows = frame(cell("aabb"), cell("bbbb", variant="w"), cell("aaaa", variant="x", order="by-label"))
    found = compare(rows, DRAWN)
    assert found[["variant", "base_variant"]].to_numpy().tolist() == [["x", "v"], ["x", "w"]]
    assert found["difference"].tolist() == [-0.5, 0]


# -- many ks ------------------------------------------------------------------------------------


def test_holm_multiplies_the_smallest_by_their_number_and_never_falls():
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]).tolist() == [1, 1]
    assert holm([]).tolist() == []


def test_what_was_not_tested_does_not_count():
    assert holm([np.nan, 0.01, 0.04])[1:].tolist() == pytest.approx([0.02, 0.04])
    assert np.isnan(holm([np.nan, 0.01])[0])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_its_steps_reject(p):
    alpha, rejected = 0.05, set()
    for step, place in enumerate(np.argsort(p, kind="stable")):  # as in Holm's paper
        if p[place] * (len(p) - step) > alpha:
            break
        rejected.add(int(place))
    assert set(np.flatnonzero(holm(p) <= alpha).tolist()) == rejected


def test_p_is_corrected_over_the_ks_of_each_curve():
    rows = frame(*(two(k, order="by-label", gain=k / 100) for k in (2, 5, 10, 25)), two(5, task="u"))
    rows = frame(rows, two(5, order="by-label").assign(task="u"))
    found = compare(rows.drop_duplicates(["task", "order", "k", "draw", "test_id"]), DRAWN)
    for _, curve in found.groupby("task"):
        assert curve["p_holm"].tolist() == holm(curve["p"]).tolist()
    assert found.groupby("task").size().tolist() == [4, 1]


def test_p_and_limits_are_corrected_over_all_bases_of_a_curve():
    rows = frame(*(two(k, order="by-label", gain=k / 50, variant="x") for k in (5, 10)))
    base = rows["order"] == "drawn"
    found = compare(frame(rows[~base], rows[base].assign(variant="v"), rows[base].assign(variant="w")), DRAWN)
    assert found["base_variant"].tolist() == ["v", "v", "w", "w"]
    assert found["p_holm"].tolist() == holm(found["p"]).tolist()
    assert ((found["ci_low"] > 0) == (found["p_holm"] <= 0.05)).all()
    one = compare(rows, DRAWN)
    assert (found["p_holm"].iloc[:2].to_numpy() > one["p_holm"].to_numpy()).all()


@pytest.mark.parametrize("matched", [True, False])
def test_a_curve_is_judged_as_if_it_were_alone(matched: bool):
    curves = []
    for number, (task, by_draw) in enumerate((("t", 1.5), ("u", 0.0))):
        for k in (1, 8, 64, 512):
            rng = np.random.default_rng([number, k])
            odds = rng.normal(0, by_draw, (2, 3, 1))
            sides = answers(rng, (2, 3, 40), 0.6, odds)
            curves.append(frame(scored(sides[0], k=k, task=task), scored(sides[1], k=k, task=task, order="by-label")))
    together = compare(frame(*curves), DRAWN, matched=matched)
    alone = [compare(frame(*part), DRAWN, matched=matched) for part in (curves[:4], curves[4:])]
    columns = ["task", "k", "p", "p_holm", "ci_low", "ci_high"]
    pd.testing.assert_frame_equal(together[columns], frame(*alone)[columns])
    # with the other ks of the curve, and so not as one k by itself
    single = [compare(part, DRAWN, matched=matched)["p"].item() for part in curves]
    assert np.abs(together["p"] - single).max() > 0.01


def test_it_is_said_what_limits_are_over_and_how_far_draws_of_a_lone_one_differ():
    rng = np.random.default_rng(0)
    made = answers(rng, (1, 4, 100), 0.6, rng.normal(0, 1, (4, 1)))[0]
    rows = frame(
        scored(made[:2]),
        scored(made[:2], k=9),
        scored(made[2:3], k=25),
        *(scored(made[4 - n :], k=k, select="balanced") for n, k in ((1, 5), (2, 9), (1, 25))),
    )
    found = retrieval_gain(rows).set_index("k")
    assert found["interval_over"].to_dict() == {5: ONE_SIDE, 9: DRAWS_AND_TESTS, 25: TESTS_ONLY}
    of_balanced, of_random = (made[side].mean(axis=1).std(ddof=1) for side in ([2, 3], [0, 1]))
    assert found["draws_sd"].tolist() == pytest.approx([of_balanced, np.nan, max(of_balanced, of_random)], nan_ok=True)
    where = "other k of the curve"
    assert found["draws_sd_of"].fillna("").tolist() == [where, "", where]
    assert found["withheld"].fillna("").tolist() == ["one draw", "", "one draw"]


def test_there_is_advice_only_where_the_corrected_test_gives_it():
    rows = frame(*(two(k, order="by-label", gain=g) for k, g in [(2, 0.45), (5, -0.45), (10, 0.01)]))
    found = compare(rows, DRAWN)
    assert found["advice"].fillna("?").tolist() == ["by-label", "drawn", "?"]
    uncorrected = frame(*(two(k, order="by-label", gain=0.2) for k in range(1, 21)))
    found = compare(uncorrected, DRAWN)
    assert ((found["p"] <= 0.05) & found["advice"].isna()).any()
    assert (found["advice"].notna() == (found["p_holm"] <= 0.05)).all()


def test_limits_leave_out_no_difference_exactly_where_the_corrected_test_does():
    rng = np.random.default_rng(8)
    for seed in range(6):
        gains = rng.normal(0.1, 0.15, 8)
        found = compare(frame(*(two(k, order="by-label", gain=g) for k, g in enumerate(gains, seed + 1))), DRAWN)
        outside = (found["ci_low"] > 0) | (found["ci_high"] < 0)
        assert outside.tolist() == (found["p_holm"] <= 0.05).tolist()
        assert found["detectable"].gt((found["ci_high"] - found["ci_low"]) / 2 - 1e-9).all()


@given(st.lists(st.floats(0, 1) | st.just(float("nan")), max_size=9))
def test_holms_steps_are_the_errors_that_its_adjusted_p_values_are_held_to(p: list[float]):
    steps, adjusted, values = holm_steps(p), holm(p), np.array(p)
    tested = ~np.isnan(values)
    assert ((values <= steps) == (adjusted <= 0.05))[tested].all()
    assert (steps[~tested] == 0.05).all()


# -- what is compared with what -----------------------------------------------------------------


def test_retrievals_gain_is_over_random_demonstrations_as_drawn():
    rng = np.random.default_rng(0)
    random, retrieved = answers(rng, (1, 10, 100), 0.5)[0], answers(rng, (1, 1, 100), 0.9)[0]
    rows = frame(
        scored(random),
        scored(random, order="by-label"),
        scored(retrieved, select="bm25", order="relevance"),
        scored(retrieved, select="bertscore", order="relevance", variant="encoder"),
    )
    found = retrieval_gain(rows)
    assert found["select"].tolist() == ["bertscore", "bm25"]
    assert (found["base_order"] == "drawn").all()
    assert found["difference"].tolist() == pytest.approx([retrieved.mean() - random.mean()] * 2)
    assert found[["draws", "base_draws", "left_out"]].to_numpy().tolist() == [[1, 10, 0]] * 2
    low, high, p = judge([contrast(retrieved, random, False)])
    assert (found["ci_low"][0], found["ci_high"][0], found["p"][0]) == (low[0], high[0], p[0])
    assert found["advice"].tolist() == ["bertscore", "bm25"]


def test_a_selectors_draws_are_not_matched_with_random_draws_of_the_same_number():
    rows = two(select="bm25", order="relevance")
    (found,) = retrieval_gain(rows).itertuples()
    sides = [rows.loc[rows["select"] == s, "correct"].to_numpy(dtype=float).reshape(3, 100) for s in ("bm25", "random")]
    assert found.p == judge([contrast(*sides, False)])[2][0]
    assert found.p != judge([contrast(*sides, True)])[2][0]


def test_a_hybrids_draws_are_matched_with_those_of_random_whose_demonstrations_it_begins_with():
    rows = frame(two(select="hybrid:2"), two(select="balanced+hybrid:2").iloc[300:])
    found = retrieval_gain(rows).set_index("select")
    sides = [
        rows.loc[rows["select"] == s, "correct"].to_numpy(dtype=float).reshape(3, 100) for s in ("hybrid:2", "random")
    ]
    assert found.loc["hybrid:2", "p"] == judge([contrast(*sides, True)])[2][0]
    assert found.loc["balanced+hybrid:2", "p"] == judge([contrast(*sides, False)])[2][0]
    assert found.loc["hybrid:2", "p"] != found.loc["balanced+hybrid:2", "p"]


FACTS = facts_of(
    {
        "greedy": {"scoring": "greedy", "seed": 0, "test": "a"},
        "exact": {"scoring": "exact", "seed": 0, "test": "a"},
        "other seed": {"scoring": "greedy", "seed": 1, "test": "a"},
        "fewer rows": {"scoring": "greedy", "seed": 0, "test": "b"},
        "dense": {"scoring": "greedy", "seed": 0, "test": "a", "sentence_encoder": "MiniLM", "bertscore_encoder": "x"},
        "of few": {"scoring": "greedy", "seed": 0, "test": "c", "sentence_encoder": "MiniLM"},
    }
)


def bases(*there: str, select: str = "dense", of: str = "dense") -> list[str]:
    """The variants of random selection that one of another selector is compared with."""
    rows = frame(
        *(cell("aabb", variant=name) for name in there), cell("abbb", select=select, order="relevance", variant=of)
    )
    return retrieval_gain(rows, facts=FACTS)["base_variant"].tolist()


def test_a_selector_with_an_encoder_is_compared_with_what_was_asked_as_it_was():
    assert bases("greedy", "exact", "other seed") == ["greedy"]
    assert bases("exact", "other seed") == []


def test_of_bases_with_other_test_sets_the_one_with_the_same_is_preferred():
    assert bases("greedy", "fewer rows") == ["greedy"]
    assert bases("fewer rows") == ["fewer rows"]
    assert bases("greedy", "fewer rows", of="of few") == ["fewer rows", "greedy"]


def test_imports_of_several_files_are_compared_where_one_file_has_no_base():
    facts = facts_of({name: {"imported": f"{name}.csv"} for name in ("here", "there", "other")})
    rows = frame(cell("aabb", variant="here"), cell("abab", variant="there"))
    for variant, expected in (("other", ["here", "there"]), ("here", ["here"])):
        chosen = cell("abbb", select="bm25", order="relevance", variant=variant)
        found = retrieval_gain(frame(rows, chosen), facts=facts)
        assert found["base_variant"].tolist() == expected


def test_of_several_bases_in_one_imported_file_none_is_known_to_be_alike():
    """Where a file says nothing of its variants, p is withheld; a single base is judged."""
    facts = facts_of({name: {"imported": "a.csv"} for name in "vwxy"})
    bases = [two().iloc[:300].assign(variant=v) for v in "vw"]
    other = two(gain=0.4, model="n", variant="x").iloc[300:]
    (found, single) = (compare_models(frame(*these, other), "m", facts=facts) for these in (bases, bases[:1]))
    assert found["base_variant"].tolist() == ["v", "w"]
    assert found["withheld"].tolist() == ["unknown base"] * 2
    assert found[["p", "p_holm", "advice"]].isna().all().all()
    assert found["difference"].notna().all()
    assert not found["significant"].any()
    assert single["withheld"].isna().all()
    assert single["advice"].tolist() == ["n"]
    # also where only one of them has the k
    ks = compare_models(frame(bases[0], bases[1].assign(k=9), other, other.assign(k=9)), "m", facts=facts)
    assert ks["withheld"].tolist() == ["unknown base"] * 2
    # files that differ are told apart by their names, and runs by their facts
    files = {**facts, "w": Facts(imported="b.csv")}
    assert compare_models(frame(*bases, other), "m", facts=files)["withheld"].isna().all()
    assert compare_models(frame(*bases, other), "m")["withheld"].isna().all()


def test_draws_of_a_run_and_of_an_import_are_not_the_same_demonstrations():
    """Their numbers may be equal. An export of a run has its seed and pool."""
    run = Facts(backend="vllm", seed=0)
    rows = two(order="by-label", gain=-0.3)
    rows = rows.assign(variant=np.where(rows["order"] == "drawn", "run", "imported"))
    for facts, matched in (
        ({"run": run, "imported": Facts(imported="a.csv")}, False),
        ({"run": run, "imported": run.with_more(imported="a.parquet")}, True),
        (dict.fromkeys(("run", "imported"), Facts(imported="a.csv")), True),
    ):
        (row,) = sorting_penalty(rows, facts).itertuples()
        sides = [side["correct"].to_numpy(dtype=float).reshape(3, 100) for _, side in rows.groupby("order")]
        assert row.p == judge([contrast(*sides, matched)])[2][0]
        (single,) = sorting_penalty(rows[rows["draw"] == 0], facts).itertuples()
        assert (single.withheld is None) == matched
        assert np.isnan(single.p) != matched


RUN = Facts(backend="vllm", seed=0, test="a")

ABSENT = {
    "chat": RUN.with_more(chat=ChatFacts(style="turns")),
    "quantization": RUN.with_more(quantization="fp8"),
    "kv_cache_dtype": RUN.with_more(kv_cache_dtype="fp8"),
    "normalize": RUN.with_more(normalize="bytes"),
}
"""What one run was made with, and another one without."""


@pytest.mark.parametrize("fact", ABSENT)
def test_a_run_without_a_fact_is_no_base_for_runs_with_it(fact: str):
    """A plain prompt and a chat, for example: their difference would be that of both."""
    facts = {"plain": RUN, "with": ABSENT[fact]}
    more = {"wrong": {"perturbation": "labels:permuted"}, "dense": {"sentence_encoder": "bge"}}
    facts |= {f"{kind} {name}": facts[name].with_more(**of) for kind, of in more.items() for name in ("plain", "with")}
    bases = [cell("aabb", variant="plain"), cell("abab", variant="with")]
    for kind, compared, axes in (
        ("wrong", perturbation_effect, {"perturbation": "labels:permuted"}),
        ("dense", retrieval_gain, {"select": "dense", "order": "relevance"}),
    ):
        others = {name: cell("abbb", variant=f"{kind} {name}", **axes) for name in ("plain", "with")}
        found = compared(frame(*bases, *others.values()), facts=facts)
        assert found[["variant", "base_variant"]].to_numpy().tolist() == [
            [f"{kind} plain", "plain"],
            [f"{kind} with", "with"],
        ]
        assert compared(frame(bases[0], others["with"]), facts=facts).empty
        # an import does not say what it was made with
        imported = {**facts, "plain": Facts(imported="a.csv")}
        assert compared(frame(bases[0], others["with"]), facts=imported)["base_variant"].tolist() == ["plain"]


@pytest.mark.parametrize("fact", ABSENT)
def test_training_is_compared_with_prompts_as_they_are_first(fact: str):
    facts = {"plain": RUN, "with": ABSENT[fact], "trained": RUN.with_more(backend="trainer", recipe={"lr": 1})}
    prompts = [cell("aabb", variant="plain"), cell("abab", variant="with")]
    trained = cell("abbb", select="lora", variant="trained")
    for there, expected in ((prompts, "plain"), (prompts[1:], "with")):
        assert training_gain(frame(*there, trained), facts=facts)["base_variant"].tolist() == [expected]


@pytest.mark.parametrize("fact", ["quantization", "kv_cache_dtype"])
def test_models_may_be_quantized_or_not(fact: str):
    rows = frame(cell("aabb", variant="plain"), cell("abbb", model="n", variant="with"))
    assert len(compare_models(rows, "m", facts={"plain": RUN, "with": ABSENT[fact]})) == 1


def test_a_model_in_a_chat_is_not_compared_with_another_in_plain_text():
    rows = frame(cell("aabb", variant="plain"), cell("abbb", model="n", variant="with"))
    assert compare_models(rows, "m", facts={"plain": RUN, "with": ABSENT["chat"]}).empty


def test_without_facts_every_base_is_compared_with():
    rows = frame(
        cell("aabb", variant="greedy"),
        cell("aabb", variant="exact"),
        cell("abbb", select="dense", order="relevance", variant="dense"),
    )
    assert retrieval_gain(rows)["base_variant"].tolist() == ["exact", "greedy"]


def test_training_is_compared_with_the_prompts_of_its_own_precision_where_there_are():
    facts = {
        name: Facts(dtype=dtype, seed=0, backend="transformers")
        for name, dtype in (("v16", "bfloat16"), ("v32", "float32"))
    }
    facts["trained"] = Facts(dtype="float32", seed=0, backend="trainer", recipe={"lr": 1})
    prompts = [cell("aabb", variant="v16"), cell("abab", variant="v32")]
    trained = cell("abbb", select="lora", variant="trained")
    for there, expected in ((prompts, "v32"), (prompts[:1], "v16")):
        found = training_gain(frame(*there, trained), facts=facts)
        assert found["base_variant"].tolist() == [expected]


def test_other_orders_of_what_is_retrieved_are_compared_with_relevance():
    rows = frame(
        cell("aabb", select="bm25", order="relevance"),
        cell("abbb", select="bm25", order="relevance-reversed"),
        cell("bbbb", select="bm25", order="shuffled:3"),
        cell("aaab", select="bm25", order="by-label"),
        cell("aabb"),
        cell("bbbb", order="by-label"),
    )
    found = retrieval_order(rows).set_index("order")
    assert found["difference"].to_dict() == {"by-label": -0.25, "relevance-reversed": -0.25, "shuffled:3": -0.5}
    assert set(found["select"]) == {"bm25"}
    assert found["p"].notna().all()  # retrieval has one draw by nature
    assert retrieval_order(rows[rows["select"] == "random"]).empty


def test_sorting_by_label_is_compared_with_the_same_draws_as_drawn():
    rows = frame(two(order="by-label", gain=-0.4), two(order="shuffled:1").iloc[300:])
    found = sorting_penalty(rows)
    assert found["order"].tolist() == ["by-label"]
    assert found["difference"][0] == pytest.approx(found["mean"][0] - found["base_mean"][0])
    assert found["difference"][0] < 0
    assert found["advice"].tolist() == ["drawn"]
    assert found["draws"].tolist() == [3]


@pytest.mark.parametrize("table", [sorting_penalty, retrieval_order])
def test_an_order_of_one_demonstration_has_no_test_and_does_not_count(table: Callable[..., pd.DataFrame]):
    """Both sides of k=1 have the same prompt: it made the corrected p of the other k twice as large."""
    usual = {"select": "bm25", "order": "relevance"} if table is retrieval_order else {}
    sides = {k: two(k, order="by-label", gain=-0.3) for k in (1, 5)}
    rows = frame(*sides.values()).assign(select=usual.get("select", "random"))
    rows["order"] = rows["order"].replace("drawn", usual.get("order", "drawn"))
    one, several = table(rows).sort_values("k").to_dict("records")
    assert one["withheld"] == "nothing differs"
    assert pd.isna(several["withheld"])
    assert np.isnan(one["p"])
    assert one["difference"] != 0
    assert several["p_holm"] == several["p"] == table(rows[rows["k"] == 5])["p"].item()


def test_equal_prompts_have_no_test_and_do_not_count():
    """With few demonstrations, noise changes no label: both prompts are the same."""
    rows = frame(*(two(k, gain=-0.3, draws=3) for k in (2, 5, 10)))
    half = len(rows) // 6
    rows["perturbation"] = np.where(np.arange(len(rows)) // half % 2, "labels:noise=0.2", None)
    of_row = rows["k"].astype(str) + " " + rows["draw"].astype(str) + " " + rows["test_id"]
    noisy = rows["perturbation"].notna()
    changed = noisy & ((rows["k"] == 10) | (rows["k"] == 5) & (rows["draw"] == 1))
    found = perturbation_effect(rows.assign(prompt_hash=of_row + np.where(changed, " changed", ""))).set_index("k")
    assert found["withheld"].fillna("").to_dict() == {2: "nothing differs", 5: "", 10: ""}
    assert found["p_holm"].loc[[5, 10]].tolist() == holm(found["p"].loc[[5, 10]]).tolist()
    assert perturbation_effect(rows)["p"].notna().all()
    models = rows.assign(model=np.where(noisy, "n", "m"), perturbation=None, prompt_hash=of_row)
    assert compare_models(models, "m")["p"].notna().all()  # another model answers the same prompts


def test_models_are_compared_in_both_directions_at_every_k():
    base = [two(k, model="n", variant="w", gain=g) for k, g in [(1, 0.4), (5, -0.4), (10, 0.01)]]
    same = [cell("aabb", k=25, model=m, variant=m) for m in "mn"]
    found = compare_models(frame(*base, *same), "m").sort_values("k")
    assert found["direction"].tolist()[:2] == ["better", "worse"]
    assert found["direction"].tolist()[3] == "equal"
    assert found["significant"].tolist() == [True, True, False, False]
    assert found["advice"].fillna("?").tolist() == ["n", "m", "?", "?"]
    assert (found["base_model"] == "m").all()


def test_a_base_model_in_two_variants_is_two_bases():
    rows = frame(cell("aabb", variant="v16"), cell("abbb", variant="v32"), cell("aaab", model="n"))
    found = compare_models(rows, "m")
    assert found[["base_variant", "difference"]].to_numpy().tolist() == [["v16", -0.25], ["v32", 0]]


def models(rows: pd.DataFrame, base: str | None = None) -> list[list[object]]:
    """Which points the finding compares with which model's."""
    rows = rows.assign(cell="c", queries=None, perturbation=None, label_space=None)
    found = find(Stored(rows, {}, {}, []), base).models
    return found[["task", "base_model", "model", "k"]].to_numpy().tolist()


def test_each_task_has_its_first_model_as_base_or_the_one_that_is_asked_for():
    rows = frame(
        cell("aabb", model="n", task="t"),
        cell("abbb", model="m", task="t"),
        cell("abbb", model="o", task="t"),
        cell("abbb", model="o", task="t", order="shuffled:1"),
        cell("aabb", model="m", task="t", order="shuffled:1"),
        cell("aabb", model="o", task="u"),
        cell("aabb", model="n", task="u"),
    )
    assert models(rows) == [["t", "m", "n", 5], ["t", "m", "o", 5], ["u", "n", "o", 5]]
    assert models(rows, "n") == [["t", "n", "m", 5], ["t", "n", "o", 5], ["u", "n", "o", 5]]
    assert models(rows, "m") == [["t", "m", "n", 5], ["t", "m", "o", 5]]
    assert models(rows[rows["model"] == "n"]) == []
    zero = frame(rows.iloc[:2].assign(k=0), cell("aabb", model="n"), cell("abbb", model="m"))
    assert models(zero) == [["t", "m", "n", 5]]


def test_draws_are_of_what_the_demonstrations_begin_with():
    assert [source(name) for name in ("random", "hybrid:4", "per-label:1", "bm25", "mine")] == [
        "random",
        "random",
        "per-label:1",
        "bm25",
        "mine",
    ]
    assert source("balanced+hybrid:4") == source("balanced") == "balanced"


def test_advice_is_given_up_to_alpha_itself(monkeypatch: pytest.MonkeyPatch):
    def advise_up_to(alpha: float) -> None:
        monkeypatch.setattr(paired, "ALPHA", alpha)
        monkeypatch.setattr(comparisons, "ALPHA", alpha)

    rows = two(order="by-label", gain=0.25)
    perturbed = frame(
        two(gain=0.0).iloc[:300].assign(perturbation=None),
        two(gain=-0.25).iloc[300:].assign(perturbation="inputs-only"),
    )
    trained = frame(two(gain=0.25, select="knn"))
    for table, made in (
        (sorting_penalty, rows),
        (perturbation_effect, perturbed),
        (training_gain, trained),
        (retrieval_gain, two(gain=0.25, select="bm25", order="relevance")),
        (lambda frame: compare_models(frame, "m"), two(gain=0.25, model="n")),
    ):
        advise_up_to(0.05)
        p = table(made)["p_holm"].item()
        assert 1e-9 < p < 0.05
        advise_up_to(p)
        found = table(made)
        assert found["advice"].notna().all()
        assert "significant" not in found or found["significant"].item()
        advise_up_to(p * 0.99)
        found = table(made)
        assert found["advice"].isna().all()
        assert "significant" not in found or not found["significant"].item()


def test_models_may_differ_in_what_is_a_models_and_in_nothing_else():
    of_model = ("backend", "dtype", "scoring", "fingerprint")
    facts = {
        name: Facts(**dict.fromkeys(of_model, name), max_answer_tokens=number, seed=seed)
        for number, (name, seed) in enumerate((("v", 0), ("w", 0), ("x", 1)))
    }
    rows = frame(cell("aabb"), cell("abbb", model="n", variant="w"), cell("abbb", model="o", variant="x"))
    assert compare_models(rows, "m", facts=facts)["model"].tolist() == ["n"]
    rows = rows.assign(cell="c", queries=None, perturbation=None, label_space=None)
    assert find(Stored(rows, {}, facts, [])).models["model"].tolist() == ["n"]


def test_models_have_chat_templates_of_their_own_and_are_compared_in_the_same_style():
    turns, own, single = (
        Facts(chat=ChatFacts(style=style, template=name, around=[name]))
        for style, name in (("turns", "a"), ("turns", "b"), ("single", "b"))
    )
    rows = frame(cell("aabb"), cell("abbb", model="n", variant="w"), cell("abbb", model="o", variant="x"))
    assert compare_models(rows, "m", facts={"v": turns, "w": own, "x": single})["model"].tolist() == ["n"]


def test_models_with_other_pools_are_compared_and_their_draws_are_not_paired():
    """Another tokenizer drops other rows as the longest, so equal draws may show other demonstrations."""
    rows = two(model="n", variant="w")
    whole, same, other = (Facts(pool=pool, pool_rows=size, seed=0) for pool, size in (("p", 9), ("p", 9), ("q", 8)))
    (paired_draws,) = compare_models(rows, "m", facts={"v": whole, "w": same}).itertuples()
    (apart,) = compare_models(rows, "m", facts={"v": whole, "w": other}).itertuples()
    sides = [rows.loc[rows["model"] == m, "correct"].to_numpy(dtype=float).reshape(3, 100) for m in "nm"]
    assert paired_draws.p == judge([contrast(*sides, True)])[2][0]
    assert apart.p == judge([contrast(*sides, False)])[2][0]
    assert paired_draws.p != apart.p
    assert paired_draws.difference == apart.difference

    third = frame(rows, two(model="o", variant="x").iloc[300:])
    found = compare_models(third, "m", facts={"v": whole, "w": same, "x": other}).set_index("model")
    assert found["p"].tolist() == [paired_draws.p, apart.p]


@pytest.mark.parametrize("of_base", [True, False])
def test_each_k_is_compared_with_the_same_pool_or_with_another_and_corrected_together(of_base: bool):
    """A base with k=50 in another pool than k=5: that k had no row if k=5 was compared."""
    one, other = (Facts(pool=pool, pool_rows=9, seed=0, backend=name) for pool, name in (("p", "a"), ("q", "b")))
    later = two(50, model="n", variant="w")
    later.loc[later["model"] == "m", "variant"] = "other"
    rows = frame(two(model="n", variant="w"), later)
    facts = {"v": one, "w": one.with_more(backend="b"), "other": other}
    if not of_base:  # the other model's side: another curve, as its variant is another
        rows["model"] = rows["model"].map({"m": "n", "n": "m"})
    found = compare_models(rows, "m", facts=facts).sort_values("k")
    sides = [
        [rows.loc[(rows["model"] == m) & (rows["k"] == k), "correct"].to_numpy(dtype=float) for m in "nm"]
        for k in (5, 50)
    ]
    contrasts = [
        contrast(*(side.reshape(3, 100) for side in of_k), k == 5) for k, of_k in zip((5, 50), sides, strict=True)
    ]
    np.testing.assert_allclose(found["p"], judge(contrasts)[2])
    np.testing.assert_allclose(found["p_holm"], holm(found["p"]) if of_base else found["p"])
