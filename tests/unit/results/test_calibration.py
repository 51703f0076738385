"""Calibrations held to their published definitions, written out again here."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from icl_bench.errors import UserError
from icl_bench.results.calibration import Calibration, checked_prior, of_queries, split
from icl_bench.results.label_bias import calibrated, content_bias, mean_bias, prior_bias, running_bias

SHAPES = st.tuples(st.integers(1, 9), st.integers(2, 6))
SCORES = SHAPES.flatmap(lambda shape: arrays(np.float64, shape, elements=st.floats(-12, -0.01)))


@given(SCORES)
def test_batch_subtracts_each_labels_mean_log_probability(scores: np.ndarray) -> None:
    rows, labels = scores.shape
    found = calibrated(scores, mean_bias(scores))
    for row in range(rows):
        shifted = [scores[row, j] - sum(scores[i, j] for i in range(rows)) / rows for j in range(labels)]
        total = math.log(sum(math.exp(value) for value in shifted))
        np.testing.assert_allclose(found[row], [value - total for value in shifted], atol=1e-9)


@given(SCORES, SCORES)
def test_contextual_divides_by_the_mean_probability_of_content_free_inputs(
    scores: np.ndarray, content_free: np.ndarray
) -> None:
    labels = min(scores.shape[1], content_free.shape[1])
    scores, content_free = scores[:, :labels], content_free[:, :labels]

    def shares(logs: np.ndarray) -> list[float]:
        chances = [math.exp(value) for value in logs]
        return [chance / sum(chances) for chance in chances]

    # Zhao et al. 2021, section 5: q = softmax(W p), W = diag(p_cf)^-1; its order is that of p / p_cf
    p_cf = np.mean([shares(row) for row in content_free], axis=0)
    found = calibrated(scores, content_bias(content_free))
    for row in range(len(scores)):
        weighted = np.array(shares(scores[row])) / p_cf
        np.testing.assert_allclose(np.exp(found[row]), weighted / weighted.sum(), rtol=1e-7)


@given(SCORES, st.data())
def test_with_a_stated_prior_the_mean_probability_is_the_prior(scores: np.ndarray, data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(1, 5), min_size=scores.shape[1], max_size=scores.shape[1]))
    prior = np.array(weights) / sum(weights)
    mean = np.exp(calibrated(scores, prior_bias(scores, prior))).mean(axis=0)
    np.testing.assert_allclose(mean, prior, atol=1e-5)


def test_a_prior_is_reached_by_a_label_that_is_too_long_to_have_a_probability_above_0() -> None:
    scores = np.array([[-5.0, -6.0, -900.0], [-5.0, -4.0, -903.0]])
    prior = np.array([0.5, 0.3, 0.2])
    mean = np.exp(calibrated(scores, prior_bias(scores, prior))).mean(axis=0)
    np.testing.assert_allclose(mean, prior, atol=1e-5)


def test_a_label_that_a_prior_excludes_is_never_likely() -> None:
    scores = np.log([[0.6, 0.3, 0.1], [0.5, 0.2, 0.3]])
    chances = np.exp(calibrated(scores, prior_bias(scores, np.array([0.0, 0.5, 0.5]))))
    assert (chances[:, 0] == 0).all()
    np.testing.assert_allclose(chances.mean(axis=0), [0, 0.5, 0.5], atol=1e-6)


@given(SCORES, st.integers(1, 12))
def test_a_running_estimate_is_over_the_queries_up_to_the_end_of_the_batch(scores: np.ndarray, size: int) -> None:
    found = running_bias(scores, size)
    for query in range(len(scores)):
        end = min((query // size + 1) * size, len(scores))
        np.testing.assert_allclose(found[query], scores[:end].mean(axis=0), atol=1e-9)


def test_with_all_queries_in_one_batch_the_running_estimate_is_the_batchs() -> None:
    scores = np.log(np.random.default_rng(0).dirichlet(np.ones(4), 7))
    np.testing.assert_allclose(running_bias(scores, 7), np.tile(mean_bias(scores), (7, 1)))


@pytest.mark.parametrize("text", ["batch", "batch,of=pool:64", "contextual", "domain", "prior=shop"])
def test_a_calibration_is_written_as_it_is_read(text: str) -> None:
    calibration = Calibration.parse(text)
    assert str(calibration) == text
    assert Calibration.parse(str(calibration)) == calibration
    if calibration.queries is not None:
        assert of_queries(calibration.queries) == calibration


def test_a_list_keeps_options_with_their_calibration() -> None:
    assert split("batch,batch,of=pool:64,contextual") == ["batch", "batch,of=pool:64", "contextual"]


@pytest.mark.parametrize(
    "text",
    ["", "bach", "batch,of=pool", "batch,of=pool:0", "batch,of=test:5", "contextual,of=pool:3", "prior", "prior="],
)
def test_other_calibrations_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError, match="--calibrate") as refusal:
        Calibration.parse(text)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", [None, "copied", "pool:", "pool:x"])
def test_other_queries_are_of_no_calibration(kind: str | None) -> None:
    assert of_queries(kind) is None


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"ham": 0.5, "spam": 0.4}, "the shares sum to 0.900, not to 1"),
        ({"ham": 0.5, "eggs": 0.5}, "eggs is not a label; known: ham, spam"),
        (
            {True: 0.5, "spam": 0.5},
            "True is not a label; known: ham, spam; YAML reads yes, no, null and some numbers as",
        ),
        ({"ham": "half", "spam": 0.5}, "ham: a share is a number from 0 to 1"),
        ({"ham": -0.5, "spam": 1.5}, "ham: a share is a number from 0 to 1"),
        ({"ham": True}, "ham: a share is a number from 0 to 1"),
        ({}, "expected label: share"),
        (["ham"], "expected label: share"),
        (None, "expected label: share"),
    ],
)
def test_a_prior_that_is_no_distribution_of_the_labels_is_refused(shares: object, message: str) -> None:
    with pytest.raises(UserError, match=f"^prior.yaml: {message}"):
        checked_prior(shares, ["ham", "spam"], "prior.yaml")


def test_a_prior_may_leave_labels_out() -> None:
    assert checked_prior({"ham": 1}, ["ham", "spam"], "prior.yaml") == {"ham": 1.0}
