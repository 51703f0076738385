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


def test_a_point_with_holes_is_its_complete_part():
    whole = frame(cell("aabb"), cell("abbb", draw=1))
    torn = frame(whole, cell("b?aa", draw=2).iloc[:1])
    assert curves(torn)["left_out"].tolist() == [1]
    same = ["draws", "test_rows", "accuracy", "ci_low", "ci_high", "macro_f1", "invalid"]
    assert curves(torn)[same].to_numpy().tolist() == curves(whole)[same].to_numpy().tolist()


def test_free_text_with_holes_is_its_complete_part_too():
    rows = frame(cell("wxyz"), cell("wxyz", draw=1).iloc[1:]).assign(
        correct=None, rougeL=[0.9, 0.2, 0.4, 0.6, 0.2, 0.4, 0.6]
    )
    (found,) = curves(rows).itertuples()
    assert found.rougeL == pytest.approx(0.4)
    assert (found.draws, found.test_rows, found.left_out) == (2, 3, 1)
