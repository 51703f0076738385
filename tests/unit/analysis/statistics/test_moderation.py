"""A curve's other ks say how far draws differ, without more false alarms."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq, minimize
from scipy.special import polygamma
from support.predictions import frame, scored

from icl_bench.analysis.findings.comparisons import retrieval_gain
from icl_bench.analysis.statistics import paired
from icl_bench.analysis.statistics.contrast import Contrast, contrast, judge
from icl_bench.analysis.statistics.moderation import DrawMeans, moderated
from icl_bench.analysis.statistics.paired import compare
from icl_bench.report.notebook import SAMPLE

BENCHMARK = Path(__file__).parents[4] / "benchmarks" / "statistics_comparisons.py"


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("statistics_comparisons", BENCHMARK)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_three_draws_of_a_curve_find_half_as_much_again_as_those_of_each_k(simulation):
    world = replace(simulation.World(), gain=0.7, test=100)
    plain, pooled, _ = simulation.rates(world, 30)
    assert pooled >= 1.5 * plain
    assert plain > 0.1


@pytest.mark.parametrize("persistent", [0.0, 1.0])
def test_without_a_difference_false_alarms_stay_rare(simulation, persistent):
    world = simulation.World(test=100, by_draw=0.8, fall=0.0, persistent=persistent)
    assert simulation.rates(world, 60).moderated <= 0.08  # 5% and two standard errors


def curve(of_draws: Sequence[np.ndarray], ks: Sequence[int]) -> tuple[list[Contrast], list[list[DrawMeans]]]:
    """Contrasts with 0 of one side whose draws have these means, ``(ks, draws)``, and its draws."""
    rng = np.random.default_rng(0)
    found, samples = [], []
    for k, means in zip(ks, of_draws, strict=True):
        scores = means[:, None] + rng.normal(0, 0.3, (len(means), 100))
        found.append(contrast(scores, np.zeros_like(scores), True))
        samples.append([DrawMeans("curve", k, np.arange(len(means)), scores.mean(axis=1))])
    return found, samples


def freedoms(contrasts: list[Contrast]) -> list[float]:
    return [found.of_draws[0][2] for found in contrasts]


KS = (1, 5, 25, 125, 625)


def prior(samples: Sequence[DrawMeans]) -> tuple[np.ndarray, float]:
    """The trend of a curve's variances and what it is worth, by ways that are plain and slow."""
    log_k = np.log([max(sample.k, 1) for sample in samples])
    seen = np.array([sample.means.var(ddof=1) for sample in samples])
    freedom = np.array([len(sample.means) - 1.0 for sample in samples])

    def unlikely(line: np.ndarray) -> float:  # of variances with a gamma distribution
        fitted = line[0] + line[1] * (log_k - log_k.mean())
        return float((freedom * (seen / np.exp(fitted) + fitted)).sum())

    found = minimize(unlikely, [np.log(seen.mean()), 0.0], options={"gtol": 1e-9}).x
    trend = np.exp(found[0] + found[1] * (log_k - log_k.mean()))
    least = int(freedom.min())
    common = np.array([sample.means[: least + 1] for sample in samples])  # the first draws
    covariance = np.cov(common / np.sqrt(trend)[:, None])
    trace, squared = np.trace(covariance), np.trace(covariance @ covariance)
    unbiased = least**2 / ((least - 1) * (least + 2)) * (squared - trace**2 / least)
    independent = min(len(samples), (trace**2 - 2 * unbiased / least) / unbiased)
    excess = np.log(seen / trend).var(ddof=2) - polygamma(1, freedom / 2).mean()
    of_scatter = np.inf
    if excess > 0:
        of_scatter = 2 * brentq(lambda half: polygamma(1, half) - excess, 0.05, 1e4)
    return trend, min(least * (independent - 2), of_scatter) / 2


