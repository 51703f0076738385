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

from icl_bench.analysis.detect import TYPICAL, check_points, detect, detect_folder, lines, planned
from icl_bench.analysis.predictions import comparable_predictions
from icl_bench.analysis.statistics.power import smallest
from icl_bench.errors import UserError
from icl_bench.results.reading import read_some


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
    assert "with 80% power; 5.0 points need" in told
    assert "k = 4: 3 draws of" in told
    table = json.loads(said("--detect", "5", "--json"))["detect"]
    assert [row["k"] for row in table] == [1, 4]
    assert "--detect 0: a difference in points" in said("--detect", "0", code=2)
    assert "--detect: prints its own table instead" in said("--detect", "5", "--cost", code=2)
    task = tmp_path / "task" / "cards.yaml"
    plan = partial(in_process.said, "plan", "--task", task, "--model", "gemma3-270m", "--k", "1,4", "--draws", "3")
    assert "the variances are typical ones" in " ".join(plan("--detect", "5").split())
    assert "--detect 101" in plan("--detect", "101", code=2)
    assert "--detect: is not in the JSON" in plan("--detect", "5", "--json", code=2)
    for folder in (tmp_path / "results", tmp_path / "absent"):  # without this model, and not there yet
        assert "the variances are typical ones" in " ".join(plan("--detect", "5", "--results", folder).split())


@pytest.mark.usefixtures("word_encoder")
def test_draws_that_are_copies_count_as_one(tmp_path: Path):
    """The second draw of this retrieval has the prompts of the first and says nothing of draws."""
    made = fakes.plan(tmp_path / "task", "2,4", draws=2, selects=["dense"])
    fakes.runner(made, tmp_path / "results", fakes.FakeBackend()).run()
    stored = read_some(tmp_path / "results")
    assert sorted(set(stored.predictions["draw"])) == [0, 1]
    assert sorted(set(comparable_predictions(stored)["draw"])) == [0]
    assert detect_folder(tmp_path / "results", 5)["draws"].tolist() == [1, 2]  # at k = 4 by typical variances


def test_what_is_needed_is_said_in_words():
    row = {"task": "t", "model": "m", "k": 5, "draws": 3, "test_rows": 250, "detectable": 0.07, "wanted": 0.05}
    row |= {"draws_needed": 5.0, "rows_needed": 900.0, "buy": "draws", "variances_of": "results"}
    cases = {
        "5.0 points need 5 draws or 900 test rows; draws take fewer predictions": {},
        "5.0 points need 5 draws; more test rows alone do not suffice": {"rows_needed": np.nan},
        "5.0 points need 900 test rows; more draws alone do not suffice": {"draws_needed": np.nan, "buy": "test rows"},
        "5.0 points need more draws and more test rows": {"buy": "both"},
        "5.0 points need no more": {"buy": "nothing"},
    }
    for text, changes in cases.items():
        line, note = lines(pd.DataFrame([{**row, **changes}]))
        assert line == f"t · m, k = 5: 3 draws of 250 test rows find a difference of 7.0 points with 80% power; {text}"
        assert note.startswith("for one comparison, two-sided at 0.05;")


def test_a_points_own_calibrated_answers_are_no_pair(tmp_path: Path):
    one = fakes.runner(
        fakes.plan(tmp_path / "task", "4", draws=3, scoring="exact"), tmp_path, fakes.FakeBackend(scored=True)
    )
    one.run()
    assert detect_folder(tmp_path, 5.0)["variances_of"].tolist() != ["results"]
    assert detect_folder(tmp_path, 5.0)["k"].tolist() == [4]
