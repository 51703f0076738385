"""Shares of what counts among all pairs of draws and test examples."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.predictions import answers

from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.analysis.statistics.shares import share_interval, shares


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (2, 5), (4, 9), (4, 1)])
def test_where_every_pair_counts_once_a_share_is_a_mean(shape):
    rng = np.random.default_rng(shape)
    hits = (rng.random(shape) + rng.random((shape[0], 1))) / 2  # draws differ
    expected = tuple(mean_interval(hits))
    assert tuple(share_interval(hits, np.ones(shape))) == pytest.approx(expected)
    assert tuple(share_interval(3 * hits, np.full(shape, 3))) == pytest.approx(expected)


@pytest.mark.parametrize("draws", [3, 10])
def test_limits_hold_the_share_where_a_third_of_the_pairs_count(draws):
    rng = np.random.default_rng(draws)
    held = []
    for _ in range(1000):
        of_draw, of_test = rng.normal(0, 0.3, (draws, 1)), rng.normal(0, 2, (1, 250))
        (hits,) = answers(rng, (1, draws, 250), 0.5, of_draw, of_test)
        counts = rng.random(hits.shape) < 1 / 3
        _, low, high = share_interval(hits * counts, counts.astype(float))
        held.append(low <= 0.5 <= high)
    assert 0.93 <= np.mean(held) <= 0.98


def test_nothing_tried_is_no_share():
    assert np.isnan(share_interval(np.zeros((2, 3)), np.zeros((2, 3)))).all()


def test_what_is_always_right_has_wilsons_limits_for_the_examples_that_count():
    tries = np.array([[1.0, 1, 0, 0], [1, 0, 1, 0]])
    found = share_interval(tries, tries)
    assert found == mean_interval(np.ones((1, 3)))
    assert found.low < 1


def test_every_combination_has_its_share_of_hits():
    rows = pd.DataFrame(
        {
            "k": [1, 1, 1, 5, 5],
            "draw": [0, 0, 1, 0, 0],
            "test_id": list("abaaa"),
            "hit": [True, False, True, False, True],
        }
    )
    found = shares(rows, ["k"], "hit", "right")
    assert list(found.columns) == ["k", "predictions", "right", "ci_low", "ci_high"]
    assert found[["k", "predictions", "right"]].to_numpy().tolist() == [[1, 3, 2 / 3], [5, 2, 0.5]]
    assert (found["ci_low"] < found["right"]).all()
    assert list(shares(rows[:0], ["k"], "hit", "right").columns) == list(found.columns)
    assert shares(rows[:0], ["k"], "hit", "right").dtypes.tolist() == found.dtypes.tolist()
