"""What a query takes, and when a training pays, on numbers that are added up by hand."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
from support.predictions import cell, frame
from support.stored import meta

from icl_bench.analysis.cell_cost import CellCost
from icl_bench.analysis.findings.cost import break_even, cost
from icl_bench.models.architecture import Architecture
from icl_bench.registry import FINDINGS
from icl_bench.results.stored_meta import TrainingMeta

SHAPE = Architecture(parameters=50, heads_width=2, windows=(None, 4))
COUNTED = {"prefix_flops": 100.0, "query_flops": 10.0, "whole_flops": 110.0, "cache_bytes": 8.0}


def tokens(rows: pd.DataFrame, prompt: float, cached: float, answer: float) -> pd.DataFrame:
    return rows.assign(prompt_tokens=prompt, cached_tokens=cached, answer_tokens=answer)


# -- a query ------------------------------------------------------------------------------------


def test_tokens_are_means_over_queries_and_operations_means_over_cells():
    """One cell of two queries and one of four."""
    rows = frame(tokens(cell("ab", "ab", cell="one"), 10, 4, 1), tokens(cell("aabb", cell="two", draw=1), 40, 10, 4))
    more = {**COUNTED, "query_flops": 30.0, "cache_bytes": 16.0}
    known = {
        "one": CellCost(counted=COUNTED, prefill_seconds=1.0, peak_cache_bytes=4.0),
        "two": CellCost(counted=more, prefill_seconds=3.0, peak_cache_bytes=8.0),
    }
    (found,) = cost(rows, known).to_dict("records")
    assert found["predictions"] == 6
    assert found["prompt_tokens"] == pytest.approx((2 * 10 + 4 * 40) / 6)
    assert found["cached_tokens"] == pytest.approx((2 * 4 + 4 * 10) / 6)
    assert found["answer_tokens"] == pytest.approx((2 * 1 + 4 * 4) / 6)
    assert found["computed_tokens"] == pytest.approx((2 * 6 + 4 * 30) / 6)
    assert (found["query_flops"], found["cache_bytes"]) == ((10 + 30) / 2, (8 + 16) / 2)
    assert (found["prefix_flops"], found["whole_flops"]) == (100, 110)
    assert (found["prefill_seconds"], found["peak_cache_bytes"]) == ((1 + 3) / 2, (4 + 8) / 2)


def test_seconds_are_those_of_a_query_over_the_cells_whose_time_is_known():
    """2 seconds for two queries and 10 for four; a third cell does not say."""
    rows = frame(cell("ab", "ab", cell="one"), cell("aabb", cell="two", draw=1), cell("aabb", cell="three", draw=2))
    known = {"one": CellCost(seconds=2.0), "two": CellCost(seconds=10.0)}
    (found,) = cost(rows, known)["seconds"]
    assert found == (2 + 10) / (2 + 4)


def test_points_of_curves_are_apart():
    rows = frame(
        tokens(cell("ab", "ab", cell="one"), 10, 0, 1),
        tokens(cell("ab", "ab", cell="two", k=9), 30, 0, 1),
        tokens(cell("ab", "ab", cell="three", select="bm25"), 50, 0, 1),
    )
    table = cost(rows, {"two": CellCost(counted=COUNTED)}).set_index(["select", "k"])
    assert table["prompt_tokens"].to_dict() == {("random", 5): 10, ("random", 9): 30, ("bm25", 5): 50}
    assert table["query_flops"].isna().tolist() == [key != ("random", 9) for key in table.index.tolist()]


def test_points_are_in_the_order_of_k_whatever_the_order_of_the_files():
    rows = frame(cell("ab", "ab", k=9), cell("ab", "ab", k=1), cell("ab", "ab", k=5))
    assert cost(rows, {})["k"].tolist() == [1, 5, 9]


def test_operations_by_shape_are_those_of_the_cells_mean_prompt():
    """Prompts of 20 and 40 tokens, 20 of them shared, without answers: 30 on average."""
    rows = tokens(cell("ab", "ab", cell="one"), 20, 0, 0)
    rows["prompt_tokens"] = [20, 40]
    (found,) = cost(rows, {"one": CellCost(prefix_tokens=20, architecture=SHAPE)}).to_dict("records")
    assert found["whole_flops"] == 30 * (100 + 8 * (15 + 4))
    assert found["query_flops"] == 10 * (100 + 8 * (25 + 4))


# -- a cell -------------------------------------------------------------------------------------


def test_what_a_cells_file_says_is_read():
    training = TrainingMeta(flops=5.0)
    whole = meta(
        seconds=3.5,
        prefix_tokens=20,
        architecture=SHAPE,
        compute=COUNTED,
        training=training,
        prefill_seconds=0.5,
        peak_cache_bytes=9,
    )
    assert CellCost.of(whole) == CellCost(3.5, 20, SHAPE, training, COUNTED, 0.5, 9)
    assert CellCost.of(meta()) == CellCost()
    assert CellCost.of(meta(architecture=SHAPE)).architecture == SHAPE
    blocks = meta(architecture=SHAPE, attention="block:1,sink=1,local=2")
    assert CellCost.of(blocks).architecture is None  # the formula of full attention is not for it


def test_a_cell_without_a_counted_cost_has_that_of_full_attention_by_its_shape():
    """Prefix of 20, queries of 10 more, and 3 answer tokens behind 30.

    A token takes 2 operations for each of 50 parameters, and 4 for each of 2 units of width and
    each key that it sees: half of what is being read on average, and all before it; no more than 4
    in the second layer.
    """
    found = CellCost(prefix_tokens=20, architecture=SHAPE).row(30.0, 3.0)
    answer = 3 * (100 + 8 * (30 + 4))
    assert found["prefix_flops"] == 20 * (100 + 8 * (10 + 4))
    assert found["query_flops"] == 10 * (100 + 8 * (25 + 4)) + answer
    assert found["whole_flops"] == 30 * (100 + 8 * (15 + 4)) + answer
    assert math.isnan(found["cache_bytes"])
    bare = CellCost(prefix_tokens=20, architecture=SHAPE).row(30.0, math.nan)
    assert bare["query_flops"] == found["query_flops"] - answer


def test_what_is_not_known_of_a_cell_is_nan():
    assert all(map(math.isnan, CellCost().row(30.0, 3.0).values()))
    assert all(map(math.isnan, CellCost(architecture=SHAPE).row(math.nan, 3.0).values()))
    found = CellCost(counted=COUNTED).row(math.nan, math.nan)
    assert {name: found[name] for name in COUNTED} == COUNTED
    assert math.isnan(found["training_flops"])
    found = CellCost(training=TrainingMeta(seconds=1, flops=7), peak_cache_bytes=0.0).row(1.0, 1.0)
    assert (found["training_seconds"], found["training_flops"]) == (1, 7)
    assert math.isnan(found["training_tokens"])
    assert CellCost(training=TrainingMeta(tokens=9)).row(1.0, 1.0)["training_tokens"] == 9
    assert math.isnan(found["prefill_seconds"])
    assert found["peak_cache_bytes"] == 0


# -- a training ---------------------------------------------------------------------------------


def sides(*prompts: dict[str, Any], **training: Any) -> pd.DataFrame:
    """A training of 1,000 operations and queries of 5, and prompts of 100, 7 and 107."""
    same = {"task": "t", "model": "m", "variant": "v", "k": 5, "attention": "full", "order": "drawn"}
    prompt = {"select": "random", "prefix_flops": 100.0, "query_flops": 7.0, "whole_flops": 107.0, "seconds": 0.5}
    trained = {
        "select": "lora",
        "prefix_flops": 0.0,
        "query_flops": 5.0,
        "whole_flops": 5.0,
        "seconds": 0.25,
        "training_flops": 1000.0,
        "training_seconds": 60.0,
    }
    rows = [*({**same, **prompt, **changes} for changes in prompts), same | trained | training]
    return pd.DataFrame(rows)


def queries(costs: pd.DataFrame) -> dict[str, float]:
    return break_even(costs).set_index("beside")["queries"].to_dict()


def test_an_even_number_of_queries_does_not_pay_yet():
    # 1000 + 5 n against 100 + 8 n: even at 300, cheaper from 301; against 105 n: even at 10
    found = queries(sides({"query_flops": 8.0, "whole_flops": 105.0}))
    assert found == {"random, cached": 301, "random, not cached": 11}


def test_a_training_no_dearer_than_the_prefix_pays_at_once_unless_its_queries_cost_more():
    assert queries(sides({"prefix_flops": 1000.0, "query_flops": 6.0}))["random, cached"] == 0
    just = queries(sides({"prefix_flops": 999.0, "query_flops": 5.0}))
    assert math.isnan(just["random, cached"])
    # 1000 + 5 n against 999 + 7 n: dearer at none, cheaper from the first
    assert queries(sides({"prefix_flops": 999.0}))["random, cached"] == 1


@pytest.mark.parametrize("prefix", [1000, 1001, 1002, 1003, 1010])
@pytest.mark.parametrize("training", [None, "seconds"])
def test_a_cheap_training_with_dear_queries_pays_for_few_of_them(prefix: int, training: str | None):
    """1000 + 5 n against the prefix + 4 n, by trying all numbers."""
    cheaper = [n for n in range(1, 100) if 1000 + 5 * n < prefix + 4 * n]
    names = ("queries", "until") if training is None else ("queries_by_seconds", "until_by_seconds")
    prompt = {"prefix_flops": prefix, "query_flops": 4.0, "whole_flops": 1e9}
    prompt |= {"seconds": 4.0 + prefix, "prefill_seconds": float(prefix), "rows_a_cell": 1.0}
    table = sides(prompt, training_seconds=1000.0, seconds=5.0).fillna({"prefill_seconds": 0.0, "rows_a_cell": 1.0})
    found = break_even(table).set_index("beside").loc["random, cached"]
    if cheaper:
        assert found[list(names)].tolist() == [0, max(cheaper)]
    else:
        assert found[list(names)].isna().all()
    printed = FINDINGS["break_even"].printed
    assert printed is not None
    (text,) = printed.rows(break_even(table).iloc[:1])[names[0]]
    assert text == (f"0 to {max(cheaper)}" if cheaper else "never")


def test_both_sides_of_a_break_even_are_given():
    found = break_even(sides({})).set_index("beside").loc["random, not cached"]
    assert (found["training_flops"], found["flops"], found["base_flops"]) == (1000, 5, 107)
    assert (found["training_seconds"], found["seconds"]) == (60, 0.25)
    assert math.isnan(found["base_seconds"])
    assert (found["task"], found["model"], found["select"], found["k"]) == ("t", "m", "lora", 5)
    cached = break_even(sides({})).set_index("beside").loc["random, cached"]
    assert (cached["base_flops"], cached["base_seconds"]) == (7, 0.5)
    assert cached["queries_by_seconds"] == 241


def test_reading_the_shared_demonstrations_takes_its_seconds_once():
    # 600 + 0.01 n against 60 + 0.05 n: cheaper from 13,501; 0.29 s were measured, with a 250th of the 60 s
    slow = {"seconds": 0.29, "prefill_seconds": 60.0, "rows_a_cell": 250.0}
    found = break_even(sides(slow, seconds=0.01, training_seconds=600.0)).set_index("beside").loc["random, cached"]
    assert found["base_seconds"] == pytest.approx(0.05)
    assert found["queries_by_seconds"] == 13_501


def test_orders_that_are_not_the_draws_own_are_not_set_beside_a_training():
    assert queries(sides({"order": "shuffled:3"}, {"order": "by-label"})) == {}
    assert queries(sides({"select": "theirs", "order": "shuffled:3"})) == {}
    assert list(queries(sides({"select": "bm25", "order": "relevance"}))) == ["bm25"]


def test_retrieved_demonstrations_are_read_anew_for_each_query_unless_they_are_reused():
    reuse = "block:1,sink=1,local=0,reuse"
    found = break_even(
        sides(
            {"select": "bm25", "order": "relevance"},
            {"select": "bm25", "order": "relevance", "attention": reuse},
            {"select": "theirs", "attention": "theirs"},
        )
    ).set_index("beside")
    assert found["base_flops"].to_dict() == {"bm25": 107, f"bm25, {reuse}": 7, "theirs, theirs": 107}
    # 1000 + 5 n against 107 n, 100 + 7 n, 107 n
    assert found["queries"].tolist() == [10, 451, 10]
    assert found["base_seconds"].tolist() == [0.5] * 3


def test_demonstrations_as_vectors_pay_after_their_training_and_one_reading():
    """Beside the same demonstrations as text; with shared ones projected once (20 operations)."""
    vectors = {
        "attention": "vectors:5",
        "prefix_flops": 20.0,
        "query_flops": 5.0,
        "whole_flops": 25.0,
        "seconds": 0.25,
        "training_flops": 1000.0,
        "training_seconds": 60.0,
    }
    table = sides({}, vectors, {"select": "bm25", "order": "relevance", **vectors})
    found = break_even(table[table["select"] != "lora"]).set_index(["select", "beside"])
    # 1000 + 20 + 5 n against 100 + 7 n and 107 n; each query's own, 1000 + 25 n
    assert found["queries"].to_dict() == {
        ("random, cached, vectors:5", "random, cached"): 461,
        ("random, cached, vectors:5", "random, not cached"): 11,
        ("bm25, vectors:5", "random, not cached"): 13,
        ("bm25, vectors:5", "random, cached"): pytest.approx(math.nan, nan_ok=True),
    }
    assert break_even(table[table["select"] != "lora"].assign(k=0)).empty


def test_a_training_without_operations_is_not_compared():
    assert break_even(sides({}, training_flops=math.nan)).empty
    assert math.isnan(queries(sides({"query_flops": math.nan}))["random, cached"])
    assert math.isnan(queries(sides({"prefix_flops": math.nan}))["random, cached"])


def test_what_never_pays_and_what_is_not_known_are_told_apart_in_print():
    printed = FINDINGS["break_even"].printed
    assert printed is not None
    table = pd.DataFrame(
        {
            "queries": [12345.0, math.nan, math.nan],
            "base_flops": [1.0, 1.0, math.nan],
            "queries_by_seconds": [math.nan, 7.0, 0.0],
            "base_seconds": [1.0, 1.0, 1.0],
            "until": [math.nan] * 3,
            "until_by_seconds": [math.nan] * 3,
        }
    )
    shown = printed.rows(table)
    assert shown["queries"].tolist()[:2] == ["12,345", "never"]
    assert pd.isna(shown["queries"][2])
    assert shown["queries_by_seconds"].tolist() == ["never", "7", "0"]
    assert table["queries"][0] == 12345.0