FAR = {"even": [1.0] * 5, "uneven": [1.0, 4, 1, 4, 0.5], "falling": [5.0, 3, 2, 1, 0.5]}
"""How far draws differ at each k."""


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("draws", [[10] * 5, [10, 10, 8, 8, 8]], ids=["same", "fewer"])
def test_a_variance_is_shrunk_to_the_trend_by_what_the_curve_is_worth(far: str, draws: list[int]):
    rng = np.random.default_rng(3)
    means = [each * rng.normal(size=count) for each, count in zip(FAR[far], draws, strict=True)]
    contrasts, samples = curve(means, KS)
    trend, worth = prior([sample for (sample,) in samples])
    assert worth > 0.4
    for number, found in enumerate(moderated(contrasts, samples)):
        own, (sample,) = len(means[number]) - 1, samples[number]
        shrunk = (worth * trend[number] + own * sample.means.var(ddof=1)) / (worth + own)
        residual = contrasts[number].of_draws[0][1]
        assert found.of_draws == (pytest.approx((shrunk / (own + 1), residual, worth + own), rel=1e-3),)


@pytest.mark.parametrize(
    ("ks", "pooled"), [((1, 4, 16), True), ((0, 1, 4), True), ((1, 3, 12), False), ((4, 8, 60), False)]
)
def test_ks_that_lie_within_a_factor_of_four_are_one(ks: tuple[int, ...], pooled: bool):
    means = np.linalg.qr(np.random.default_rng(3).normal(size=(12, 3)))[0].T  # independent
    found = freedoms(moderated(*curve(30 * (means - means.mean(axis=1, keepdims=True)), ks)))
    assert [freedom > 11 for freedom in found] == [pooled] * 3


def test_curves_are_moderated_each_by_itself():
    rng = np.random.default_rng(3)
    curves = [curve(far * rng.normal(size=(5, 3)), KS) for far in (1, 9)]
    alone = [found for given in curves for found in moderated(*given)]
    named = [
        [sample._replace(curve=number) for sample in part]
        for number, (_, samples) in enumerate(curves)
        for part in samples
    ]
    both = [found for contrasts, _ in curves for found in contrasts]
    assert moderated(both, named) == alone


def test_draws_that_differ_alike_at_all_ks_count_once():
    means = 0.1 * np.random.default_rng(2).normal(size=(1, 3)).repeat(5, axis=0)
    found = moderated(*curve(10 * means, KS))
    assert freedoms(found) == [2] * 5


def test_independent_draws_are_pooled_but_never_beyond_the_ks_there_are():
    means = np.random.default_rng(3).normal(size=(5, 3))
    given = curve(means, KS)
    (*_, last) = freedoms(moderated(*given))
    assert 2 < last <= 2 + (5 - 2)


@pytest.mark.parametrize("ks", [(1, 5), (50, 60, 75, 90, 100)])
def test_few_or_neighbouring_ks_are_left_as_they_are(ks):
    contrasts, samples = curve(np.random.default_rng(3).normal(size=(len(ks), 3)), ks)
    assert moderated(contrasts, samples) == contrasts


def test_two_draws_are_left_as_they_are():
    contrasts, samples = curve(np.random.default_rng(3).normal(size=(5, 2)), KS)
    assert moderated(contrasts, samples) == contrasts


def test_draws_that_all_agree_are_no_trend():
    zeros = [contrast(np.ones((3, 9)), np.zeros((3, 9)), True) for _ in KS]
    samples = [[DrawMeans("curve", k, np.arange(3), np.ones(3))] for k in KS]
    assert moderated(zeros, samples) == zeros


def test_identical_draws_at_small_ks_do_not_widen_the_intervals_of_large_ones(simulation):
    world = simulation.World(test=100, by_draw=0.1, matched=False, identical=3)
    assert simulation.rates(world, 30).wider <= 2


def test_identical_draws_stay_as_they_are_and_are_no_evidence_of_the_trend():
    rng = np.random.default_rng(3)
    ks = (1, 2, 5, 25, 125, 625)
    means = [far * rng.normal(size=10) for far in (5.0, 3.0, 2.0, 1.0)]
    same = [contrast(np.tile(rng.random(100) < 0.5, (10, 1)).astype(float), np.zeros((10, 100)), True)] * 2
    contrasts, samples = curve(means, ks[2:])
    identical = [[DrawMeans("curve", k, np.arange(10), np.full(10, 0.5))] for k in ks[:2]]
    assert moderated([*same, *contrasts], [*identical, *samples]) == [*same, *moderated(contrasts, samples)]


