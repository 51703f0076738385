"""Curves over many points at once are those of each point alone, and survive missing predictions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.predictions import cell, frame

from icl_bench.analysis.curves import curves
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.metrics.macro_f1 import macro_f1
from icl_bench.results.cells import SETTING


def random_cell(rng: np.random.Generator, **axes: object) -> pd.DataFrame:
    return cell("".join(rng.choice(list("abcd?"), 12)), "abcd" * 3, **axes)


def test_every_point_has_its_own_numbers_in_a_frame_of_many():
    rng = np.random.default_rng(0)
    axes = [
        {"task": t, "order": o, "k": k, "draw": d}
        for t in "tu" for o in ("drawn", "by-label") for k in (1, 5) for d in range(3)
    ]  # fmt: skip
    rows = frame(*(random_cell(rng, **some) for some in axes)).sample(frac=1, random_state=0)
    table = curves(rows.reset_index(drop=True)).set_index([*SETTING, "k"])
    assert len(table) == 8
    for key, point in rows.groupby([*SETTING, "k"]):
        found = table.loc[key]
        scores = point.pivot(index="draw", columns="test_id", values="correct").to_numpy(float)
        assert found[["accuracy", "ci_low", "ci_high"]].tolist() == list(mean_interval(scores))
        by_draw = [
            macro_f1(d["gold"].tolist(), d["prediction"].tolist()) for _, d in point.groupby("draw")
        ]
        assert found["macro_f1"] == pytest.approx(np.mean(by_draw))
        assert found[["draws", "test_rows", "left_out"]].tolist() == [3, 12, 0]


def test_a_point_with_holes_is_of_all_that_is_there():
    torn = frame(cell("aabb"), cell("abbb", draw=1), cell("bbaa", draw=2).iloc[:1])
    (found,) = curves(torn).itertuples()
    assert (found.draws, found.test_rows, found.left_out, found.missing) == (3, 4, 0, 3)
    scores = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [0, np.nan, np.nan, np.nan]])
    assert (found.accuracy, found.ci_low, found.ci_high) == mean_interval(scores)
    draws = [macro_f1(list("aabb"), list(said)) for said in ("aabb", "abbb")]
    assert found.macro_f1 == pytest.approx((4 * draws[0] + 4 * draws[1] + 0) / 9)


def test_a_draw_that_has_hardly_begun_decides_nothing():
    whole = frame(*(random_cell(np.random.default_rng(d), draw=d) for d in range(4)))
    torn = frame(whole, cell("a", "b", draw=4).assign(test_id="0"))
    same = ["accuracy", "ci_low", "ci_high", "macro_f1", "invalid"]
    found, expected = (curves(rows)[same].to_numpy()[0] for rows in (torn, whole))
    assert found == pytest.approx(expected, abs=0.03)


def test_free_text_with_holes_is_of_all_that_is_there_too():
    rows = frame(cell("wxyz"), cell("wxyz", draw=1).iloc[1:]).assign(
        correct=None, rougeL=[0.9, 0.2, 0.4, 0.6, 0.2, 0.4, 0.6]
    )
    (found,) = curves(rows).itertuples()
    assert found.rougeL == pytest.approx((0.9 + 0.2 + 0.4 + 0.6) / 4)
    assert (found.draws, found.test_rows, found.left_out, found.missing) == (2, 4, 0, 1)


def test_one_blank_score_does_not_empty_a_point():
    rows = frame(cell("aabb"), cell("abbb", draw=1))
    blank = rows.assign(correct=rows["correct"].astype(object).where(rows.index != 1, None))
    (found,) = curves(blank).itertuples()
    assert (found.draws, found.test_rows, found.missing) == (2, 4, 1)
    assert found.score == pytest.approx(0.75)
    assert found.ci_low < 0.75 < found.ci_high
    assert found.invalid == 0
    text = rows.assign(correct=None, rouge1=[0.5] * 7 + [np.nan], rougeL=0.25)
    (found,) = curves(text).itertuples()
    assert (found.metric, found.score) == ("rougeL", 0.25)  # all predictions have it
    assert found.rouge1 == pytest.approx(0.5)


def test_draws_without_a_common_test_example_are_not_taken_together():
    rows = frame(cell("aabb"), cell("abbb", draw=1).iloc[1:3], cell("ab", "aa", draw=2).assign(
        test_id=["8", "9"]
    ))  # fmt: skip
    (found,) = curves(rows).itertuples()
    assert (found.draws, found.test_rows, found.left_out) == (2, 4, 2)
