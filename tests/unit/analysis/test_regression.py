"""A loss is found, chance is not taken for one, and predictions are paired as they belong."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import binomtest
from support.predictions import frame, scored, texts

from icl_bench.analysis.regression import PAIR, alone, compare, decide, divided, flips, loss_p, missing, overall, pair

TRIALS, TEST = 1000, 250
SAME = {("v", "v")}


# -- the decision rule, simulated ---------------------------------------------------------------


def reruns(points: int, draws: int, unsure: float, alike: bool) -> np.ndarray:
    """Differences ``(trials, points, draws, test)`` of two runs of one model, by chance alone.

    Both runs are sure of most answers, right or wrong; of a share they are ``unsure``, and each run
    answers right with the prediction's own chance. ``alike``: these are the same test examples in
    all points and draws, as they are where ks and draws of one task are compared.
    """
    rng = np.random.default_rng([points, draws, int(1000 * unsure), alike])
    shape = (TRIALS, points, draws, TEST)
    one = (TRIALS, 1, 1, TEST) if alike else shape
    chance = np.where(rng.random(one) < unsure, rng.random(one), rng.random(shape) < 0.6)
    first, second = rng.random((2, *shape)) < chance
    return second.astype(float) - first


def worse(points: int, losing: int, uneven: float) -> np.ndarray:
    """Differences ``(trials, points, 3 draws, test)`` of a worse model from a better one, right in 60%.

    In ``losing`` points 8% of the predictions become wrong and 3% right, in the others 3% each.
    ``uneven``: variance of how easily the examples flip, in all draws; 0 for all alike.
    """
    rng = np.random.default_rng([points, losing, int(10 * uneven)])
    shape = (TRIALS, points, 3, TEST)
    easily = rng.gamma(1 / uneven, uneven, (TRIALS, points, 1, TEST)) if uneven else 1.0
    to_wrong = np.where(np.arange(points) < losing, 0.08, 0.03)[:, None, None] / 0.6 * easily
    right = rng.random(shape) < rng.beta(1.2, 0.8, (TRIALS, points, 1, TEST))
    flipped = rng.random(shape) < np.where(right, to_wrong, 0.03 / 0.4 * easily)
    return np.where(right, -1.0, 1.0) * flipped


def failed(differences: np.ndarray) -> np.ndarray:
    """Which points are failed, ``(trials, points)``."""
    return np.array([decide(list(trial))[2] for trial in differences])


@pytest.mark.parametrize(
    ("points", "draws", "unsure", "alike"),
    [(6, 3, 0.02, False), (6, 3, 0.1, False), (6, 3, 0.4, True), (1, 3, 0.4, True), (6, 1, 0.4, False)],
)
def test_chance_alone_fails_some_point_in_at_most_5_percent_of_trials(points, draws, unsure, alike):
    assert failed(reruns(points, draws, unsure, alike)).any(axis=1).mean() <= 0.05


@pytest.mark.parametrize("uneven", [pytest.param(0.0, marks=pytest.mark.thorough), 1.0])
@pytest.mark.parametrize(("points", "losing"), [pytest.param(1, 1, marks=pytest.mark.thorough), (6, 1), (6, 3)])
def test_a_loss_of_five_points_is_found_in_90_percent_of_trials(points, losing, uneven):
    found = failed(worse(points, losing, uneven))
    assert found[:, :losing].mean() >= 0.9
    assert found[:, losing:].any(axis=1).mean() <= 0.05


def failed_at_all(differences: np.ndarray) -> np.ndarray:
    """Whether each trial fails, by a point or by all points together, ``(trials,)``."""
    found = []
    for trial in differences:
        p = loss_p(trial.reshape(-1, TEST))
        whole, of_points = divided(0.05, p, len(trial))
        found.append((p <= whole and trial.mean() < -0.01) or decide(list(trial), alpha=of_points)[2].any())
    return np.array(found)


@pytest.mark.parametrize(("points", "unsure", "alike"), [(6, 0.1, False), (24, 0.4, True)])
def test_chance_fails_a_point_or_all_together_in_at_most_5_percent(points, unsure, alike):
    differences = reruns(points, 1, unsure, alike)[:400]
    assert failed_at_all(differences).mean() <= 0.05
    whole = np.array([loss_p(trial.reshape(-1, TEST)) for trial in differences])
    assert (whole <= 0.01).mean() <= 0.025  # 0.01, and what 400 trials may add to it


def test_a_loss_that_is_small_in_each_of_many_points_is_found_in_all_together():
    rng = np.random.default_rng(0)
    shape = 50, 24, 1, TEST
    right = rng.random(shape) < 0.6
    flipped = rng.random(shape) < np.where(right, 0.05 / 0.6, 0.03 / 0.4)
    differences = np.where(right, -1.0, 1.0) * flipped  # two points are lost in each
    assert failed(differences).any(axis=1).mean() < 0.5
    assert failed_at_all(differences).mean() == 1


def test_the_whole_and_the_points_have_alpha_together():
    assert divided(0.05, 0.2, 6) == pytest.approx((0.01, 0.04))
    assert divided(0.05, 0.01, 6) == pytest.approx((0.01, 0.05))  # what the whole has shown
    assert divided(0.05, 0.2, 1) == (0.05, 0.05)  # the point is the whole


def test_without_correction_six_points_would_raise_many_false_alarms():
    p = np.array([[loss_p(d) for d in trial] for trial in reruns(6, 3, 0.1, False)[:400]])
    assert (p <= 0.05).any(axis=1).mean() > 0.1


def test_a_significant_loss_up_to_the_tolerance_is_let_pass():
    difference = np.zeros((1, 1000))
    difference[0, :10] = -1
    p, _, lost = decide([difference], tolerance=0.01)
    assert p[0] < 0.001
    assert not lost[0]
    assert decide([difference], tolerance=0.0099)[2][0]
    assert decide([difference], tolerance=0)[2][0]


def test_a_large_loss_that_chance_can_explain_is_let_pass():
    difference = np.zeros((1, 20))
    difference[0, :4], difference[0, 4] = -1, 1
    p, _, lost = decide([difference])
    assert difference.mean() < -0.1
    assert p[0] > 0.05
    assert not lost[0]


# -- the exact test -----------------------------------------------------------------------------


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (5, 0), (0, 5), (9, 2), (40, 25), (1200, 1100)])
def test_with_one_draw_p_is_mcnemars(lost: int, gained: int):
    difference = np.zeros((1, 4000))
    difference[0, :lost], difference[0, lost : lost + gained] = -1, 1
    expected = binomtest(gained, lost + gained, alternative="less").pvalue if lost + gained else 1
    assert loss_p(difference) == pytest.approx(expected)


scores = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@settings(max_examples=60)
@given(st.integers(1, 3), st.integers(1, 7), st.data())
def test_p_is_the_share_of_sign_flips_that_lose_as_much(draws: int, test: int, data: Any):
    cells = st.lists(scores, min_size=draws * test, max_size=draws * test)
    first, second = (np.array(data.draw(cells)).reshape(draws, test) for _ in range(2))
    by_test = (second - first).sum(axis=0)
    sums = [np.dot(signs, by_test) for signs in product([-1, 1], repeat=test)]
    expected = np.mean(np.array(sums) <= by_test.sum() + 1e-9)
    assert loss_p(second - first) == pytest.approx(expected)


def test_a_loss_of_free_text_below_half_a_point_in_every_row_is_found():
    rng, noise = np.random.default_rng(0), np.zeros((1, 250))
    noise[0, :50] = rng.normal(0, 0.01, 50)
    for loss in (np.full((1, 250), -0.0049), noise - 0.004):
        p, _, lost = decide([loss], tolerance=0.001)
        assert p[0] < 1e-9
        assert lost[0]
        assert loss_p(-loss) > 0.999


def test_a_small_loss_of_every_row_is_found_beside_a_few_large_differences():
    differences = np.full((1, 2000), -0.004)
    differences[0, :20] = np.tile([0.3, -0.3], 10)
    rng = np.random.default_rng(0)
    large = rng.choice([-1.0, 1.0], (20000, 20)) @ differences[0, :20]
    small = -0.004 * (2 * rng.binomial(1980, 0.5, 20000) - 1980)  # the sum of all others with their signs
    expected = np.mean(large + small <= differences.sum())
    assert loss_p(differences) == pytest.approx(expected, abs=0.002)
    assert loss_p(differences) < 1e-4


def test_draws_of_one_example_are_no_further_evidence():
    one = np.array([[-1.0] * 4 + [1.0] + [0.0] * 45])
    assert loss_p(np.repeat(one, 10, axis=0)) == loss_p(one)


def test_a_draw_that_lacks_an_example_tells_nothing_of_it():
    torn = np.array([[-1.0, -1, 1, np.nan], [np.nan, -1, np.nan, np.nan]])
    assert loss_p(torn) == loss_p(np.array([[-1.0, -2, 1, 0]]))


def test_many_flips_are_taken_as_normal():
    for gained in (2350, 2450, 2500, 2550):
        signs = np.where(np.arange(5001) < gained, 1.0, -1.0)[None]
        expected = binomtest(gained, 5001, alternative="less").pvalue
        assert loss_p(signs) == pytest.approx(expected, rel=0.01)


def test_a_missing_score_has_no_p():
    assert math.isnan(loss_p(np.array([[np.nan, np.nan]])))
    assert math.isnan(loss_p(np.empty((3, 0))))
    p, corrected, lost = decide([np.array([[np.nan]]), np.array([[-1.0] * 9])])
    assert np.isnan([p[0], corrected[0]]).all()
    assert corrected[1] == p[1] == 1 / 512  # the other point is the only test
    assert lost.tolist() == [False, True]


# -- pairs --------------------------------------------------------------------------------------


def answered(*rows: str, **changes: Any) -> pd.DataFrame:
    """A point from one word a draw: ``+`` right, ``-`` wrong."""
    return scored(np.array([[sign == "+" for sign in row] for row in rows]), **changes)


def compared(base: pd.DataFrame, now: pd.DataFrame, **options: Any) -> pd.DataFrame:
    return compare(pair(base, now, SAME), **options)


def test_predictions_are_paired_by_draw_and_test_example_in_any_order():
    base, now = answered("++--", "+-+-"), answered("-+-+", "+-++")
    mixed = now.sample(frac=1, random_state=1)
    for other in (now, mixed):
        (row,) = compared(base, other).to_dict("records")
        assert (row["lost"], row["gained"], row["draws"], row["rows"]) == (1, 2, 2, 4)
        assert (row["base_mean"], row["mean"], row["difference"]) == (0.5, 0.625, 0.125)
        assert row["ci_low"] < 0.125 < row["ci_high"]
        assert row["verdict"] == "ok"
    assert compared(base, now).equals(compared(base, mixed))


def test_a_run_compared_with_itself_has_no_loss():
    table = compared(answered("++--" * 20, k=5), answered("++--" * 20, k=5))
    assert table["p_holm"].tolist() == [1.0]
    assert table[["lost", "gained", "difference"]].to_numpy().tolist() == [[0, 0, 0]]


def test_what_one_side_lacks_is_left_out_of_the_comparison():
    base, now = answered("++++", "++++", "++++"), answered("----", "----")
    now = now[(now["draw"] == 0) | (now["test_id"] != "row 002")]
    (row,) = compared(base, now).to_dict("records")
    assert (row["draws"], row["rows"], row["left_out"]) == (2, 4, 0)
    assert row["difference"] == pytest.approx(-1)
    assert row["p"] == 1 / 16


def test_all_points_are_corrected_together():
    base = frame(*(answered("+" * 40, k=k, task=t) for k in (1, 5) for t in "ab"))
    now = frame(*(answered("-" * 8 + "+" * 32, k=k, task=t) for k in (1, 5) for t in "ab"))
    table = compared(base, now)
    assert table["p"].tolist() == [1 / 256] * 4
    assert table["p_holm"].tolist() == [4 / 256] * 4
    assert table["verdict"].tolist() == ["loss"] * 4
    assert set(compared(base, now, alpha=0.01)["verdict"]) == {"ok"}
    assert set(compared(base, now, tolerance=0.3)["verdict"]) == {"small loss"}


def test_a_point_is_compared_with_its_own_variant_else_with_each_comparable_one():
    base = frame(answered("++--", variant="a"), answered("+++-", variant="b"))
    now = frame(answered("++--", variant="a"), answered("----", variant="c"))
    both = {("a", "a"), ("b", "a"), ("a", "c"), ("b", "c")}
    table = compare(pair(base, now, both))
    assert table[["base_variant", "variant"]].to_numpy().tolist() == [["a", "a"], ["a", "c"], ["b", "c"]]
    pairs = pair(base, now, {("a", "a")})
    assert len(compare(pairs)) == 1
    assert alone(base, pairs, "base_variant")["variant"].tolist() == ["b"]
    assert alone(now, pairs)["variant"].tolist() == ["c"]


def test_all_points_together_take_the_points_of_a_test_example_together():
    base = frame(*(answered("+" * 40, k=k) for k in (1, 5)))
    now = frame(*(answered("-" * 8 + "+" * 32, k=k) for k in (1, 5)))
    whole = overall(pair(base, now, SAME))
    assert (whole.points, whole.rows, whole.predictions) == (2, 40, 80)
    assert whole.p == 1 / 256  # eight examples, not sixteen
    assert (whole.difference, whole.base_mean, whole.mean) == (-0.2, 1, 0.8)
    assert whole.ci_low < -0.2 < whole.ci_high < 0
    assert (whole.alpha, whole.alpha_points, whole.verdict) == (0.01, 0.05, "loss")
    assert overall(pair(base, now, SAME), tolerance=0.3).verdict == "small loss"
    assert overall(pair(base, base, SAME)).verdict == "ok"
    other = now.assign(task=np.where(now["k"] == 5, "other", now["task"]))
    apart = overall(pair(base.assign(task=other["task"]), other, SAME))
    assert (apart.rows, apart.p) == (80, 1 / 2**16)  # other tasks have other test examples


@pytest.mark.parametrize(("now", "limits"), [("-" * 6, (-1, None)), ("+" * 6, (None, 1))])
def test_limits_of_all_lost_or_all_gained_stay_between_minus_1_and_1(now: str, limits: Any):
    base = answered("-" * 6 if now[0] == "+" else "+" * 6)
    pairs = pair(base, answered(now), SAME)
    (point,) = compare(pairs).to_dict("records")
    for found in (overall(pairs), compare(pairs).iloc[0]):
        for limit, expected in zip((found.ci_low, found.ci_high), limits, strict=True):
            assert abs(limit) < 1 if expected is None else limit == expected
    assert point["difference"] == (limits[0] or limits[1])


def test_a_single_point_is_the_whole():
    pairs = pair(answered("+" * 40), answered("-" * 5 + "+" * 35), SAME)
    whole, (point,) = overall(pairs), compare(pairs).to_dict("records")
    assert (whole.p, whole.difference) == (point["p"], point["difference"])
    assert (whole.ci_low, whole.ci_high) == (point["ci_low"], point["ci_high"])
    assert (whole.alpha, whole.verdict) == (0.05, "loss")


def test_very_many_steps_of_free_text_are_rounded_and_tested_all_the_same():
    rng = np.random.default_rng(0)
    before = [rng.random((8, 200)) for _ in range(12)]
    base = frame(*(texts(scores, k=k) for k, scores in enumerate(before)))
    now = frame(*(texts((s - 0.01).clip(0), k=k) for k, s in enumerate(before)))
    noise = rng.normal(0, 0.05, len(now))
    now["rouge1"] = (now["rouge1"] + noise).clip(0, 1)
    whole = overall(pair(base, now, SAME))
    sums = (now["rouge1"] - base["rouge1"]).groupby(now["test_id"]).sum()
    assert whole.p == pytest.approx(ndtr(sums.sum() / np.sqrt((sums**2).sum())), rel=0.2)
    assert whole.predictions == len(now)


def test_what_the_run_lacks_of_the_baseline_is_counted():
    base, now = frame(answered("+++", "+++"), answered("+++", k=1)), answered("+-+")
    pairs = pair(base, now, SAME)
    assert missing(base, pairs)[["k", "missing"]].to_numpy().tolist() == [[5, 3]]
    blank = now.assign(correct=[True, None, None])
    assert missing(base, pair(base, blank, SAME))["missing"].tolist() == [5]
    nothing = now.assign(correct=None)
    assert missing(base, pair(base, nothing, SAME))["missing"].tolist() == [6]
    # what the baseline has no score of itself
    assert missing(nothing, pair(nothing, now, SAME))["missing"].tolist() == [0]


def test_one_missing_score_does_not_empty_a_point():
    base, now = answered("++++", "++++"), answered("-+++", "-+++")
    now["correct"] = now["correct"].astype(object).where(now.index != 3, None)
    (row,) = compared(base, now).to_dict("records")
    assert (row["score"], row["left_out"], row["rows"], row["draws"]) == ("correct", 1, 4, 2)
    assert row["difference"] == pytest.approx(-2 / 7)
    assert row["lost"] == 2
    assert len(flips(pair(base, now, SAME))) == 2


def test_points_of_one_side_alone_are_named():
    base = frame(answered("++--", k=1), answered("++--", k=5))
    now = frame(answered("++--", k=5), answered("++--", k=5, order="by-label"))
    pairs = pair(base, now, SAME)
    assert alone(base, pairs, "base_variant")[["order", "k"]].to_numpy().tolist() == [["drawn", 1]]
    assert alone(now, pairs)[["order", "k"]].to_numpy().tolist() == [["by-label", 5]]


def test_every_flip_is_listed_with_what_was_said_losses_first():
    base, now = answered("++--", "++--"), answered("-++-", "+---")
    pairs = pair(base, now, SAME)
    found = flips(pairs)
    assert found["change"].tolist() == ["lost", "lost", "gained"]
    assert found[["draw", "test_id", "gold", "before", "now"]].to_numpy().tolist() == [
        [0, "row 000", "a", "a", "b"],
        [1, "row 001", "a", "a", "b"],
        [0, "row 002", "a", "b", "a"],
    ]
    (row,) = compare(pairs).to_dict("records")
    assert (row["lost"], row["gained"]) == (2, 1)


def test_free_text_is_compared_by_its_first_score():
    base = answered("+" * 60).assign(correct=None, rouge1=0.5, rougeL=0.4)
    now = base.assign(rouge1=0.42, rougeL=0.6)
    pairs = pair(base, now, SAME)
    (row,) = compare(pairs).to_dict("records")
    assert (row["score"], row["verdict"]) == ("rouge1", "loss")
    assert row["difference"] == pytest.approx(-0.08)
    assert pd.isna(row["lost"])
    assert flips(pairs).empty
    (row,) = compare(pair(base.assign(rouge1=None), now, SAME)).to_dict("records")
    assert (row["score"], row["verdict"]) == ("rougeL", "ok")


def test_a_point_without_a_score_is_not_judged():
    base = answered("+" * 9).assign(correct=None)
    (row,) = compare(pair(base, base, SAME)).to_dict("records")
    assert (row["score"], row["verdict"]) == (None, "no score")
    assert np.isnan([row["p"], row["p_holm"], row["difference"]]).all()


def test_other_prompts_are_counted_where_both_are_known():
    base = answered("+++").assign(prompt_hash=["a", "b", None])
    assert compared(base, base.assign(prompt_hash=["a", "c", "d"]))["other_prompts"].tolist() == [1]
    assert compared(base, base.drop(columns="prompt_hash"))["other_prompts"].tolist() == [0]


def test_a_test_example_predicted_twice_is_an_error():
    base = answered("+++")
    with pytest.raises(ValueError, match="several predictions"):
        compared(base, frame(base, base))


def test_nothing_in_common_makes_empty_tables():
    pairs = pair(answered("+++", k=1), answered("+++", k=2), SAME)
    assert pairs.empty
    assert compare(pairs).empty
    assert flips(pairs).empty
    assert set(PAIR) <= set(compare(pairs).columns)
