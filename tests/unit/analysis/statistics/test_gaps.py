"""Means of layouts with gaps: all that is there counts, and hard examples that fail move little."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import expit
from scipy.stats import norm
from support.predictions import answers

from icl_bench.analysis.statistics.contrast import contrast, judge
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import complete
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.analysis.statistics.mean_squares import mean_squares

TRIALS, TEST = 400, 250


def torn(scores: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """Scores with gaps, without draws and test examples that have no other."""
    scores = np.where(gaps, np.nan, scores)
    scores = scores[:, ~np.isnan(scores).all(axis=0)]
    return scores[~np.isnan(scores).all(axis=1)]


# -- without gaps -------------------------------------------------------------------------------


@given(arrays(float, st.tuples(st.integers(2, 4), st.integers(2, 6)), elements=st.floats(0, 1)))
def test_without_gaps_everything_is_what_is_usual_to_the_bit(scores):
    layout = TwoWayLayout(scores)
    assert layout.mean == scores.mean()
    assert layout.by_test.tolist() == scores.mean(axis=0).tolist()
    assert layout.squares == mean_squares(scores)
    assert layout.freedom == len(scores) - 1


def test_where_no_two_draws_share_a_test_example_all_that_varies_is_put_to_test_examples():
    layout = TwoWayLayout(np.array([[1, np.nan, 0, np.nan], [np.nan, 1, np.nan, 1]]))
    assert layout.by_test.tolist() == [1, 1, 0, 1]
    assert layout.squares == (0.0, 8 * 0.25 / 4, 0.0)  # of 8 places, 4 means with variance 1/4
    assert layout.effects.tolist() == [0.0, 0.0]


def test_what_holds_for_gaps_holds_for_a_layout_with_none_to_speak_of():
    """A further draw that has one test example changes next to nothing."""
    rng = np.random.default_rng(0)
    of_draw = np.array([[-0.8], [0.0], [0.8]])
    (scores,) = answers(rng, (1, 3, TEST), 0.7, of_draw, rng.normal(0, 1, TEST))
    begun = np.full((1, TEST), np.nan)
    begun[0, 0] = 1
    whole, more = TwoWayLayout(scores), TwoWayLayout(np.vstack([scores, begun]))
    assert more.mean == pytest.approx(whole.mean, abs=0.002)
    assert more.freedom == pytest.approx(2, abs=0.05)
    sizes = scores.size, scores.size + TEST
    for name in ("draws", "tests", "residual"):
        here, there = (getattr(layout.squares, name) for layout in (whole, more))
        assert there / sizes[1] == pytest.approx(here / sizes[0], rel=0.1), name


# -- with gaps ----------------------------------------------------------------------------------


def test_an_examples_mean_is_corrected_for_the_draws_that_it_lacks():
    rng = np.random.default_rng(0)
    of_draw = np.array([0.2, 0.0, -0.2])[:, None]
    whole = 0.5 + of_draw + rng.normal(0, 0.1, (1, 60)) + rng.normal(0, 1e-6, (3, 60))
    gaps = np.zeros((3, 60), dtype=bool)
    gaps[2, :20] = True  # the bad draw lacks these
    found = TwoWayLayout(np.where(gaps, np.nan, whole))
    assert found.by_test == pytest.approx(whole.mean(axis=0), abs=1e-4)
    assert found.mean == pytest.approx(whole.mean(), abs=1e-4)
    assert found.effects == pytest.approx(of_draw[:, 0], abs=1e-4)


@pytest.mark.parametrize("draws", [2, 4])
def test_with_gaps_all_is_what_the_equations_of_the_whole_model_give(draws: int):
    """By whole matrices: Searle, Casella & McCulloch 1992, sections 5.5 and 7.6."""
    rng = np.random.default_rng(7)
    shape = draws, 12
    whole = rng.normal(0, 1, (draws, 1)) + rng.normal(0, 0.5, (1, 12)) + rng.normal(0, 0.3, shape)
    scores = torn(whole, rng.random(shape) < 0.3)
    draw, test = np.nonzero(~np.isnan(scores))
    y, tests = scores[draw, test], scores.shape[1]
    of_test, of_draw = np.eye(tests)[test], np.eye(draws)[draw]
    both = np.hstack([of_test, of_draw])
    left = np.eye(len(y)) - of_test @ np.linalg.pinv(of_test)
    rest = y - both @ np.linalg.lstsq(both, y)[0]
    within, further = of_draw.T @ left @ of_draw, np.linalg.matrix_rank(both) - tests
    residual = rest @ rest / (len(y) - tests - further)
    spread = (y @ left @ y - rest @ rest - further * residual) / np.trace(within)
    assert spread > 0
    inverse = np.linalg.inv(residual * np.eye(len(y)) + spread * of_draw @ of_draw.T)
    variance = np.linalg.inv(of_test.T @ inverse @ of_test)
    by_test = variance @ of_test.T @ inverse @ y
    found = TwoWayLayout(scores)
    assert found.by_test == pytest.approx(by_test)
    assert found.mean == pytest.approx(by_test.mean())
    assert found.effects == pytest.approx(spread * of_draw.T @ inverse @ (y - of_test @ by_test))
    assert found.freedom == pytest.approx(np.trace(within) ** 2 / np.trace(within @ within))
    assert found.squares == pytest.approx(
        (
            scores.size * variance.mean(),
            scores.size * by_test.var(ddof=1) / tests,
            scores.size * residual * (1 / np.bincount(test)).sum() / tests**2,
        )
    )


def test_a_draws_mean_is_the_mean_and_how_far_it_is_from_the_others_where_it_has_a_score():
    found = TwoWayLayout(np.array([[1, 1, 0], [0, np.nan, 0]]))
    assert found.by_draw - found.mean == pytest.approx([1 / 6, -1 / 4])


def test_draws_that_have_too_little_in_common_are_not_corrected():
    found = TwoWayLayout(np.array([[1, 0.5, np.nan], [np.nan, 0, 1]]))
    assert found.by_test.tolist() == [1, 0.25, 1]
    assert found.effects.tolist() == [0, 0]
    assert found.freedom == 1
    # the residual is all that differs, and each test example's mean has its part of it
    assert found.squares == pytest.approx(
        (6 * 0.125 * 2.5 / 9, 6 * np.var([1, 0.25, 1], ddof=1) / 3, 6 * 0.125 * 2.5 / 9)
    )


def test_where_draws_do_not_differ_nothing_is_corrected():
    rng = np.random.default_rng(1)
    scores = torn(rng.normal(size=(4, 50)), rng.random((4, 50)) < 0.2)
    squares = TwoWayLayout(scores).squares
    assert squares.draws <= squares.residual
    assert TwoWayLayout(scores).mean == pytest.approx(np.nanmean(scores, axis=0).mean())


def test_test_examples_count_alike_however_many_draws_have_them():
    scores = np.array([[1.0, 0, 0, 1], [1.0, np.nan, np.nan, 1], [1.0, np.nan, np.nan, 1]])
    assert TwoWayLayout(scores).mean == pytest.approx(0.5)


@pytest.mark.parametrize("scores", [[[np.nan, np.nan], [1, 0]], [[np.nan, 1], [np.nan, 0]]])
def test_draws_and_examples_without_any_score_are_refused(scores):
    with pytest.raises(ValueError, match="needs a score"):
        _ = TwoWayLayout(np.array(scores)).mean


@given(
    arrays(float, st.tuples(st.integers(2, 4), st.integers(2, 6)), elements=st.sampled_from([0.0, 0.5, 1.0, np.nan]))
)
def test_whatever_is_missing_there_are_limits_around_the_mean(scores):
    scores = torn(scores, np.zeros(scores.shape, dtype=bool))
    if scores.size:
        mean, low, high = mean_interval(scores)
        assert 0 <= low <= mean <= high <= 1
        assert low < high
        (low,), (high,), (p,) = judge([contrast(scores, np.zeros(scores.shape), True)])
        assert low <= high
        assert 0 <= p <= 1


HARD = [(0.2, True), (0.05, False), (0.2, False)]


def sample(rng: np.random.Generator, draws: int, share: float, hard: bool):
    """Scores without and with gaps, ``(draws, test)``; ``hard``: hard examples fail more often."""
    of_test = rng.normal(0, 2, TEST)
    (whole,) = answers(rng, (1, draws, TEST), 0.6, rng.normal(0, 0.3, (draws, 1)), of_test)
    weight = expit(-2 * of_test) if hard else np.ones(TEST)
    return whole, torn(whole, rng.random((draws, TEST)) < share * weight / weight.mean())


@pytest.mark.parametrize("draws", [3, 10])
@pytest.mark.parametrize(("share", "hard"), HARD)
def test_gaps_move_the_mean_little_and_limits_hold_it(draws, share, hard):
    normal = norm.ppf((np.arange(4000) + 0.5) / 4000)
    true = expit(np.log(1.5) + np.hypot(0.3, 2) * normal).mean()
    rng = np.random.default_rng([draws, int(100 * share), hard])
    moved, plain, held = [], [], []
    for _ in range(TRIALS):
        whole, scores = sample(rng, draws, share, hard)
        mean, low, high = mean_interval(scores)
        moved.append(mean - whole.mean())
        plain.append(np.nanmean(scores) - whole.mean())
        held.append(low <= true <= high)
    # with three draws some hard examples have no score at all
    assert abs(np.mean(moved)) < (0.01 if hard and draws == 3 else 0.002)
    assert np.std(moved) < 0.012
    assert np.mean(held) >= 0.92
    if hard:
        assert np.mean(plain) > 0.045


def test_the_complete_part_alone_would_be_far_off_where_hard_examples_fail():
    rng = np.random.default_rng(0)
    moved = []
    for _ in range(50):
        whole, scores = sample(rng, 10, 0.2, True)
        moved.append(scores[np.ix_(*complete(~np.isnan(scores)))].mean() - whole.mean())
    assert np.mean(moved) > 0.2


@pytest.mark.parametrize("matched", [True, False])
def test_tests_hold_their_level_with_gaps(matched):
    rng = np.random.default_rng(int(matched))
    found = []
    for _ in range(TRIALS):
        of_test = rng.normal(0, 1, TEST)
        sides = [answers(rng, (1, 5, TEST), 0.7, rng.normal(0, 0.3, (5, 1)), of_test)[0] for _ in "ab"]
        gaps = rng.random((2, 5, TEST)) < 0.2 * expit(-of_test) / expit(-of_test).mean()
        if matched:
            gaps = np.broadcast_to(gaps.any(axis=0), gaps.shape)
        kept = ~gaps.all(axis=1).any(axis=0)
        found.append(contrast(*np.where(gaps, np.nan, sides)[:, :, kept], matched))
    assert (judge(found)[2] <= 0.05).mean() <= 0.07  # 0.05, and what 400 trials may add to it
