"""The point without demonstrations begins every curve and is evidence of no draw or selector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.predictions import frame, scored

from icl_bench.analysis.advice import Budget, advise, lines
from icl_bench.analysis.curves import curves, saturation
from icl_bench.analysis.findings.comparisons import compare_models, perturbation_effect, retrieval_gain, sorting_penalty
from icl_bench.analysis.findings.demonstrations import by_distance, by_presence
from icl_bench.analysis.findings.saturation import context_shares
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.analysis.summary import summarise
from icl_bench.analysis.zero_shot import from_zero_shot, where_attention_matters
from icl_bench.results.facts import ChatFacts, Facts

CURVE = ["select", "order", "attention", "variant"]
RETRIEVED = {"select": "bm25", "order": "relevance"}

PASSAGES = {"field": "ctxs"}


def answers(share: float, draws: int = 1, seed: int = 0, rows: int = 20) -> np.ndarray:
    return np.random.default_rng(seed).random((draws, rows)) < share


def bare(share: float = 0.4, rows: int = 20, **changes: Any) -> pd.DataFrame:
    return scored(answers(share, rows=rows), k=0, **changes)


def begun(table: pd.DataFrame) -> set[tuple[str, ...]]:
    """The curves that have a point without demonstrations."""
    rows = table.loc[table["k"] == 0, CURVE].astype(object)
    return set(rows.itertuples(index=False, name=None))


def test_every_curve_of_a_task_and_model_begins_with_it():
    point = bare()
    found = curves(
        frame(
            point,
            scored(answers(0.6, 3), k=5),
            scored(answers(0.6), k=5, **RETRIEVED),
            scored(answers(0.6, 3), k=5, order="shuffled:1"),
            scored(answers(0.6, 3), k=5, attention="block:2,sink=1,local=2"),
            scored(answers(0.6), k=5, model="other"),
            scored(answers(0.6), k=5, task="other"),
        )
    )
    table = from_zero_shot(found)
    of_model = table[(table["model"] == "m") & (table["task"] == "t")]
    assert of_model.groupby(CURVE)["k"].apply(list).tolist() == [[0, 5]] * 4
    assert (table["k"] == 0).sum() == 4
    zero = table[table["k"] == 0]
    assert set(zero["score"]) == {point["correct"].mean()}
    assert set(zero["draws"]) == {1}
    low, high = mean_interval(point["correct"].to_numpy(dtype=float)[None])[1:]
    assert set(zip(zero["ci_low"], zero["ci_high"], strict=True)) == {(low, high)}


def test_where_random_selection_has_no_demonstrations_it_is_no_curve():
    found = summarise(frame(bare(), scored(answers(0.6), k=5, **RETRIEVED)))
    assert set(found.curves["select"]) == {"bm25"}
    assert found.curves["k"].tolist() == [0, 5]
    alone = summarise(bare()).curves
    assert alone[["select", "k"]].to_numpy().tolist() == [["random", 0]]


def test_a_selector_with_an_encoder_has_it_from_the_variant_that_agrees_in_all_else():
    facts = {"v": Facts(seed=0), "e": Facts(seed=0, sentence_encoder="words"), "s": Facts(seed=1)}
    found = curves(
        frame(
            bare(),
            scored(answers(0.6), k=5, select="dense", order="relevance", variant="e"),
            scored(answers(0.6), k=5, variant="s"),
        )
    )
    assert begun(from_zero_shot(found, facts)) == {("dense", "relevance", "full", "e")}
    assert begun(from_zero_shot(found)) == {("random", "drawn", "full", "v")}


def test_a_plain_curve_does_not_begin_with_the_point_of_a_chat():
    plain, chat = Facts(seed=0), Facts(seed=0, chat=ChatFacts(style="turns"))
    facts = {"c": chat, "p": plain, "dense c": chat.with_more(sentence_encoder="x")}
    facts |= {"dense p": plain.with_more(sentence_encoder="x")}
    bare = {"c": np.ones((1, 4)), "p": np.zeros((1, 4))}
    rows = [scored(right, k=0, variant=variant) for variant, right in bare.items()]
    rows += [scored(np.ones((1, 4)), select="dense", order="relevance", variant=v) for v in ("dense c", "dense p")]
    table = from_zero_shot(curves(frame(*rows)), facts)
    scores = table[table["k"] == 0].set_index("variant")["score"]
    assert (scores["dense c"], scores["dense p"]) == (1, 0)


def test_variants_of_imports_agree_in_nothing_but_their_origin():
    found = curves(frame(bare(), scored(answers(0.6), k=5, variant="other")))
    facts = dict.fromkeys(("v", "other"), Facts(imported="a.csv"))
    assert begun(from_zero_shot(found, facts)) == {("random", "drawn", "full", "v")}


def test_trained_classifiers_do_not_begin_with_it():
    found = curves(frame(bare(), scored(answers(0.6), k=5, select="lora")))
    assert begun(from_zero_shot(found)) == {("random", "drawn", "full", "v")}


def test_rows_of_points_keep_their_order():
    table = curves(frame(scored(answers(0.6), k=5, **RETRIEVED), scored(answers(0.5), k=5)))
    pd.testing.assert_frame_equal(from_zero_shot(table), table)


def test_lent_rows_stand_in_their_order_before_the_first_of_the_curve():
    point = bare(rows=40)
    curves_ = [scored(answers(0.6), k=5, select=name, order="relevance") for name in ("a", "b")]
    table = from_zero_shot(frame(*curves_, point))
    starts = table[["select", "k"]].drop_duplicates()
    assert starts.to_numpy().tolist() == [["a", 0], ["a", 5], ["b", 0], ["b", 5]]
    for name in ("a", "b"):
        lent = table[(table["select"] == name) & (table["k"] == 0)]
        assert lent["test_id"].tolist() == point["test_id"].tolist()
        assert lent["correct"].tolist() == point["correct"].tolist()
        assert set(lent["order"]) == {"relevance"}
    assert table.index.tolist() == list(range(120))
    assert table["select"].tolist() == ["a"] * 60 + ["b"] * 60


def test_what_reads_a_querys_passages_as_vectors_has_a_point_of_its_own():
    found = curves(
        frame(
            bare(),
            scored(answers(0.6), k=5),
            scored(answers(0.6), k=5, attention="vectors:all"),
            scored(answers(0.6), k=5, attention="block:2,sink=1,local=2"),
        )
    )
    drawn = {("random", "drawn", attention, "v") for attention in ("full", "block:2,sink=1,local=2")}
    assert begun(from_zero_shot(found, {"v": Facts(passages=PASSAGES)})) == drawn
    of_vectors = ("random", "drawn", "vectors:all", "v")
    for facts in ({}, {"v": Facts()}, {"w": Facts(passages=PASSAGES)}):
        assert begun(from_zero_shot(found, facts)) == {*drawn, of_vectors}


def test_points_without_demonstrations_stay_where_a_pattern_reads_passages_at_k_0():
    rows = frame(
        bare(),
        bare(attention="vectors:all"),
        scored(answers(0.6), k=1),
        bare(task="u"),
        scored(answers(0.6), k=1, task="u"),
        bare(model="n"),
    )
    kept = where_attention_matters(curves(rows), rows)
    found = kept[["task", "model", "attention", "k"]].to_numpy().tolist()
    assert found == [["t", "m", "full", 0], ["t", "m", "full", 1], ["t", "m", "vectors:all", 0], ["u", "m", "full", 1]]
    without = rows[rows["attention"] == "full"]
    assert set(where_attention_matters(without, without)["k"]) == {1}


# -- what is found of it ------------------------------------------------------------------------


def test_a_curve_that_demonstrations_do_not_lift_is_saturated_at_0():
    same = answers(0.5)
    table = summarise(frame(scored(same, k=0), scored(same, k=5), scored(same, k=9))).saturation
    assert table[["k", "best_k", "max_k", "within_window"]].to_numpy().tolist() == [[0, 0, 9, True]]
    (row,) = saturation(curves(bare())).to_dict("records")
    assert (row["k"], row["within_window"]) == (0, False)


def test_no_share_of_the_largest_k_is_known_where_that_is_0():
    table = context_shares(bare().assign(prompt_tokens=9), {"m": 90})
    assert np.isnan(table["share_of_tested"].iloc[0])
    assert table["share_of_window"].iloc[0] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("compare", "changes"),
    [
        (retrieval_gain, RETRIEVED),
        (sorting_penalty, {"order": "by-label"}),
        (perturbation_effect, {"perturbation": "labels:permuted", "variant": "v"}),
    ],
)
def test_ways_to_show_demonstrations_are_not_compared_without_any(compare: Any, changes: Any):
    cells = [scored(answers(0.5, seed=k), k=k) for k in (0, 5)]
    other = [scored(answers(0.5, seed=9 + k), k=k, **changes) for k in (0, 5)]
    table = compare(frame(*cells, *other))
    assert table["k"].tolist() == [5]


def test_models_are_compared_on_it_over_test_examples():
    table = compare_models(frame(bare(0.2), bare(0.9, model="n", variant="w")), "m", facts={"v": Facts(), "w": Facts()})
    (row,) = table.to_dict("records")
    assert (row["k"], row["rows"], row["draws"], row["base_draws"]) == (0, 20, 1, 1)
    assert row["ci_low"] < row["difference"] < row["ci_high"]


@pytest.mark.parametrize("table", [by_presence, by_distance])
def test_labels_of_demonstrations_say_nothing_where_there_are_none(table: Any):
    cells = frame(bare(cell="zero"), scored(answers(0.5), k=1, cell="one"))
    found = table(cells, {"d": "a"}, {"zero": [], "one": ["d"]})
    assert set(found["k"]) == {1}


def test_advice_sets_all_draws_of_the_best_beside_it():
    cells = frame(bare(0.2), scored(answers(0.9, 3, seed=1), k=5))
    costs = pd.DataFrame(
        [
            {
                **cells.iloc[0][["task", "model", *CURVE]],
                "k": k,
                "computed_tokens": 10.0 + k,
                "prompt_tokens": 10.0 + k,
                "seconds": 1.0,
            }
            for k in (0, 5)
        ]
    )
    table = advise(cells, costs, Budget())
    (row,) = table[table["k"] == 0].to_dict("records")
    assert (row["draws"], row["base_draws"]) == (1, 3)
    said = "\n".join(lines(table, Budget()))
    assert "no demonstrations, k=0" in said
