"""Forecasts: curves continued, wanted scores, and where the data do not tell."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal
from support import fakes, in_process
from support.predictions import frame, scored

from icl_bench.analysis.findings.forecast import FORECASTS, check_wanted, forecast
from icl_bench.analysis.statistics import saturating
from icl_bench.analysis.statistics.saturating import DEVIATION, MEAN, SCATTER, Curves, likely_curves
from icl_bench.errors import UserError

KS = (1, 4, 16, 64, 256)


def curve(at: dict[int, float], draws: int = 3, test: int = 400, seed: int = 1) -> pd.DataFrame:
    """Predictions with these shares of right answers; a test example is as hard at every k."""
    rng, parts = np.random.default_rng(seed), []
    hard = rng.random((1, test))
    for k, share in at.items():
        noise = 0.05 * rng.standard_normal((draws, test))
        parts.append(scored((hard + noise < share), k=k, cell=f"k{k}"))
    rows = frame(*parts)
    return rows.assign(score=rows["correct"].astype(float), metric="accuracy")


def logistic(k: float) -> float:
    return 0.2 + 0.6 / (1 + (20 / k) ** 1.2)


def told(rows: pd.DataFrame, wanted: float | None = None, seed: int = 0) -> pd.DataFrame:
    return forecast(rows, np.random.default_rng(seed), wanted).set_index("next_k")


def test_a_curve_that_has_levelled_off_stays_and_one_that_rises_goes_on():
    flat = told(curve({k: 0.7 if k > 1 else 0.3 for k in KS}))
    assert flat.loc[512, "low"] < 0.7 < flat.loc[512, "high"]
    assert abs(flat.loc[512, "gain"]) < 0.03
    rising = told(curve({k: logistic(k) for k in KS[:4]}))
    assert rising.index.tolist() == [128, 256]
    assert rising.loc[128, "gain"] > 0.04
    assert rising.loc[128, "low"] < logistic(128) < rising.loc[128, "high"]
    widths = rising["high"] - rising["low"]
    assert widths.is_monotonic_increasing
    assert (rising["gain_low"] == rising["low"] - rising["score"]).all()


def test_intervals_hold_what_is_seen_later():
    """Curves drawn at random: nine of ten intervals hold what is seen at twice as many."""
    rng, held = np.random.default_rng(8), []
    for seed in range(40):
        low, gain = rng.uniform(0.1, 0.4), rng.uniform(0.1, 0.5)
        place, steep = rng.uniform(0.5, 6), rng.uniform(0.6, 2.5)

        def share(k: int, o=(low, gain, place, steep)) -> float:
            return o[0] + o[1] / (1 + np.exp(-o[3] * (np.log(k) - o[2])))

        whole = curve({k: share(k) for k in (*KS, 512)}, seed=seed)
        table = told(whole[whole["k"] < 512], seed=seed)
        seen = whole.loc[whole["k"] == 512, "score"].mean()
        held.append(table.loc[512, "low"] <= seen <= table.loc[512, "high"])
    assert np.mean(held) >= 0.85


def test_a_wanted_score_is_likely_from_where_most_curves_have_reached_it():
    rows = curve({k: logistic(k) for k in KS})
    table = told(rows, wanted=0.75)
    assert (table["k_even"] <= table["k_likely"]).all()
    truth = min(k for k in range(1, 1000) if logistic(k) >= 0.75)
    assert table.loc[512, "k_even"] == pytest.approx(truth, rel=0.4)
    assert table.loc[512, "wanted_chance"] > 0.9
    never = told(rows, wanted=0.99)
    assert never["k_likely"].isna().all()
    assert (never["wanted_chance"] < 0.5).all()
    assert told(rows)["wanted_chance"].isna().all()


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ({1: 0.2, 8: 0.3, 16: 0.4}, "asked at 3 k; ask at 4 or more"),
        ({10: 0.2, 20: 0.3, 40: 0.4, 70: 0.5}, "less than 8 times the smallest"),
    ],
)
def test_what_cannot_be_told_is_not_told(at: dict[int, float], why: str):
    (row,) = told(curve(at)).to_dict("records")
    assert why in row["reason"]
    assert np.isnan(row["forecast"])


def test_an_interval_that_says_nothing_is_not_given(monkeypatch: pytest.MonkeyPatch):
    rows = curve({1: 0.1, 2: 0.12, 4: 0.2, 8: 0.45}, draws=2, test=12)
    table = told(rows)
    assert table["reason"].notna().any()
    assert table.loc[table["reason"].notna(), ["forecast", "low", "gain"]].isna().all(axis=None)
    assert table["reason"].dropna().str.contains("would be no surprise").all()
    monkeypatch.setattr(saturating, "LEAST_KEPT", 10**9)
    (row,) = told(curve(dict.fromkeys(KS, 0.5))).to_dict("records")
    assert row["reason"] == "no curve that rises and levels off explains it"


def stepping(at: dict[float, int], low: float = 0.5, high: float = 0.6) -> Curves:
    """Curves without scatter: so many that step up at each of these k."""
    places = np.repeat(np.log(list(at)), list(at.values()))
    cells = np.column_stack([places, np.full(len(places), 100.0), places, np.ones(len(places)), np.zeros(len(places))])
    return Curves(cells, np.tile([low, high - low, 0.0], (len(places), 1)))


def test_what_is_told_is_counted_among_the_likely_curves(monkeypatch: pytest.MonkeyPatch):
    given = []

    def likely(ks: np.ndarray, means: np.ndarray, covariance: np.ndarray, rng: object) -> Curves:
        given.extend([ks.tolist(), means.tolist(), covariance])
        return stepping({2.5: 5, 6.5: 4, 200.5: 1})

    monkeypatch.setattr("icl_bench.analysis.findings.forecast.likely_curves", likely)
    rows = frame(*(scored(np.full((2, 9), right), k=k) for k, right in ((1, False), (4, True), (16, True), (64, True))))
    table = told(rows, wanted=0.55)
    assert given[:2] == [[1, 4, 16, 64], [0, 1, 1, 1]]
    assert given[2] == pytest.approx(1e-6 * np.eye(4))  # all test examples are alike
    assert table.index.tolist() == [128, 256]
    assert table["k"].tolist() == [64, 64]
    assert table["score"].tolist() == [1, 1]
    assert table["forecast"].tolist() == pytest.approx([0.6, 0.6], abs=0.003)
    # at 128 one of ten has not stepped: 5% lie 0.45 of the way up
    assert table["low"].tolist() == pytest.approx([0.545, 0.6], abs=0.004)
    assert table["high"].tolist() == pytest.approx([0.6, 0.6], abs=0.004)
    for name, of in (("gain", "forecast"), ("gain_low", "low"), ("gain_high", "high")):
        assert table[name].tolist() == (table[of] - 1).tolist()
    assert table["wanted"].tolist() == [0.55, 0.55]
    assert table["k_even"].tolist() == [3, 3]
    assert table["k_likely"].tolist() == [7, 7]
    assert table["wanted_chance"].tolist() == [0.9, 1]
    assert table["reason"].isna().all()
    some = {2.5: 4, 100.5: 4, 200.5: 2}
    monkeypatch.setattr("icl_bench.analysis.findings.forecast.likely_curves", lambda *_: stepping(some))
    (first, second) = told(rows, wanted=0.55).to_dict("records")
    assert (first["wanted_chance"], second["wanted_chance"]) == (0.8, 1)
    assert 100 < first["k_even"] <= 115
    assert np.isnan(first["k_likely"])
    assert 200 < second["k_likely"] <= 230
    wide = stepping({2.5: 5, 300.5: 5}, 0.1, 0.9)
    monkeypatch.setattr("icl_bench.analysis.findings.forecast.likely_curves", lambda *_: wide)
    (first, _) = told(rows).to_dict("records")
    said = r"anything from (9\.\d|10\.\d) to (89\.\d|90\.\d)% would be no surprise"
    assert re.fullmatch(said, first["reason"])
    assert np.isnan(first["low"])
    assert first["score"] == 1


def test_what_is_seen_scatters_about_the_curve_and_stays_between_0_and_1():
    rng = np.random.default_rng(0)
    cells = np.tile([0.0, 1.0, 1.0, 1.0, 0.03], (20_000, 1))
    for level, heights in ((0.0, [0.0, 0, 0]), (1.0, [1.0, 0, 0])):
        seen = Curves(cells, np.tile(heights, (20_000, 1))).seen(5, 0.0016, rng)
        assert (seen == level).mean() == pytest.approx(0.5, abs=0.02)
        assert 0 <= seen.min() < seen.max() <= 1
    seen = Curves(cells, np.tile([0.5, 0, 0], (20_000, 1))).seen(5, 0.0016, rng)
    assert seen.std() == pytest.approx(0.05, rel=0.03)  # of 0.03 and 0.04
    assert seen.mean() == pytest.approx(0.5, abs=0.002)


def test_what_a_forecast_is_of_stands_beside_it():
    rows = curve(dict.fromkeys((5, 10, 20, 40), 0.5), draws=2)  # eight times the smallest is enough
    more = frame(rows, rows[rows["k"] > 5].assign(draw=lambda t: t["draw"] + 2))
    one = curve(dict.fromkeys((5, 10, 20, 40), 0.5), draws=1)
    table = told(
        frame(
            more,
            one.assign(task="u"),
            one.assign(task="v", select="bm25", order="relevance"),
            one[one["k"] < 20].assign(task="w"),
        )
    )
    found = table.reset_index().drop_duplicates("task").set_index("task")
    assert found["draws"].tolist() == [2, 1, 1, 1]
    assert found["points"].tolist() == [4, 4, 4, 2]
    assert found["k"].tolist() == [40, 40, 40, 10]
    assert found["metric"].tolist() == ["accuracy"] * 4
    assert found["interval_over"].tolist() == [
        "draws and test examples",
        "test examples only",
        "draws and test examples",
        "test examples only",
    ]
    assert found["reason"].isna().tolist() == [True, True, True, False]
    assert found.loc["t", "score"] == pytest.approx(more[more["k"] == 40]["correct"].mean())
    assert list(forecast(rows.iloc[:0], np.random.default_rng(0)).columns) == list(
        forecast(rows, np.random.default_rng(0)).columns
    )


def test_ks_without_a_common_test_example_have_no_forecast():
    rows = curve({k: logistic(k) for k in KS}, test=20)
    apart = rows.assign(test_id=rows["test_id"].where(rows["k"] > 4, "other " + rows["test_id"]))
    (row,) = told(apart).to_dict("records")
    assert row["reason"] == "no test examples in common"


def test_reorderings_and_single_points_beside_curves_are_not_printed():
    shown = FORECASTS.printed.rows
    table = pd.DataFrame({"order": ["drawn", "shuffled:1", "drawn"], "points": [5, 5, 1]})
    assert shown(table).index.tolist() == [0]
    assert shown(table.iloc[1:]).index.tolist() == [2]
    assert shown(table.assign(points=[2, 5, 1])).index.tolist() == [0]


def test_zero_demonstrations_are_no_point_and_bounds_of_trainings_no_curve():
    rows = curve({k: logistic(k) for k in KS})
    zero = rows[rows["k"] == 1].assign(k=0)
    more = told(frame(rows, zero, rows.assign(select="lora-paper")))
    assert len(more) == 2
    assert (more["points"] == len(KS)).all()


def test_the_posterior_of_a_cell_is_that_of_conjugate_regression(monkeypatch: pytest.MonkeyPatch):
    """Two cells: their odds and heights by the normal densities themselves."""
    cells = np.array([[1.0, 1.4, 4.0, 1.4, 0.015], [2.0, 0.7, 5.0, 2.8, 0.015]])
    monkeypatch.setattr(saturating, "_cells", lambda: cells)
    ks, means = np.array([1.0, 5.0, 25.0, 125.0]), np.array([0.3, 0.42, 0.5, 0.68])
    chance = 0.02**2 * (np.eye(4) + 0.5)
    found = likely_curves(ks, means, chance, np.random.default_rng(0), number=100_000)
    assert isinstance(found, Curves)
    assert found.at(25.0).shape == (100_000,)
    density, expected = [], []
    for cell in cells:
        design = np.stack(
            [np.ones(4), *(1 / (1 + np.exp(-cell[i + 1] * (np.log(ks) - cell[i]))) for i in (0, 2))], axis=1
        )
        noise = chance + SCATTER[1] ** 2 * np.eye(4)
        prior = np.diag(DEVIATION**2)
        whole = design @ prior @ design.T + noise
        density.append(multivariate_normal(design @ MEAN, whole).pdf(means))
        gain = prior @ design.T @ np.linalg.inv(whole)
        expected.append((MEAN + gain @ (means - design @ MEAN), prior - gain @ design @ prior))
    # what leaves 0 to 1 or falls is thrown away, so that is done here too
    rng, share, mean = np.random.default_rng(1), [], []
    for middle, spread in expected:
        heights = rng.multivariate_normal(middle, spread, size=200_000)
        good = (heights >= 0).all(axis=1) & (heights.sum(axis=1) <= 1)
        share.append(good.mean())
        mean.append(heights[good].mean(axis=0))
    odds = np.array(density) * share
    first = found.cells[:, 0] == 1.0
    assert first.mean() == pytest.approx(odds[0] / odds.sum(), abs=0.01)
    assert found.heights[first].mean(axis=0) == pytest.approx(mean[0], abs=0.005)
    assert found.heights[~first].mean(axis=0) == pytest.approx(mean[1], abs=0.005)


@pytest.mark.parametrize("percents", [0, -1, 100.1, float("nan"), float("inf")])
def test_wanted_is_a_share_in_percent(percents: float):
    with pytest.raises(UserError, match="--wanted"):
        check_wanted(percents)
    assert check_wanted(85) == 0.85
    assert check_wanted(100) == 1


def test_the_command_prints_forecasts_where_they_are_asked_for(tmp_path: Path):
    made = fakes.plan(tmp_path / "task", "1,2,4,8", draws=2)
    fakes.runner(made, tmp_path / "results", fakes.FakeBackend()).run()

    said = partial(in_process.said, "summary", "--results", tmp_path / "results")
    assert "forecast" not in said()
    assert "forecast: what more demonstrations would bring" in said("--forecast")
    (first, *_) = json.loads(said("--json", "--wanted", "60"))["forecast"]
    assert first["wanted"] == 0.6
    assert "--wanted: goes with --forecast" in said("--wanted", "60", code=2)
    assert "--wanted 0: a score in percent" in said("--forecast", "--wanted", "0", code=2)
    for other in ("--cost", "--cascade", "--forecast"):
        assert f"run {other} by itself" in said("--frontier", other, code=2)
        assert f"run {other} by itself" in said("--advice", "any", other, code=2)
    assert "run --advice by itself" in said("--frontier", "--advice", "any", code=2)
