"""Forecasts: curves continued, wanted scores, and where the data do not tell."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from support import fakes, in_process
from support.predictions import frame, scored

from icl_bench.analysis.findings.forecast import FORECASTS, check_wanted, forecast
from icl_bench.analysis.statistics.local_trend import Continuation, continuation
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


def with_draws(means: dict[int, float], sds: dict[int, float], draws: int = 10, test: int = 250) -> pd.DataFrame:
    """Predictions whose mean shares and whose draws' deviations are these."""
    rng, parts = np.random.default_rng(0), []
    hard = (np.arange(test) + 0.5) / test
    apart = np.linspace(-1, 1, draws)
    apart /= apart.std(ddof=1)
    for k, mean in means.items():
        shares = mean + sds[k] * rng.permutation(apart)
        parts.append(scored(hard < shares[:, None], k=k, cell=f"k{k}"))
    rows = frame(*parts)
    return rows.assign(score=rows["correct"].astype(float), metric="accuracy")


def test_a_curve_that_has_levelled_off_stays_and_one_that_rises_goes_on():
    flat = told(curve({k: 0.7 if k > 1 else 0.3 for k in KS}))
    assert flat.loc[512, "low"] < 0.7 < flat.loc[512, "high"]
    rising = told(curve({k: logistic(k) for k in KS[:4]}))
    assert rising.index.tolist() == [128, 256]
    assert rising.loc[128, "gain"] > 0.02
    assert rising.loc[128, "low"] < logistic(128) < rising.loc[128, "high"]
    assert (rising["gain_low"] == rising["low"] - rising["score"]).all()


def test_a_published_curve_that_had_turned_down_is_not_forecast_to_rise():
    """TREC, llama2-32k, demonstrations by label (Bertsch et al. 2025): 61.2% was seen at k = 500."""
    means = {
        1: 40.4,
        2: 39.5,
        5: 55.6,
        10: 72.0,
        20: 77.8,
        25: 78.6,
        50: 81.7,
        75: 79.3,
        100: 80.0,
        200: 69.8,
        250: 69.2,
    }
    sds = dict(zip(means, (15.4, 15.4, 14.6, 5.1, 4.3, 3.3, 4.0, 4.6, 3.6, 6.5, 4.0), strict=True))
    rows = with_draws({k: mean / 100 for k, mean in means.items()}, {k: sd / 100 for k, sd in sds.items()})
    table = told(rows)
    assert table.loc[500, "score"] == pytest.approx(0.692, abs=0.003)
    assert table.loc[500, "gain"] < 0
    assert table.loc[500, "low"] < 0.612 < table.loc[500, "high"]


@pytest.mark.parametrize("draws", [3, 10])
def test_a_curve_that_falls_by_six_points_a_doubling_may_go_on_to_fall(draws: int):
    means = {1: 0.6, 4: 0.7, 16: 0.8, 32: 0.74, 64: 0.68, 128: 0.62}
    table = told(with_draws(means, {k: 0.1 if k < 10 else 0.025 for k in means}, draws))
    assert table.loc[256, "gain"] < -0.02
    assert table.loc[256, "low"] < 0.56 < table.loc[256, "high"]
    reported = table[table["forecast"].notna()]
    assert (reported["gain_low"] < -0.06 * np.log2(reported.index / 128)).all()


def test_a_flat_curve_has_no_gain_in_the_median():
    gains = [told(curve(dict.fromkeys(KS, 0.6), seed=seed), seed=seed)["gain"].tolist() for seed in range(12)]
    assert abs(np.mean(gains)) < 0.005
    assert np.abs(gains).max() < 0.02


def test_one_draw_is_refused_unless_it_is_a_retrieval():
    rows = curve({k: logistic(k) for k in KS}, draws=1)
    (row,) = told(rows).to_dict("records")
    assert row["reason"] == "one draw does not show how much draws differ; run 3 or more"
    assert np.isnan(row["forecast"])
    assert row["score"] == pytest.approx(logistic(256), abs=0.06)
    retrieved = told(rows.assign(select="bm25"))
    assert retrieved["forecast"].notna().any()


def test_a_wanted_score_above_a_flat_curve_has_no_k():
    for seed in range(12):
        rows = curve(dict.fromkeys(KS, 0.6), seed=seed)
        table = told(rows, wanted=rows["score"].mean() + 0.02, seed=seed)
        assert table[["k_even", "k_likely"]].isna().all(axis=None)
        assert (table["wanted_chance"] < 0.5).all()


def test_a_wanted_score_that_a_curve_had_and_lost_has_no_k():
    means = {1: 0.6, 4: 0.7, 16: 0.8, 32: 0.74, 64: 0.68, 128: 0.62}
    table = told(with_draws(means, dict.fromkeys(means, 0.02)), wanted=0.72)
    assert table.loc[256, "wanted_chance"] < 0.2
    assert table[["k_even", "k_likely"]].isna().all(axis=None)


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


def test_a_wanted_score_is_likely_from_where_the_curve_has_reached_it():
    rows = curve({k: logistic(k) for k in KS})
    table = told(rows, wanted=0.7)
    assert (table["k_even"] <= table["k_likely"]).all()
    truth = min(k for k in range(1, 1000) if logistic(k) >= 0.7)
    assert table.loc[512, "k_even"] == pytest.approx(truth, rel=0.4)
    assert table.loc[512, "wanted_chance"] > 0.9
    never = told(rows, wanted=0.99)
    assert never["k_likely"].isna().all()
    assert (never["wanted_chance"] < 0.5).all()
    assert told(rows)["wanted_chance"].isna().all()


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ({1: 0.2, 8: 0.3, 16: 0.4}, "needs 4 values of k, has 3"),
        ({10: 0.2, 20: 0.3, 40: 0.4, 70: 0.5}, "less than 8 times the smallest"),
    ],
)
def test_what_cannot_be_told_is_not_told(at: dict[int, float], why: str):
    (row,) = told(curve(at)).to_dict("records")
    assert why in row["reason"]
    assert np.isnan(row["forecast"])


