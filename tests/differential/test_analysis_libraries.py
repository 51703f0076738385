"""The analysis beside SciPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from icl_bench.analysis.findings.calibration import reliability
from icl_bench.analysis.findings.label_bias import confusions, label_frequencies
from icl_bench.analysis.statistics.bootstrap import means, resample
from icl_bench.analysis.statistics.contrast import Contrast, judge
from icl_bench.analysis.statistics.shares import share_interval

SETTING = ["task", "model", "select", "order", "attention", "variant"]


def frame(draws: int, test: int, **columns: object) -> pd.DataFrame:
    """Predictions of one point."""
    rows = {
        "k": 5,
        "draw": np.repeat(np.arange(draws), test),
        "test_id": np.tile([f"row {i}" for i in range(test)], draws),
    }
    return pd.DataFrame({**dict.fromkeys(SETTING, "x"), **rows, **columns})


@pytest.mark.parametrize("examples", [3, 20, 250])
@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_one_draws_test_is_scipys_t_test_of_paired_examples(examples, alternative):
    first, second = np.random.default_rng(examples).random((2, examples))
    difference = first - second
    found = Contrast(0, 0, difference.mean(), difference.var(ddof=1) / examples, examples, ())
    low, high, p = judge([found], alternative)
    expected = stats.ttest_rel(first, second, alternative=alternative)
    assert p[0] == pytest.approx(expected.pvalue)
    limits = stats.ttest_rel(first, second).confidence_interval()
    assert (low[0], high[0]) == pytest.approx((limits.low, limits.high))


@pytest.mark.parametrize("draws", [2, 3, 10])
def test_where_draws_alone_matter_the_test_is_scipys_t_test_of_their_means(draws):
    by_draw = np.random.default_rng(draws).normal(0.3, 1, draws)
    square = float(by_draw.var(ddof=1)) / draws
    found = Contrast(0, 0, by_draw.mean(), 1e-15, 10**6, ((square, 0.0, draws - 1),))
    low, high, p = judge([found])
    expected = stats.ttest_1samp(by_draw, 0)
    limits = expected.confidence_interval()
    assert p[0] == pytest.approx(expected.pvalue, rel=1e-3)
    assert (low[0], high[0]) == pytest.approx((limits.low, limits.high), rel=1e-3)


@pytest.mark.parametrize("squares", [(1.0, 1.0), (0.2, 2.0)])
@pytest.mark.parametrize("centre", [2.0, 4.0])
def test_p_of_two_samples_of_draws_is_that_of_very_many_simulated_variances(squares, centre):
    rng = np.random.default_rng(0)
    parts = tuple((square, 0.3, freedom) for square, freedom in zip(squares, (2, 9), strict=True))
    variance = 0.5 + sum(
        np.maximum(square * freedom / rng.chisquare(freedom, 10**6) - residual, 0)
        for square, residual, freedom in parts
    )
    (p,) = judge([Contrast(0, 0, centre, 0.5, 10**6, parts)])[2]
    assert p == pytest.approx(2 * stats.norm.sf(centre / np.sqrt(variance)).mean(), rel=0.05)


def test_one_draws_bootstrap_is_scipys():
    scores = np.random.default_rng(0).random(200)
    expected = stats.bootstrap(
        (scores,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(2)
    )
    counts = resample(np.random.default_rng(1), 20_000, 1, len(scores))
    found = np.quantile(means(scores[None], counts), [0.025, 0.975])
    limits = expected.confidence_interval
    # scipy's does not stretch by sqrt(n / (n - 1))
    assert found.tolist() == pytest.approx([limits.low, limits.high], abs=3e-3)


@pytest.mark.parametrize(("hits", "tries"), [(0, 9), (1, 9), (70, 80), (80, 80)])
def test_a_share_of_one_draw_has_scipys_wilson_limits(hits, tries):
    right, counts = np.zeros((1, 200)), np.zeros((1, 200))
    counts[0, :tries], right[0, :hits] = 1, 1
    _, low, high = share_interval(right, counts)
    expected = stats.binomtest(hits, tries).proportion_ci(0.95, "wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("bins", [2, 7, 10])
def test_a_reliability_curve_is_scikit_learns(bins):
    curve = pytest.importorskip("sklearn.calibration").calibration_curve
    rng = np.random.default_rng(bins)
    probability = rng.random(3 * 50).round(2)  # with ties
    correct = rng.random(150) < probability
    rows = frame(3, 50, probability=probability, label_mass=1.0, correct=correct)
    found = reliability(rows, bins)
    accuracy, mean = curve(correct, probability, n_bins=bins, strategy="quantile")
    assert found["accuracy"].tolist() == pytest.approx(accuracy.tolist())
    assert found["probability"].tolist() == pytest.approx(mean.tolist())


def test_frequencies_and_confusions_are_scikit_learns_confusion_matrix():
    confusion_matrix = pytest.importorskip("sklearn.metrics").confusion_matrix
    rng = np.random.default_rng(0)
    gold, said = rng.choice(list("abcd"), 400), rng.choice(list("abcde"), 400)
    rows = frame(4, 100, gold=gold, prediction=said, correct=gold == said)
    matrix = confusion_matrix(gold, said, labels=list("abcde"))
    frequencies = label_frequencies(rows).set_index("label")
    assert (frequencies["gold"] * 400).tolist() == pytest.approx(matrix.sum(axis=1).tolist())
    assert (frequencies["predicted"] * 400).tolist() == pytest.approx(matrix.sum(axis=0).tolist())
    found = confusions(rows, top=100)
    places = [[*map("abcde".index, found[side])] for side in ("gold", "prediction")]
    assert found["count"].tolist() == matrix[tuple(places)].tolist()
    assert found["count"].sum() == matrix.sum() - np.trace(matrix)
