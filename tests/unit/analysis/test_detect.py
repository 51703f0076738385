"""The smallest difference that results can show, and what larger samples would."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support import fakes, in_process
from support.predictions import frame, scored

from icl_bench.analysis.detect import TYPICAL, check_points, detect, lines, planned
from icl_bench.analysis.statistics.power import smallest
from icl_bench.errors import UserError


def point(share: float, k: int, draws: int = 3, rows: int = 100, sd: float = 0.03, **changes: object) -> pd.DataFrame:
    rng = np.random.default_rng([k, draws, int(1000 * share)])
    right = rng.random((draws, rows)) < share + rng.normal(0, sd, (draws, 1))
    return scored(right.astype(float), k=k, **changes)


def test_every_k_says_what_it_can_show_and_what_is_cheaper():
    rows = frame(*(point(s, k, select=select) for k in (4, 16) for s, select in ((0.5, "random"), (0.6, "balanced"))))
    table = detect(rows, 0.05)
    assert table["k"].tolist() == [4, 16]
    assert (table["variances_of"] == "results").all()
    assert table["detectable"].between(0.05, 0.9).all()
    for row in table.to_dict("records"):
        costs = {"draws": row["draws_needed"] * 100, "test rows": row["rows_needed"] * 3}
        known = {name: cost for name, cost in costs.items() if cost == cost}
        assert row["buy"] == (min(known, key=known.__getitem__) if known else "both")
    wide = detect(rows, 0.9)
    assert (wide["buy"] == "nothing").all()


def test_a_curve_alone_is_compared_with_its_next_k_and_single_draws_take_typical_variances():
    alone = detect(frame(point(0.5, 4), point(0.6, 16)), 0.05)
    assert alone["variances_of"].tolist() == ["results", "published"]
    single = detect(frame(point(0.5, 4, draws=1), point(0.6, 16, draws=1)), 0.05)
    assert single["variances_of"].tolist() == ["published"] * 2
    assert single["detectable"][0] == smallest(TYPICAL[0][1], 2, 100)
    assert any("Bertsch et al. 2025" in line for line in lines(single))
    assert not any(
        "Bertsch" in line for line in lines(detect(frame(point(0.5, 4), point(0.5, 4, select="balanced")), 0.1))
    )


@pytest.mark.parametrize("points", [0, -1, 101, float("nan")])
def test_a_difference_is_above_0_and_at_most_100_points(points: float):
    with pytest.raises(UserError, match=f"--detect {points:g}: a difference in points"):
        check_points(points)


def test_a_plan_takes_the_variances_of_the_nearest_k():
    few, many = (planned(k, {}, (10, 250), 0.05)["detectable"] for k in (4, 400))
    assert few > many, "typical draws of few demonstrations differ more"
    assert planned(4, {}, (3, 250), 0.05)["detectable"] > few


def test_the_commands_say_it(tmp_path: Path):
    made = fakes.plan(tmp_path / "task", "1,4", draws=3, selects=["random", "bm25"])
    fakes.runner(made, tmp_path / "results", fakes.FakeBackend()).run()
    said = partial(in_process.said, "summary", "--results", tmp_path / "results")
    told = said("--detect", "5")
    assert "80% of samples" in told
    assert "k = 4: 3 draws of" in told
    table = json.loads(said("--detect", "5", "--json"))["detect"]
    assert [row["k"] for row in table] == [1, 4]
    assert "--detect 0: a difference in points" in said("--detect", "0", code=2)
    assert "--detect: prints its own table instead" in said("--detect", "5", "--cost", code=2)
    task = tmp_path / "task" / "cards.yaml"
    plan = partial(in_process.said, "plan", "--task", task, "--model", "gemma3-270m", "--k", "1,4", "--draws", "3")
    assert "typical variances" in plan("--detect", "5")
    assert "--detect 101" in plan("--detect", "101", code=2)