def test_equal_means_of_different_answers_take_the_trend_of_the_nearest_k():
    rng = np.random.default_rng(3)
    means = [far * rng.normal(size=10) for far in (1.0, 2.0, 3.0, 5.0)]
    contrasts, samples = curve(means, KS[:4])
    answers = np.stack([np.roll(np.arange(100) % 2, shift) for shift in range(10)]).astype(float)
    equal = contrast(answers, np.zeros_like(answers), True)
    *others, last = moderated(
        [*contrasts, equal], [*samples, [DrawMeans("curve", 625, np.arange(10), answers.mean(axis=1))]]
    )
    assert others == moderated(contrasts, samples)
    trend, worth = prior([sample for (sample,) in samples])
    (by_draw, residual, freedom) = last.of_draws[0]
    assert residual == equal.of_draws[0][1]
    assert freedom == pytest.approx(9 + worth, rel=1e-3)
    assert by_draw == pytest.approx(worth * trend[3] / 10 / (9 + worth), rel=1e-3)


def test_the_trend_is_never_above_the_largest_variance_of_the_curve():
    draws = np.linalg.qr(np.random.default_rng(3).normal(size=(12, 5)))[0].T
    draws -= draws.mean(axis=1, keepdims=True)
    means = [far * each / each.std(ddof=1) for far, each in zip((0.1, 10, 0.1, 10, 10), draws, strict=True)]
    contrasts, samples = curve(means, KS)
    largest = max(sample.means.var(ddof=1) for (sample,) in samples)
    for found in moderated(contrasts, samples):
        assert found.of_draws[0][0] <= largest / len(draws[0]) + 1e-9


def test_published_intervals_are_hardly_wider_than_without_moderation(monkeypatch):
    columns = ["task", "model", "select", "order", "k", "draw", "test_id", "gold", "prediction"]
    rows = pd.read_parquet(SAMPLE, columns=columns).astype({"gold": str, "prediction": str})
    rows = rows[(rows["task"] == "trec") & (rows["model"] == "llama2-80k") & rows["order"].isin(["drawn", "pool"])]
    rows = rows[rows["draw"] < 3]  # of many draws nothing is moderated
    rows = rows.assign(correct=rows["gold"] == rows["prediction"], valid=True, attention="full", variant="v")
    found = retrieval_gain(rows).set_index("k")
    monkeypatch.setattr(paired, "moderated", lambda contrasts, _: contrasts)
    plain = retrieval_gain(rows).set_index("k")
    ratio = (found["ci_high"] - found["ci_low"]) / (plain["ci_high"] - plain["ci_low"])
    assert ratio.max() < 1.2
    assert ratio[2000] < 1


def test_comparisons_at_each_k_are_moderated_by_their_curve():
    rng = np.random.default_rng(5)
    ks = [2 * k for k in KS]  # one demonstration has no order
    odds = rng.normal(0, 0.12, (2, len(KS), 3, 1))
    right = rng.random((2, len(KS), 3, 120)) < 0.6 + odds
    rows = frame(
        *(
            scored(right[side, at].astype(float), k=k, order=order)
            for at, k in enumerate(ks)
            for side, order in enumerate(("drawn", "by-label"))
        )
    )
    plain = [contrast(*right[::-1, at].astype(float), True) for at in range(len(KS))]
    table = compare(rows, {"order": "drawn"})
    draws = [
        [DrawMeans("", k, np.arange(3), (right[1, at].mean(axis=1) - right[0, at].mean(axis=1)))]
        for at, k in enumerate(ks)
    ]
    assert table["p"].tolist() == pytest.approx(judge(moderated(plain, draws))[2].tolist())
    assert table["p"].tolist() != pytest.approx(judge(plain)[2].tolist())
