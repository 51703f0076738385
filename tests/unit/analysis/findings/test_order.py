"""How many predictions change with the order, and how many without any change of the prompt."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.predictions import cell, frame
from support.stored import facts_of

from icl_bench.analysis.all_findings import find
from icl_bench.analysis.findings.order import noise_floor, order_sensitivity, with_reasons
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.results.facts import Facts
from icl_bench.results.reading import Stored


def letters(rng: np.random.Generator, draws: int, test: int, **axes: object) -> pd.DataFrame:
    """Answers of one order at random."""
    said = ["".join(rng.choice(list("abc"), test)) for _ in range(draws)]
    return frame(*(cell(s, "a" * test, draw=d, **axes) for d, s in enumerate(said)))


def many(seed: int, shuffles: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    orders = ["drawn", *(f"shuffled:{i}" for i in range(shuffles)), "by-label"]
    return frame(*(letters(rng, 4, 8, k=k, order=o) for k in (1, 5, 9) for o in orders))


# -- reordering ---------------------------------------------------------------------------------


def by_merging(rows: pd.DataFrame) -> list[float]:
    """The share at each k, from all pairs of rows that agree in draw and test example."""
    rows, pair = rows[rows["k"] > 1], ["k", "draw", "test_id"]
    drawn = rows[rows["order"] == "drawn"]
    shuffled = rows[rows["order"].str.startswith("shuffled")]
    both = shuffled.merge(drawn, on=pair)
    return (both["prediction_x"] != both["prediction_y"]).groupby(both["k"]).mean().tolist()


@pytest.mark.parametrize("seed", range(5))
def test_the_share_of_changes_is_that_over_all_pairs_of_a_draw_and_row(seed):
    rows = many(seed)
    rows = rows.sample(frac=1 if seed == 0 else 0.7, random_state=seed)  # complete, and with holes
    found = order_sensitivity(rows)
    assert found["k"].tolist() == [5, 9]
    assert found["changed"].tolist() == pytest.approx(by_merging(rows))


def test_its_limits_are_those_of_the_mean_over_reorderings():
    rows = many(1)
    changed = [
        rows[(rows["k"] == 5) & (rows["order"] == f"shuffled:{i}")]["prediction"].to_numpy()
        != rows[(rows["k"] == 5) & (rows["order"] == "drawn")]["prediction"].to_numpy()
        for i in range(3)
    ]
    expected = mean_interval(np.mean(changed, axis=0).reshape(4, 8))
    found = order_sensitivity(rows).iloc[0]
    assert found[["changed", "ci_low", "ci_high"]].tolist() == pytest.approx(list(expected))
    assert found[["reorderings", "draws", "rows", "left_out"]].tolist() == [3, 4, 8, 0]


def test_one_demonstration_has_no_order_to_be_sensitive_to():
    assert 1 not in order_sensitivity(many(0))["k"].tolist()


def test_shuffled_predictions_without_a_drawn_counterpart_are_left_out_and_counted():
    rows = frame(
        cell("aabb"),
        cell("abbb", order="shuffled:1"),
        cell("bbbb", order="shuffled:1", draw=1),
        cell("bbbb", order="shuffled:2").iloc[:2],
    )
    (found,) = order_sensitivity(rows).itertuples()
    assert found.changed == (1 + 2) / (4 + 2)
    assert (found.reorderings, found.draws, found.rows, found.left_out) == (2, 1, 4, 4)


def test_each_draws_shuffle_of_a_retrieval_is_compared_with_its_one_order_by_relevance():
    """Draws of bm25 are copies by relevance, which are read as draw 0, but each shuffles in its own way."""
    usual = cell("aabb", select="bm25", order="relevance")
    shuffled = [
        cell(said, select="bm25", order="shuffled:1", draw=d) for d, said in enumerate(["aabb", "bbbb", "aab?"])
    ]
    (found,) = order_sensitivity(frame(usual, *shuffled)).itertuples()
    assert (found.changed, found.draws, found.rows, found.left_out) == (3 / 12, 3, 4, 0)


def test_retrieved_demonstrations_are_reordered_from_relevance():
    rows = frame(
        cell("aabb", select="bm25", order="relevance"),
        cell("abbb", select="bm25", order="shuffled:1"),
        cell("bbbb", select="bm25", order="relevance-reversed"),
    )
    (found,) = order_sensitivity(rows).itertuples()
    assert (found.select, found.changed, found.reorderings) == ("bm25", 0.25, 1)


def test_orders_without_a_counterpart_make_no_table():
    apart = frame(cell("aabb"), cell("aabb", order="shuffled:1", draw=1))
    columns = list(order_sensitivity(many(0)).columns)
    for rows in (apart, cell("aabb"), cell("aabb").iloc[:0]):
        assert order_sensitivity(rows).empty
        assert list(order_sensitivity(rows).columns) == columns


# -- the same prompt again ----------------------------------------------------------------------


def run(said: str, prompts: str = "pqrs", **changes: object) -> pd.DataFrame:
    return cell(said, **changes).assign(prompt_hash=list(prompts))


def test_the_noise_floor_is_the_share_of_prompts_that_another_run_answers_differently():
    (found,) = noise_floor(frame(run("aabb"), run("aaab"))).itertuples()
    assert (found.variant, found.other_variant, found.k) == ("v", "v", 5)
    assert (found.predictions, found.changed) == (4, 0.25)
    assert found.ci_low < 0.25 < found.ci_high


def test_each_further_run_is_compared_with_the_first():
    (found,) = noise_floor(frame(run("aabb"), run("bbbb"), run("bbbb"))).itertuples()
    assert (found.predictions, found.changed) == (8, 0.5)


def test_variants_are_compared_by_their_first_runs_and_apart_from_runs_within_one():
    rows = frame(run("aabb"), run("abbb"), run("bbbb", variant="w"), run("aaab", variant="x"))
    found = noise_floor(rows).set_index(["variant", "other_variant"])["changed"].to_dict()
    assert found == {("v", "v"): 0.25, ("v", "w"): 0.5, ("v", "x"): 0.25, ("w", "x"): 0.75}


def test_a_prompt_run_again_in_another_cell_counts():
    rows = frame(run("aabb", k=1), run("abbb", k=1, order="shuffled:1"), run("abbb", "tuvw", draw=1))
    (found,) = noise_floor(rows).itertuples()
    assert (found.predictions, found.changed) == (4, 0.25)


@pytest.mark.parametrize("other", [{"model": "n"}, {"attention": "block"}, {"task": "u"}])
def test_other_models_attention_and_tasks_are_no_noise(other):
    assert noise_floor(frame(run("aabb"), run("bbaa", **other))).empty


def test_different_prompts_are_no_noise():
    assert noise_floor(frame(run("aabb"), run("bbaa", "tuvw", draw=1))).empty


def test_equal_texts_of_two_test_rows_are_not_compared_with_each_other():
    assert noise_floor(run("abab", "pppp")).empty


def test_without_prompt_hashes_there_is_no_noise_floor():
    columns = [
        "task",
        "model",
        "attention",
        "variant",
        "other_variant",
        "k",
        "predictions",
        "changed",
        "ci_low",
        "ci_high",
    ]
    unknown = frame(cell("aabb"), cell("abbb", draw=1))
    for rows in (unknown, unknown.assign(prompt_hash=None), unknown.iloc[:0]):
        assert noise_floor(rows).empty
        assert list(noise_floor(rows).columns) == columns


def test_copied_answers_of_retrievals_later_draws_are_no_further_runs():
    draws = frame(*(run("aabb", f"pqr{last}", select="bm25", draw=draw) for draw, last in enumerate("sts")))
    assert noise_floor(draws).empty
    # another order is asked by itself, and other patterns and random demonstrations are asked in each draw
    reversed_once = run("aaab", select="bm25", order="relevance-reversed")
    assert noise_floor(frame(draws, reversed_once))["predictions"].tolist() == [4]
    for axes in ({"attention": "block"}, {"select": "random"}):
        assert noise_floor(draws.assign(**axes))["predictions"].tolist() == [7]
    # an import's answers are as its file has them
    facts = facts_of({"v": {"imported": "a.csv"}})
    assert noise_floor(draws, facts)["predictions"].tolist() == [7]


def test_of_two_variants_it_is_said_whether_precision_or_backend_differs():
    rows = frame(run("aabb"), run("abbb"), *(run("bbbb", variant=name) for name in "wxyz"))
    told = {
        "v": Facts(backend="transformers", dtype="bfloat16"),
        "w": Facts(backend="transformers", dtype="float32"),
        "x": Facts(backend="vllm", dtype="bfloat16"),
        "y": Facts(backend="vllm", dtype="float32"),
        "z": Facts(backend="vllm", dtype="float32", seed=1),
    }
    found = with_reasons(noise_floor(rows), told).set_index(["variant", "other_variant"])
    reasons = found["differs_in"].to_dict()
    assert pd.isna(reasons["v", "v"])
    assert reasons["v", "w"] == "precision (bfloat16, float32)"
    assert reasons["v", "x"] == "backend (transformers, vllm)"
    assert reasons["v", "y"] == ("backend (transformers, vllm) and precision (bfloat16, float32)")
    assert reasons["y", "z"] == "other settings"


def test_what_is_not_known_of_a_variant_is_a_dash_or_nothing():
    noise = noise_floor(frame(run("aabb"), run("abbb", variant="w")))
    assert with_reasons(noise, {})["differs_in"].tolist() == ["other settings"]
    (reason,) = with_reasons(noise, facts_of({"v": {"dtype": "bfloat16"}, "w": {}}))["differs_in"]
    assert reason == "precision (bfloat16, –)"
    (reason,) = with_reasons(noise, facts_of({"w": {"backend": "vllm"}}))["differs_in"]
    assert reason == "backend (–, vllm)"


def test_the_finding_compares_what_takes_the_same_answer_from_equal_logits():
    facts = {
        "v": Facts(scoring="greedy", dtype="bfloat16"),
        "w": Facts(scoring="greedy", dtype="float32"),
        "x": Facts(scoring="exact", dtype="bfloat16"),
    }
    rows = frame(*(run(said, variant=v) for v, said in zip("vwx", ("aabb", "abbb", "bbbb"), strict=True)))
    rows = rows.assign(cell="c", queries=None, perturbation=None, label_space=None)
    (found,) = find(Stored(rows, {}, facts, [])).noise_floor.itertuples()
    assert (found.variant, found.other_variant, found.changed) == ("v", "w", 0.25)
    assert found.differs_in == "precision (bfloat16, float32)"
    alone = rows[rows["variant"] == "x"]
    nothing = find(Stored(alone, {}, facts, [])).noise_floor
    assert nothing.empty
    assert "differs_in" in nothing
