"""Whether probabilities are as right as they say: curves, errors and what chance adds to them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from support.predictions import cell, frame, scored

from icl_bench.analysis.findings.calibration import calibration_error, equal_bins, reliability


def answered(rng: np.random.Generator, draws: int = 3, test: int = 250, temperature: float = 1.0) -> pd.DataFrame:
    """Answers given with some probability, and right with another unless ``temperature`` is 1."""
    odds = rng.normal(1, 1.5, (1, test)) + rng.normal(0, 0.5, (draws, test))
    rows = scored(rng.random((draws, test)) < expit(odds / temperature))
    return rows.assign(probability=0.8 * expit(odds).ravel(), label_mass=0.8)


def error_of(rows: pd.DataFrame, seed: int = 0) -> pd.Series:
    return calibration_error(rows, np.random.default_rng(seed), resamples=200).iloc[0]


def test_bins_hold_equal_numbers_of_predictions():
    values = np.random.default_rng(0).random(1000)
    assert np.bincount(equal_bins(values, 8)).tolist() == [125] * 8
    assert values[equal_bins(values, 8) == 0].max() < values[equal_bins(values, 8) == 1].min()


def test_equal_probabilities_are_never_parted():
    values = np.repeat([0.25, 0.5, 0.75], [10, 80, 10])
    assert len({(value, b) for value, b in zip(values, equal_bins(values, 10), strict=True)}) == 3


def test_a_bin_has_the_mean_probability_and_the_accuracy_of_its_predictions():
    rows = cell("abbb").assign(probability=[0.5, 0.1, 0.3, 0.8], label_mass=1.0)
    found = reliability(rows, bins=2)
    columns = ["bin", "probability", "accuracy", "predictions"]
    assert found[columns].to_numpy().tolist() == [[0, 0.2, 0.5, 2], [1, 0.65, 1, 2]]


def test_probabilities_are_of_the_labels_alone_unless_taken_raw():
    rows = cell("aabb").assign(probability=0.4, label_mass=0.5)
    assert reliability(rows)["probability"].tolist() == [0.8]
    assert reliability(rows, normalise=False)["probability"].tolist() == [0.4]
    assert error_of(rows)["error"] == pytest.approx(0.2)
    raw = calibration_error(rows, np.random.default_rng(0), normalise=False)
    assert raw["error"][0] == pytest.approx(0.6)


def test_the_error_is_the_mean_distance_of_the_reliability_curve():
    rows = answered(np.random.default_rng(0), temperature=2)
    table = reliability(rows)
    distance = (table["probability"] - table["accuracy"]).abs()
    expected = (distance * table["predictions"]).sum() / table["predictions"].sum()
    assert error_of(rows)["error"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("draws", "temperature"),
    [pytest.param(1, 1, marks=pytest.mark.thorough), (1, 2), (3, 1), pytest.param(3, 2, marks=pytest.mark.thorough)],
)
def test_limits_hold_the_true_error(draws, temperature):
    rng = np.random.default_rng([draws, temperature])
    # the true error of a calibrated model is 0; else from very many answers
    many = answered(np.random.default_rng(9), 50, 2000, temperature)
    true = 0.0 if temperature == 1 else reliability_error(many)
    found = [error_of(answered(rng, draws, temperature=temperature), i) for i in range(50)]
    assert np.mean([row["ci_low"] <= true <= row["ci_high"] for row in found]) >= 0.93
    assert all(row["ci_low"] <= row["error"] <= row["ci_high"] for row in found)
    if temperature == 2:
        assert np.mean([row["ci_low"] > 0 for row in found]) > 0.6


def reliability_error(rows: pd.DataFrame) -> float:
    table = reliability(rows)
    return float(np.average(abs(table["probability"] - table["accuracy"]), weights=table["predictions"]))


def test_predictions_without_a_probability_are_left_out_and_counted():
    rows = cell("abbb").assign(probability=[0.5, None, 0.3, 0.8], label_mass=1.0)
    assert reliability(rows)["predictions"].sum() == 3
    found = error_of(rows)
    assert (found["predictions"], found["left_out"]) == (3, 1)


def test_random_gaps_of_5_percent_leave_all_predictions_in_and_the_limits_as_they_were():
    """The part that is complete in all of ten draws has 60% of them."""
    rng = np.random.default_rng(0)
    rows = answered(rng, draws=10, temperature=2)
    kept = rows[rng.random(len(rows)) >= 0.05]
    whole, found = error_of(rows), error_of(kept)
    assert (found["predictions"], found["left_out"]) == (len(kept), 0)
    names = ["error", "ci_low", "ci_high"]
    assert found[names].tolist() == pytest.approx(whole[names].tolist(), abs=0.01)


def test_hard_rows_that_fail_in_some_draws_move_the_error_little():
    moved = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = answered(rng, draws=10, temperature=2)
        by_row = rows.groupby("test_id")["correct"].transform("mean").to_numpy()
        kept = rows[rng.random(len(rows)) >= np.where(by_row < 0.6, 0.4, 0.0)]
        moved.append(error_of(kept)["error"] - error_of(rows)["error"])
    assert abs(np.mean(moved)) < 0.005


@pytest.mark.parametrize("draws", [3, 10])
def test_limits_hold_the_true_error_with_gaps(draws):
    rng = np.random.default_rng(draws)
    true = reliability_error(answered(np.random.default_rng(9), 50, 2000, 2))
    held = []
    for seed in range(40):
        rows = answered(rng, draws, temperature=2)
        row = error_of(rows[rng.random(len(rows)) >= 0.1], seed)
        held.append(row["ci_low"] <= true <= row["ci_high"])
    assert np.mean(held) >= 0.9


def test_points_without_probabilities_have_no_calibration():
    known = cell("abbb").assign(probability=0.5, label_mass=1.0)
    both = frame(known, known.assign(k=9, probability=np.nan))
    assert reliability(both)["k"].unique().tolist() == [5]
    rng = np.random.default_rng(0)
    for rows in (cell("abbb"), known.assign(probability=None), known.iloc[:0]):
        assert reliability(rows).empty
        assert list(reliability(rows).columns) == list(reliability(known).columns)
        assert calibration_error(rows, rng).empty
        assert list(calibration_error(rows, rng).columns) == list(calibration_error(known, rng).columns)
