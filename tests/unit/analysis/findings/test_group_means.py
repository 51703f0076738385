"""Means over the tasks of a group."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from support.predictions import frame, scored

from icl_bench.analysis.curves import curves
from icl_bench.analysis.draws import DRAWS_AND_TESTS, TESTS_ONLY
from icl_bench.analysis.findings.group_means import group_means, mean_of_tasks
from icl_bench.analysis.statistics.intervals import wilson
from icl_bench.results.facts import Facts

GROUPS = {"g": ("a", "b", "c"), "other": ("x", "y")}


def scores(share: float, rows: int = 100) -> np.ndarray:
    """One draw, of which this share is right: ``(1, rows)``."""
    return (np.arange(rows) < share * rows).astype(float)[None]


def means(*parts: pd.DataFrame, facts: dict[str, Facts] | None = None) -> pd.DataFrame:
    return group_means(curves(frame(*parts)), GROUPS, facts or {})


def test_every_task_counts_alike_however_many_rows_it_has():
    (row,) = means(
        scored(scores(0.2, 200), task="a"), scored(scores(0.6, 50), task="b"), scored(scores(1.0), task="c")
    ).to_dict("records")
    assert (row["group"], row["tasks"], row["reason"]) == ("g", 3, "")
    assert row["score"] == pytest.approx(0.6)
    assert 0.5 < row["ci_low"] < 0.6 < row["ci_high"] < 0.7


def test_it_is_said_what_the_limits_take_samples_of():
    one, two = scored(scores(0.2), task="a"), scored(np.vstack([scores(0.6), scores(0.7)]), task="b")
    assert means(one, two)["interval_over"].tolist() == [TESTS_ONLY]
    assert means(two.assign(task="a"), two)["interval_over"].tolist() == [DRAWS_AND_TESTS]


def test_limits_of_equal_tasks_shrink_with_the_root_of_their_number():
    one = wilson(0.5, 100, 1.96)
    mean, low, high = mean_of_tasks(np.array([one] * 4))
    assert (mean, mean - low, high - mean) == pytest.approx((0.5, (0.5 - one.low) / 2, (one.high - 0.5) / 2))


def test_limits_hold_the_mean_of_fixed_tasks_in_nineteen_of_twenty_samples():
    rng, tasks = np.random.default_rng(0), np.array([0.02, 0.3, 0.5, 0.8, 0.99])
    held = []
    for _ in range(2000):
        found = rng.binomial(60, tasks) / 60
        _, low, high = mean_of_tasks(np.array([wilson(float(mean), 60, 1.96) for mean in found]))
        held.append(low <= tasks.mean() <= high)
    assert 0.935 < np.mean(held) < 0.98


def test_missing_tasks_are_named_at_their_k_and_one_task_is_no_mean():
    a, b, c = (scored(scores(0.5), task=task) for task in "abc")
    table = means(a, b, c, scored(scores(0.5), task="a", k=50), scored(scores(0.3), task="b", k=50)).set_index("k")
    assert table["reason"].tolist() == ["", "without c"]
    assert table["tasks"].tolist() == [3, 2]
    assert table.loc[50, "score"] == pytest.approx(0.4)
    assert means(a, scored(scores(0.5), task="x")).empty


def test_a_single_task_of_a_way_or_sweep_is_no_mean():
    a, b = (scored(scores(0.5), task=task) for task in "ab")
    apart = means(a, b, scored(scores(0.9), task="a", k=50), scored(scores(0.9), task="a", variant="w"))
    assert apart[["k", "tasks"]].to_numpy().tolist() == [[5, 2]]
    assert means(a, scored(scores(0.5), task="b", k=50)).empty


def test_one_sweep_has_a_variant_in_each_task_and_two_sweeps_stay_apart():
    parts, facts = [], {}
    for dtype, share in (("float32", 0.2), ("bfloat16", 0.8)):
        for task, scoring in (("a", "greedy"), ("b", "generate"), ("c", "greedy")):
            variant = f"{task}-{dtype}"
            parts.append(scored(scores(share), task=task, variant=variant))
            facts[variant] = Facts(backend="transformers", dtype=dtype, scoring=scoring, data={"file": task})
    table = means(*parts, facts=facts).set_index("setting")
    assert table["score"].to_dict() == pytest.approx({"dtype=float32": 0.2, "dtype=bfloat16": 0.8})
    assert table["tasks"].tolist() == [3, 3]


def test_tasks_in_languages_that_bm25_reads_in_other_ways_have_one_mean():
    facts = {"a": Facts(seed=0), "b": Facts(seed=0, bm25_words="unicode"), "c": Facts(seed=0, bm25_words="unicode")}
    parts = [
        scored(scores(share), task=t, select="bm25", variant=t) for t, share in zip("abc", (0.2, 0.6, 1.0), strict=True)
    ]
    (row,) = means(*parts, facts=facts).to_dict("records")
    assert (row["tasks"], row["reason"]) == (3, "")
    assert row["score"] == pytest.approx(0.6)


def test_a_task_with_several_scores_has_no_mean_and_is_named():
    facts = {name: Facts(backend="transformers", test_rows=n) for n, name in enumerate("vwz")}
    parts = [scored(scores(share), task=task, variant=name) for task, name, share in (("a", "v", 0.1), ("b", "w", 0.2), ("b", "z", 0.9))]  # fmt: skip
    (row,) = means(*parts, facts=facts).to_dict("records")
    assert math.isnan(row["score"])
    assert row["reason"] == "several scores of b"
