"""Which points another dominates: the tests beside their definition, point by point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from icl_bench.analysis.statistics.best import Candidate, leads
from icl_bench.analysis.statistics.contrast import contrast, judge
from icl_bench.analysis.statistics.dominance import DOMINATED, ON, UNDECIDED, dominance
from icl_bench.analysis.statistics.draw_ratios import GAINED, DrawSquares, moderated
from icl_bench.analysis.statistics.grid import Grid
from icl_bench.analysis.statistics.paired import holm

COSTS = st.lists(st.sampled_from([1.0, 2.0, 3.0, np.nan]), min_size=4, max_size=4)


@given(arrays(float, (4, 4), elements=st.floats(0, 1)), COSTS)
def test_a_point_is_tested_against_each_that_costs_no_more(p: np.ndarray, costs: list[float]):
    on, dominated = [], []
    for i in range(4):
        rivals = [j for j in range(4) if j != i and costs[j] <= costs[i]]
        on.append(max(p[i, j] for j in rivals) if rivals else np.nan)
        dominated.append(min(1.0, len(rivals) * min(p[j, i] for j in rivals)) if rivals else np.nan)
    found = dominance(p, np.array(costs))
    for number, (on_p, dominated_p) in enumerate(zip(holm(on), holm(dominated), strict=True)):
        if np.isnan(costs[number]):
            expected: str | None = None
        elif np.isnan(on_p) or on_p <= 0.05:
            expected = ON
        else:
            expected = DOMINATED if dominated_p <= 0.05 else UNDECIDED
        assert found.verdicts[number] == expected
        if not np.isnan(on_p):
            assert found.p[number] == min(on_p, dominated_p)


def points(*shares: float) -> tuple[list[Candidate], np.ndarray]:
    """Points of one draw of 90 test examples, and the column of their scores."""
    rng = np.random.default_rng(7)
    scores = np.stack([(rng.random((1, 90)) < share).astype(float) for share in shares])
    rows = np.arange(scores.size).reshape(scores.shape)
    grids = [Grid(np.arange(1), np.arange(90), of_point) for of_point in rows]
    return [Candidate(grid, str(at), 4**at) for at, grid in enumerate(grids)], scores.ravel()


def test_leads_are_the_one_sided_tests_of_all_pairs():
    candidates, scores = points(0.4, 0.6, 0.7)
    found, matrices = leads(candidates, scores), scores.reshape(3, 1, 90)
    for i, j in ((0, 1), (1, 2), (2, 0)):
        (p,) = judge([contrast(matrices[i], matrices[j], False)], "greater")[2]
        assert (found[i, j], found[j, i]) == pytest.approx((p, 1 - p))
    assert np.diagonal(found).tolist() == [1, 1, 1]
    unjudged = leads([candidates[0]._replace(judged=False), *candidates[1:]], scores)
    assert unjudged[0].tolist() == unjudged[:, 0].tolist() == [1, 1, 1]


def varied(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=3) for _ in range(count)]


def test_points_of_unlike_draws_lend_each_other_a_bounded_number_of_degrees_of_freedom():
    alike, means = [DrawSquares(0.4, 0.1, 2.0)] * 30, varied(30)
    assert {of.freedom for of in moderated(alike, means, list(range(1, 31)))} == {2.0 * GAINED}
    assert min(of.freedom for of in moderated(alike, means)) > 2.0 * GAINED, "without sizes there is no bound"


def test_half_of_what_points_of_unlike_draws_seem_to_lend_is_counted():
    alike, means = [DrawSquares(0.4, 0.1, 9.0)] * 3, [np.random.default_rng(at).normal(size=10) for at in range(3)]
    (whole, *_), (half, *_) = moderated(alike, means), moderated(alike, means, [1, 2, 3])
    assert whole.freedom > 18
    assert half.freedom == pytest.approx(whole.freedom / 2)


@pytest.mark.parametrize(("count", "bend"), [(6, 0.0), (9, 0.12)])
def test_draws_that_differ_less_with_more_demonstrations_follow_their_number(count: int, bend: float):
    """On a line over the logarithm of k, or on a parabola."""
    sizes = [2.0**at - 1 for at in range(count)]
    ratios = [60 * np.exp(-at * np.log(2) + bend * at**2 / 2) for at in range(count)]
    falling = [DrawSquares(0.1 * ratio, 0.1, 2.0) for ratio in ratios]
    of_trend, of_mean = (
        [np.log(after.draws / before.draws) for after, before in zip(found, falling, strict=True)]
        for found in (moderated(falling, varied(count), sizes), moderated(falling, varied(count)))
    )
    # the points lie on it, but for the bias of a logarithm, which is the same for all
    assert of_trend == pytest.approx([of_trend[0]] * count)
    assert 0 < of_trend[0] < 0.5
    assert np.ptp(of_mean) > 1, "without sizes all are drawn to their mean"


def test_draws_with_equal_means_are_left_out_and_stay_as_they_are():
    several, none = [DrawSquares(0.3, 0.1, 2.0)] * 5, DrawSquares(0.0, 0.1, 2.0)
    after = moderated([*several, none], [*varied(5), np.zeros(3)], [1, 2, 3, 4, 5, 6])
    assert after[-1] == none
    assert after[:-1] == moderated(several, varied(5), [1, 2, 3, 4, 5])
