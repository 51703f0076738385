"""Evidence of paired differences: its level, its variance, and what is known of a whole sweep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from icl_bench.choosing.evidence import Means, Target, by_row, log_evidence, mean_differences, radius

FREE = np.array(1e9)


def found(mean: float, variance: float, freedom: float = 1e9) -> Means:
    return Means(np.array(mean), np.array(variance), np.array(freedom))


@pytest.mark.parametrize("error", [0.02, 0.05, 0.3])
def test_the_expected_e_value_at_the_margin_is_1_whatever_the_precision(error: float) -> None:
    z = np.linspace(-36, 36, 20001)  # of precise means the largest of the three effects lies far out
    means = Means(-0.02 + error * z, np.full(z.shape, error**2), np.full(z.shape, 1e12))
    logs = log_evidence(means, 0.02) - z * z / 2
    expected = np.trapezoid(np.exp(logs), z) / np.sqrt(2 * np.pi)
    assert expected == pytest.approx(1, abs=0.01)


def test_the_e_value_is_nearly_a_martingale_of_the_information() -> None:
    # given what was seen, more information changes the expected e-value by nothing
    first, second, margin = 400.0, 900.0, 0.02  # informations
    seen = 3.0  # the first statistic
    w = np.linspace(-12, 12, 20001)
    density = np.exp(-w * w / 2) / np.sqrt(2 * np.pi)
    score = seen * np.sqrt(first) + w * np.sqrt(second - first)  # independent increments, at the null
    later = Means(score / second - margin, np.full(w.shape, 1 / second), np.full(w.shape, 1e9))
    before = found(seen / np.sqrt(first) - margin, 1 / first)
    expected = np.trapezoid(np.exp(log_evidence(later, margin)) * density, w)
    assert expected == pytest.approx(float(np.exp(log_evidence(before, margin))), rel=0.01)


def test_few_degrees_of_freedom_need_a_larger_difference() -> None:
    assert log_evidence(found(0.3, 0.01, 4), 0.02) < log_evidence(found(0.3, 0.01), 0.02)
    assert radius(found(0.3, 0.01, 4), 0.05, 0.05) > radius(found(0.3, 0.01), 0.05, 0.05)


def test_what_is_known_proves_or_refutes() -> None:
    assert log_evidence(found(-0.02, 0), 0.02) == np.inf  # worse by the margin, not by more
    assert log_evidence(found(-0.021, 0), 0.02) == -np.inf
    assert log_evidence(found(0.5, np.inf), 0.02) == -np.inf
    assert radius(found(0.5, 0), 0.05, 0.05) == 0
    assert radius(found(0.5, np.inf), 0.05, 0.05) == np.inf


def test_a_confidence_sequence_is_wider_than_an_interval_of_the_same_level() -> None:
    assert radius(found(0, 0.0004), 0.05, 0.05) > 1.96 * 0.02


answers = arrays(float, (2, 3, 7), elements=st.sampled_from([0.0, 0.5, 1.0]))


@given(answers, st.integers(1, 21))
def test_sums_of_rows_are_those_of_the_positions_asked(scores: np.ndarray, asked: int) -> None:
    rows = by_row(scores, asked)
    flat = scores.reshape(2, -1)[:, :asked]
    for row in range(7):
        own = flat[:, row::7]
        assert rows.sums[:, row] == pytest.approx(own.sum(axis=1))
        assert rows.squares[:, row] == pytest.approx((own**2).sum(axis=1))
        assert rows.counts[row] == own.shape[1]


@given(answers, answers)
def test_a_whole_sweep_is_known_and_all_that_there_could_be_is_not(one: np.ndarray, other: np.ndarray) -> None:
    differences, drawn = one - other, np.array([True, True])
    sweep = mean_differences(differences, 21, 3, drawn, "sweep")
    assert sweep.mean == pytest.approx(differences.mean(axis=(1, 2)))
    assert sweep.variance == pytest.approx(0)
    assert (mean_differences(differences, 21, 3, drawn, "new").variance > 0).all()


def test_without_draws_a_row_is_known_once_it_is_asked() -> None:
    differences = np.repeat(np.random.default_rng(0).integers(-1, 2, (1, 1, 30)), 4, axis=1).astype(float)
    drawn = np.array([False])
    whole = mean_differences(differences, 30, 4, drawn, "sweep")
    assert (whole.mean[0], whole.variance[0]) == (pytest.approx(differences.mean()), 0)
    part = mean_differences(differences, 24, 4, drawn, "sweep")
    assert 0 < part.variance[0] < mean_differences(differences, 24, 4, drawn, "new").variance[0]


def test_a_single_draw_of_what_is_drawn_says_nothing_of_other_draws() -> None:
    differences = np.ones((1, 1, 40))
    assert mean_differences(differences, 30, 1, np.array([True]), "new").variance[0] == np.inf
    assert mean_differences(differences, 40, 1, np.array([True]), "new").variance[0] == np.inf
    assert mean_differences(differences, 40, 1, np.array([True]), "sweep").variance[0] == 0


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_equal_differences_of_few_rows_say_little_of_their_other_draws(rows: int) -> None:
    """With one row and ten draws, one answer was taken as the mean of all ten."""
    seen = mean_differences(np.ones((1, 1, rows)), rows, 10, np.array([True]), "sweep")
    assert seen.variance[0] > 0
    assert log_evidence(seen, 0.02)[0] < np.log(1 / 0.05)


@pytest.mark.parametrize("target", ["sweep", "new"])
@pytest.mark.parametrize("asked", [40, 120, 200, 300, 520])
def test_the_variance_is_that_of_the_mean(asked: int, target: Target) -> None:
    draws, rows, trials = 8, 120, 3000
    rng = np.random.default_rng(asked)
    truth = 0.1
    effects = truth + 0.15 * rng.standard_normal((trials, draws, 1)) + 0.25 * rng.standard_normal((trials, 1, rows))
    grid = effects + 0.3 * rng.standard_normal((trials, draws, rows))
    seen = mean_differences(grid_in_order(grid), asked, draws, np.ones(trials, dtype=bool), target)
    error = seen.mean - (truth if target == "new" else grid.mean(axis=(1, 2)))
    ratio = seen.variance.mean() / (error**2).mean()
    # balanced turns of draws leave less error than the variance of independent draws says
    assert 0.9 < ratio < 3.0


@pytest.mark.parametrize("draws", [2, 3, 10])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_before_all_rows_are_asked_their_other_draws_are_unknown_too(draws: int, share: float) -> None:
    """Draws of a row differ here as much as rows do: half of the answers of a first pass tell less than half."""
    rows, trials = 200, 3000
    rng = np.random.default_rng(draws)
    grid = rng.standard_normal((trials, draws, rows))
    seen = mean_differences(grid_in_order(grid), int(share * rows), draws, np.ones(trials, dtype=bool), "sweep")
    ratio = seen.variance.mean() / np.square(seen.mean - grid.mean(axis=(1, 2))).mean()
    assert 0.93 < ratio < 1.12


def grid_in_order(grid: np.ndarray) -> np.ndarray:
    """Scores ``(n, draws, rows)`` in the order of the schedule."""
    trials, draws, rows = grid.shape
    passes, row = np.divmod(np.arange(draws * rows), rows)
    return grid[:, (row + passes) % draws, row].reshape(trials, draws, rows)


@settings(max_examples=30)
@given(answers)
def test_the_order_of_candidates_turns_the_sign(scores: np.ndarray) -> None:
    drawn = np.array([True, True])
    for asked in (5, 7, 10, 21):
        one = mean_differences(scores - scores[::-1], asked, 3, drawn, "new")
        assert one.mean[0] == pytest.approx(-one.mean[1])
        assert one.variance[0] == pytest.approx(one.variance[1])


@pytest.mark.parametrize(("kind", "most"), [("normal", 0.05), ("binary", 0.05)])
def test_looking_fifty_times_errs_in_at_most_one_of_twenty(kind: str, most: float) -> None:
    margin, paths, rng = 0.05, 2000, np.random.default_rng(11)
    if kind == "normal":
        scores = np.clip(rng.normal(-margin, 0.3, (paths, 1, 1001)), -1, 1)
    else:  # as answers are: equal, or one of them right
        scores = rng.choice([-1.0, 0.0, 1.0], (paths, 1, 1001), p=[0.15, 0.75, 0.10])
    ever, at_a_time = np.zeros(paths, dtype=bool), np.zeros(paths, dtype=bool)
    for asked in range(20, 1001, 20):
        seen = mean_differences(scores, asked, 1, np.zeros(paths, dtype=bool), "new")
        ever |= log_evidence(seen, margin) >= np.log(1 / 0.05)
        at_a_time |= (seen.mean + margin) / np.sqrt(seen.variance) > 1.645  # what holds for one look alone
    assert 0.005 < ever.mean() <= most
    assert at_a_time.mean() > 3 * most