def test_a_wide_interval_is_not_reported():
    table = told(curve({1: 0.1, 2: 0.12, 4: 0.2, 8: 0.45}, draws=2, test=12))
    wide = r"the 90% interval, \d+\.\d to \d+\.\d%, is wider than 35 points"
    assert table["reason"].str.fullmatch(wide).all()
    assert table[["forecast", "low", "gain"]].isna().all(axis=None)


def test_columns_are_quantiles_and_chances_of_the_continued_curve(monkeypatch: pytest.MonkeyPatch):
    """A curve that is at 60% up to k = 6, at 50% up to 100 and then at 70%, with normal errors of log-odds."""
    given: list[object] = []

    def continued(
        ks: np.ndarray, means: np.ndarray, covariance: np.ndarray, tests: int, ahead: np.ndarray
    ) -> Continuation:
        given[:] = [ks.tolist(), means.tolist(), covariance, tests]
        share = np.select([ahead <= 6, ahead <= 100], [0.6, 0.5], 0.7)
        odds = np.log((share * 9 + 0.5) / ((1 - share) * 9 + 0.5))
        return Continuation(np.ones((1, len(ahead))), odds[None], np.where(ahead > 200, 0.09, 0.01)[None], 0.04, tests)

    monkeypatch.setattr("icl_bench.analysis.findings.forecast.continuation", continued)
    rows = frame(*(scored(np.full((2, 9), right), k=k) for k, right in ((1, False), (4, True), (16, True), (64, True))))
    table = told(rows, wanted=0.65)
    assert given[:2] == [[1, 4, 16, 64], [0, 1, 1, 1]]
    assert given[2] == pytest.approx(np.zeros((4, 4)))  # all test examples are alike
    assert given[3] == 9
    assert table.index.tolist() == [128, 256]
    assert table["k"].tolist() == [64, 64]
    assert table["score"].tolist() == [1, 1]
    assert table["forecast"].tolist() == pytest.approx([0.7, 0.7])

    def score(spread: float) -> float:
        odds = np.log(6.8 / 3.2) + spread
        return (10 / (1 + np.exp(-odds)) - 0.5) / 9

    for name, way in (("low", -1.6449), ("high", 1.6449)):
        assert table[name].tolist() == pytest.approx([score(way * np.sqrt(0.05)), score(way * np.sqrt(0.13))], abs=1e-4)
    for name, of in (("gain", "forecast"), ("gain_low", "low"), ("gain_high", "high")):
        assert table[name].tolist() == (table[of] - 1).tolist()
    assert table["wanted"].tolist() == [0.65, 0.65]
    above = (np.log(6.8 / 3.2) - np.log(6.35 / 3.65)) / np.array([0.1, 0.3])
    assert table["wanted_chance"].tolist() == pytest.approx(norm.cdf(above))
    assert table["k_even"].tolist() == pytest.approx([105, 105], abs=5)
    assert table["k_likely"].tolist() == pytest.approx([105, np.nan], abs=5, nan_ok=True)
    assert table["reason"].isna().all()
    # at 60% once, but not from there on
    assert told(rows, wanted=0.55)["k_even"].tolist() == pytest.approx([105, 105], abs=5)
    assert told(rows, wanted=0.45)["k_even"].tolist() == [1, 1]


def test_points_of_fewer_draws_share_their_test_examples_with_the_others(monkeypatch: pytest.MonkeyPatch):
    """Ten equal draws say what one says: that they are fewer adds no chance to differences."""
    covariances = []

    def continued(
        ks: np.ndarray, means: np.ndarray, covariance: np.ndarray, tests: int, ahead: np.ndarray
    ) -> Continuation:
        covariances.append(covariance)
        return continuation(ks, means, covariance, tests, ahead)

    monkeypatch.setattr("icl_bench.analysis.findings.forecast.continuation", continued)
    right = np.arange(100) < 60
    rows = frame(*(scored(np.tile(right, (draws, 1)), k=k) for k, draws in ((1, 1), (4, 10), (16, 1), (64, 10))))
    assert told(rows.assign(select="bm25"))["forecast"].notna().all()
    (covariance,) = covariances
    assert np.diag(covariance) == pytest.approx(np.full(4, 0.24 / 99), rel=0.2)
    assert covariance == pytest.approx(np.full((4, 4), covariance[0, 0]), rel=0.02)


def test_ks_without_a_common_test_example_have_no_forecast():
    rows = curve({k: logistic(k) for k in KS}, test=20)
    apart = rows.assign(test_id=rows["test_id"].where(rows["k"] > 4, "other " + rows["test_id"]))
    (row,) = told(apart).to_dict("records")
    assert row["reason"] == "no test rows in common"


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
    assert "forecast: twice and four times as many demonstrations" in said("--forecast")
    (first, *_) = json.loads(said("--json", "--wanted", "60"))["forecast"]
    assert first["wanted"] == 0.6
    assert "forecast" not in said("--wanted", "60"), "it is the accuracy of answers, too"
    assert "run --wanted by itself" in said("--frontier", "--wanted", "60", code=2)
    assert "--wanted 0: a score in percent" in said("--forecast", "--wanted", "0", code=2)
    for other in ("--cost", "--cascade", "--forecast"):
        assert f"run {other} by itself" in said("--frontier", other, code=2)
        assert f"run {other} by itself" in said("--advice", "any", other, code=2)
    assert "run --advice by itself" in said("--frontier", "--advice", "any", code=2)
