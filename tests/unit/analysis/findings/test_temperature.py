"""Temperature scaling: fitted on rows of the pool, judged on test rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax
from scipy.stats import ttest_1samp
from sklearn.metrics import log_loss
from support.label_scores import cell_scores, letters, stored

from icl_bench.analysis.all_findings import find
from icl_bench.analysis.findings.calibration import equal_bins
from icl_bench.analysis.findings.temperature import fitted_temperature, scaled
from icl_bench.results.derived import CellScores
from icl_bench.results.reading import Stored


def sampled(rng: np.random.Generator, rows: int, too_sure: float, labels: int = 4) -> CellScores:
    """Scores that are ``too_sure`` times as far apart as they should be."""
    logits = rng.normal(0, 2, (rows, labels))
    gold = np.array([rng.choice(labels, p=softmax(row)) for row in logits])
    return cell_scores(too_sure * logits, gold)


def folder(too_sure: float = 3.0, draws: int = 2, bias: np.ndarray | None = None) -> Stored:
    """A point with rows of the pool for each draw; with a ``bias`` calibrated cells, too."""
    rng = np.random.default_rng(0)
    cells = {f"c{draw}": (sampled(rng, 200, too_sure), {"draw": draw}) for draw in range(draws)}
    if bias is not None:
        for draw, (own, _) in enumerate([*cells.values()]):
            cells[f"c{draw}+batch"] = (replace(own, bias=bias), {"draw": draw, "variant": "v+batch"})
    pool = {f"c{draw}": sampled(rng, 300 + draw, too_sure) for draw in range(draws)}
    return replace(stored(cells), pool_scores=pool)


def best_by_grid(logs: np.ndarray, gold: np.ndarray) -> float:
    grid = np.exp(np.linspace(np.log(0.01), np.log(100), 10_001))
    apart = logs - logs.max(axis=1, keepdims=True)
    right = apart[np.arange(len(gold)), gold].mean()
    return float(grid[np.argmin([np.log(np.exp(apart / t).sum(axis=1)).mean() - right / t for t in grid])])


def golds(of: CellScores) -> np.ndarray:
    return np.array([of.labels.index(gold) for gold in of.golds])


@settings(max_examples=4)
@given(st.integers(0, 10**6), st.sampled_from([0.3, 1.0, 4.0]))
def test_the_temperature_is_the_best_of_a_fine_grid(seed: int, too_sure: float):
    of = sampled(np.random.default_rng(seed), 60, too_sure)
    found = fitted_temperature(of.logs, golds(of))
    assert found == pytest.approx(best_by_grid(of.logs, golds(of)), rel=1e-3)


def test_scores_that_are_too_far_apart_are_divided_by_as_much():
    of = sampled(np.random.default_rng(0), 20_000, 3.0)
    assert fitted_temperature(of.logs, golds(of)) == pytest.approx(3, rel=0.05)


def test_a_right_label_of_probability_zero_has_no_temperature():
    assert np.isnan(fitted_temperature(np.array([[0.0, -np.inf]]), np.array([1])))
    assert 0.01 <= fitted_temperature(np.log([[0.9, 0.1]]), np.array([0])) < 0.05, "as sure as can be"
    one = cell_scores(np.zeros((3, 1)), np.zeros(3, dtype=int))
    assert np.isfinite(scaled(one, one)[0])


def expected_error(chances: np.ndarray, right: np.ndarray) -> float:
    """The calibration error of ten bins of equal size, written out."""
    confidence, number = chances.max(axis=1), equal_bins(chances.max(axis=1), 10)
    parts = [(number == b, number[number == b].size) for b in range(10)]
    return sum(size * abs(confidence[own].mean() - right[own].mean()) for own, size in parts if size) / len(right)


def test_losses_and_errors_before_and_after_are_those_of_formulas():
    of = folder()
    (found,) = find(of).temperature.to_dict("records")
    fits = [best_by_grid(own.logs, golds(own)) for own in of.pool_scores.values()]
    assert found["temperature"] == pytest.approx(np.sqrt(fits[0] * fits[1]), rel=1e-3)
    assert [found["least_temperature"], found["largest_temperature"]] == pytest.approx(sorted(fits), rel=1e-3)
    raw = [own.raw.astype(float) for own in of.label_scores.values()]
    gold = np.concatenate([golds(own) for own in of.label_scores.values()])
    before = softmax(np.concatenate(raw), axis=1)
    after = softmax(np.concatenate([part / t for part, t in zip(raw, fits, strict=True)]), axis=1)
    right = before.argmax(axis=1) == gold
    assert found["log_loss"] == pytest.approx(log_loss(gold, before))
    assert found["scaled_log_loss"] == pytest.approx(log_loss(gold, after), rel=1e-4)
    assert found["error"] == pytest.approx(expected_error(before, right))
    assert found["scaled_error"] == pytest.approx(expected_error(after, right), abs=1e-3)
    assert found["scaled_error"] < found["error"]
    assert found["difference"] == pytest.approx(found["scaled_log_loss"] - found["log_loss"])
    assert found["ci_low"] < found["difference"] < found["ci_high"] < 0
    assert (found["pool_rows"], found["draws"], found["test_rows"]) == (300, 2, 200)
    (same,) = find(of).calibration_error.to_dict("records")
    limits = [found["error"], found["error_low"], found["error_high"]]
    assert limits == pytest.approx([same["error"], same["ci_low"], same["ci_high"]])


def test_limits_of_the_difference_are_paired_by_test_row():
    of = folder(draws=1)
    (found,) = find(of).temperature.to_dict("records")
    (own,) = of.label_scores.values()
    rows = np.arange(200)
    losses = [-log_softmax(own.raw / t, axis=1)[rows, golds(own)] for t in (1, found["temperature"])]
    limits = ttest_1samp(losses[1] - losses[0], 0).confidence_interval()
    assert [found["ci_low"], found["ci_high"]] == pytest.approx([*limits], rel=1e-3)


def test_nothing_of_the_test_rows_is_used():
    of = folder()
    other = {name: replace(own, golds=own.golds[::-1]) for name, own in of.label_scores.items()}
    before, after = (find(replace(of, label_scores=scores)).temperature for scores in (of.label_scores, other))
    assert before["temperature"].tolist() == after["temperature"].tolist()
    assert before["log_loss"].tolist() != after["log_loss"].tolist()


def test_a_calibrated_cell_has_its_bias_subtracted_from_the_rows_of_the_pool():
    bias = np.array([2.0, 0.0, -1.0, 0.5])
    of = folder(bias=bias)
    table = find(of).temperature.set_index("variant")
    fits = [best_by_grid(log_softmax(own.raw - bias, axis=1), golds(own)) for own in of.pool_scores.values()]
    assert table.loc["v+batch", "temperature"] == pytest.approx(np.sqrt(np.prod(fits)), rel=1e-3)
    assert table.loc["v", "temperature"] != pytest.approx(table.loc["v+batch", "temperature"], rel=0.05)


def test_a_test_row_that_a_prior_excludes_has_an_infinite_loss_at_any_temperature():
    own = cell_scores(np.zeros((4, 2)), np.array([0, 0, 0, 1]), np.array([0.0, np.inf]))
    of = stored({"c+prior=p": (own, {})})
    (found,) = find(
        replace(of, pool_scores={"c": cell_scores(np.zeros((3, 2)), np.zeros(3, dtype=int))})
    ).temperature.to_dict("records")
    assert found["log_loss"] == found["scaled_log_loss"] == np.inf
    assert np.isnan([found["difference"], found["ci_low"]]).all()


def test_points_without_rows_of_the_pool_are_left_out():
    of = folder()
    assert find(replace(of, pool_scores={})).temperature.empty
    one = {"c0": of.pool_scores["c0"]}
    (found,) = find(replace(of, pool_scores=one)).temperature.to_dict("records")
    assert found["draws"] == 1
    lost = {name: replace(own, golds=("gone",) * len(own.golds)) for name, own in of.pool_scores.items()}
    assert find(replace(of, pool_scores=lost)).temperature.empty
    assert letters(4) == of.pool_scores["c0"].labels


def test_a_right_answer_that_is_no_label_counts_in_the_error_and_has_no_loss():
    of = folder(draws=1)
    (own,) = of.label_scores.values()
    other = replace(
        stored({"c0": (replace(own, golds=("?", *own.golds[1:])), {"draw": 0})}), pool_scores=of.pool_scores
    )
    (found,) = find(other).temperature.to_dict("records")
    rows = np.arange(1, 200)
    assert found["log_loss"] == pytest.approx(-own.logs[rows, golds(own)[rows]].mean())
    (error,) = find(other).calibration_error["error"]
    assert (found["test_rows"], found["error"]) == (200, error)
