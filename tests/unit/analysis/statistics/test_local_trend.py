"""Continued curves: the posterior of a Gaussian process, its quantiles and its chances."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from icl_bench.analysis.statistics import local_trend
from icl_bench.analysis.statistics.local_trend import (
    LEVEL,
    MEMORY,
    RATE,
    SLOPE,
    STEP,
    UNSTEADY,
    Continuation,
    continuation,
)

KS = np.array([2.0, 8, 16, 64])


def integrated(places: np.ndarray) -> np.ndarray:
    """The covariance of a curve without steps, from sums of its slopes over short stretches."""
    step = 1 / 200
    steps = np.arange(0, places.max(), step) + step / 2
    slopes = SLOPE**2 * np.exp(-np.abs(steps[:, None] - steps) / MEMORY)
    passed = (steps < places[:, None]) * step
    return LEVEL**2 + passed @ slopes @ passed.T


def test_the_posterior_is_that_of_jointly_normal_points():
    tests, ahead = 100, np.array([128.0, 256.0])
    means = np.array([0.31, 0.42, 0.50, 0.61])
    chance = 0.02**2 * np.diag([4.0, 2, 1, 1]) + 0.05**2  # what all points have in common is no noise
    found = continuation(KS, means, chance, tests, ahead)
    places = np.log2(np.append(KS, ahead) / KS[0])
    odds = np.log((means * tests + 0.5) / (tests - means * tests + 0.5))
    share = 1 / (1 + np.exp(-odds))
    binomial = share * (1 - share)
    own = 0.02**2 * np.array([3.0, 2.25, 1.25, 1.0])  # half of each difference's variance, mean of both sides
    noise = own / binomial**2 + UNSTEADY / (tests * binomial)
    gaps = np.diff(np.log2(KS))
    none = np.exp(-RATE * gaps)
    chances = [*(none.prod() / none * (1 - none)), none.prod()]  # of one step in each gap, and of none
    density, expected = [], []
    for first, chance_here in zip((1, 2, 3, 6), chances, strict=True):
        stepped = np.arange(6) >= first
        whole = integrated(places) + STEP**2 * np.outer(stepped, stepped)
        seen = whole[:4, :4] + np.diag(noise)
        density.append(chance_here * multivariate_normal(np.zeros(4), seen).pdf(odds))
        gain = whole[4:, :4] @ np.linalg.inv(seen)
        expected.append((gain @ odds, np.diag(whole[4:, 4:] - gain @ whole[:4, 4:])))
    beyond = 1 - np.exp(-RATE * np.array([1, 2]))
    weights = np.array(density)[:, None] / sum(density)
    assert found.weights[:4] == pytest.approx(weights * (1 - beyond), rel=0.01)
    assert found.weights[4:] == pytest.approx(weights * beyond, rel=0.01)
    variances = np.array([spread for _, spread in expected])
    for half, more in ((slice(4), 0), (slice(4, 8), STEP**2)):
        assert found.means[half] == pytest.approx(np.array([middle for middle, _ in expected]), abs=0.003)
        assert found.variances[half] == pytest.approx(variances + more, rel=0.01)
    assert found.noise == pytest.approx(noise[-1])


def test_a_step_is_seen_and_what_comes_before_it_is_not_raised():
    means, ahead = np.array([0.3, 0.31, 0.3, 0.6]), np.array([3.0, 12, 64, 65, 128])
    curve = continuation(KS, means, 1e-5 * np.eye(4), 250, ahead)
    assert curve.weights[2, 2] > 0.9  # between the third k and the fourth
    middles = curve.quantile(0.5)
    assert middles[:2] == pytest.approx([0.3, 0.3], abs=0.02)
    assert middles[2:] == pytest.approx([0.6] * 3, abs=0.03)
    # no further step up to the last k, and one at RATE beyond it
    assert curve.weights[4:].sum(axis=0) == pytest.approx(1 - np.exp(-RATE * np.log2([1, 1, 1, 65 / 64, 2])))


def test_quantiles_and_chances_are_those_of_sampled_curves():
    rng, weights, tests = np.random.default_rng(0), np.array([[0.2], [0.8]]), 50
    means, variances = np.array([[0.0, 2.0], [1.0, 3.0]]), np.array([[0.5, 1.0], [0.1, 0.2]])
    curve = Continuation(weights, means, variances, 0.3, tests)
    which = rng.choice(2, size=200_000, p=weights[:, 0])
    own = means[which] + np.sqrt(variances[which]) * rng.standard_normal((200_000, 2))
    seen = own + np.sqrt(0.3) * rng.standard_normal(own.shape)
    scores = ((1 / (1 + np.exp(-seen)) * 51 - 0.5) / 50).clip(0, 1)
    for share in (0.05, 0.5, 0.95):
        assert curve.quantile(share) == pytest.approx(np.quantile(scores, share, axis=0), abs=0.005)
    reached = (own >= np.log((0.8 * 50 + 0.5) / (0.2 * 50 + 0.5))).mean(axis=0)
    assert curve.reached(0.8) == pytest.approx(reached, abs=0.005)


def test_scores_stay_between_none_and_all_right():
    for level in (0.0, 1.0):
        curve = continuation(KS, np.full(4, level), np.zeros((4, 4)), 20, np.array([128.0]))
        edges = [float(curve.quantile(share)[0]) for share in (0.0001, 0.5, 0.9999)]
        assert 0 <= edges[0] <= edges[1] <= edges[2] <= 1
        assert edges[1] == pytest.approx(level, abs=0.01)
        assert edges[2] - edges[0] > 0.01  # a few answers may yet be others


@pytest.mark.parametrize("level", [0.2, 0.5, 0.9])
def test_a_flat_curve_stays_flat_and_its_mirror_image_mirrors(level: float):
    rng, ahead = np.random.default_rng(1), np.array([128.0, 256.0])
    flat = continuation(KS, np.full(4, level), 1e-4 * np.eye(4), 250, ahead)
    assert flat.quantile(0.5) == pytest.approx(np.full(2, level), abs=0.003)
    means = level + 0.05 * rng.standard_normal(4)
    up, down = (continuation(KS, curve, 1e-4 * np.eye(4), 250, ahead) for curve in (means, 1 - means))
    assert up.quantile(0.05) == pytest.approx(1 - down.quantile(0.95), abs=1e-6)


def test_a_slope_goes_on_for_a_while_and_is_damped():
    means = 1 / (1 + np.exp(-0.3 * np.log2(KS)))
    curve = continuation(KS, means, 1e-6 * np.eye(4), 250, KS[-1] * 2.0 ** np.array([1, 2, 12, 13]))
    gains = np.diff(np.append(np.log(means[-1] / (1 - means[-1])), (curve.weights * curve.means).sum(axis=0)))
    assert 0.15 < gains[1] < gains[0] < 0.3
    assert 0 < gains[3] < gains[1] / 3


def test_noisier_points_give_wider_quantiles(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local_trend, "RATE", 0.0)
    widths = []
    for variance in (1e-6, 1e-3):
        curve = continuation(KS, np.full(4, 0.5), variance * np.eye(4), 250, np.array([128.0]))
        # what is seen varies by the curve itself and by the noise of the last point
        spread = np.sqrt(curve.variances[3, 0] + variance / 0.25**2 + UNSTEADY / (250 * 0.25))
        odds = norm.ppf(0.95) * spread
        assert curve.quantile(0.95)[0] == pytest.approx((251 / (1 + np.exp(-odds)) - 0.5) / 250, abs=1e-6)
        widths.append(spread)
    assert widths[1] > 1.1 * widths[0]
