"""The best of several points: limits that allow for the choice, and losses that are shown small."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import digamma, expit, polygamma
from scipy.stats import chi2, norm

from icl_bench.analysis.statistics.best import Candidate, Losses, best_interval, losses
from icl_bench.analysis.statistics.contrast import contrast, judge
from icl_bench.analysis.statistics.draw_ratios import DrawSquares, moderated
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import Grid
from icl_bench.analysis.statistics.intervals import Interval, joined, mean_interval, variance_parts, wilson


def equal_points(points: int, trials: int, draws: int = 3, test: int = 250) -> np.ndarray:
    """Points that are equally good in truth, ``(trials, points, draws, test)``."""
    rng = np.random.default_rng([points, trials])
    of_draw = rng.normal(0, 0.3, (trials, points, draws, 1))
    of_test = rng.normal(0, 2, (trials, 1, 1, test))
    return (rng.random((trials, points, draws, test)) < expit(1 + of_draw + of_test)).astype(float)


TRUE = float(expit(1 + np.hypot(0.3, 2) * norm.ppf((np.arange(4000) + 0.5) / 4000)).mean())


def highest(points: list[np.ndarray]) -> Interval:
    return best_interval(points, int(np.argmax([scores.mean() for scores in points])))


@pytest.mark.parametrize(("points", "trials"), [(2, 300), (10, 200), (30, 100)])
def test_the_limits_of_the_best_hold_its_true_mean_93_times_in_100(points, trials):
    """The own limits of the point that is the highest hold it in 96, 90 and 80 of 100 here."""
    found = [highest(list(sample)) for sample in equal_points(points, trials)]
    assert np.mean([low <= TRUE <= high for _, low, high in found]) >= 0.93


def test_a_single_point_has_its_own_limits():
    (sample,) = equal_points(1, 1)
    assert highest(list(sample)) == mean_interval(sample[0])


def test_the_choice_moves_the_lower_limit_alone_and_never_towards_the_mean():
    for sample in equal_points(10, 20):
        best = sample[sample.mean(axis=(1, 2)).argmax()]
        mean, low, high = highest(list(sample))
        own = mean_interval(best)
        assert (mean, high) == (own.mean, own.high)
        assert low <= own.low


def test_limits_of_a_single_test_row_are_numbers():
    one = np.array([[0.0], [1.0], [1.0]])
    assert best_interval([one], 0) == mean_interval(one)
    mean, low, high = best_interval([one, np.zeros((3, 1))], 0)
    assert 0 < low < mean_interval(one).low < mean < high < 1


def test_a_single_draw_and_a_perfect_score_are_corrected_too():
    (sample,) = equal_points(10, 1)
    single = [scores[:1] for scores in sample]
    assert highest(single).low < mean_interval(max(single, key=np.mean)).low
    perfect = [*sample, np.ones_like(sample[0])]
    assert highest(perfect).low < mean_interval(perfect[-1]).low


def test_the_lower_limit_is_wilsons_by_moderated_draws_at_the_corrected_level():
    (sample,) = equal_points(4, 1)
    sample[2] = np.maximum(sample[2], np.arange(250) < 60)  # the best by far
    points = [sample[0], sample[1][:1], sample[2], np.vstack([sample[3], sample[1]])]
    drawn = [TwoWayLayout(points[place]) for place in (0, 2, 3)]
    pooled = moderated(
        [DrawSquares(of.squares.draws, of.squares.residual, of.freedom) for of in drawn], [of.by_draw for of in drawn]
    )
    own = drawn[1].squares._replace(draws=pooled[1].draws)
    upper = 1 - 0.1 / 2 / 4
    variance, quantile = joined(variance_parts(own, 750), (pooled[1].freedom, 249), upper)
    mean = sample[2].mean()
    low = wilson(mean, mean * (1 - mean) / variance, quantile).low
    found, alone = best_interval(points, 2, 0.9), mean_interval(sample[2], 0.9)
    assert low < alone.low
    assert found == pytest.approx((mean, low, alone.high))


# -- losses -------------------------------------------------------------------------------------


def lost(points: list[np.ndarray], margin: float, sources: tuple[str, ...] = (), unjudged: int = -1) -> Losses:
    """What the first point loses; NaN is no prediction."""
    column, candidates = np.concatenate([scores.ravel() for scores in points]), []
    for at, (scores, source) in enumerate(zip_longest(points, sources[: len(points)], fillvalue="random")):
        start = sum(one.size for one in points[:at])
        rows = start + np.arange(scores.size).reshape(scores.shape)
        rows = np.where(np.isnan(scores), -1, rows)
        grid = Grid(np.arange(len(scores)), np.arange(scores.shape[1]), rows)
        candidates.append(Candidate(grid.of_rows(), source, 10, at != unjudged))
    return losses(candidates, column, [0], margin)


def right(share: float, draws: int = 3, test: int = 400, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random((draws, test)) < share).astype(float)


def test_of_two_points_the_p_values_are_those_of_the_paired_test():
    cheap, best = right(0.7), right(0.72, seed=1)
    found = lost([cheap, best], 0.05)
    beside = contrast(cheap, best, True)
    assert found.none.tolist() == judge([beside], "less")[2].tolist()
    shifted = beside._replace(centre=beside.centre + 0.05)
    assert found.large.tolist() == judge([shifted], "greater")[2].tolist()


def test_a_loss_is_small_only_if_it_is_against_every_point():
    cheap, best, other = (right(share, 3, 2000, i) for i, share in enumerate((0.7, 0.7, 0.9)))
    alone = lost([cheap, best], 0.1).large[0]
    among = lost([cheap, best, other], 0.1).large[0]
    assert alone < 0.01 < 0.9 < among


def test_that_a_point_is_not_the_best_is_corrected_for_the_number_of_others():
    cheap, best = right(0.7, 1), right(0.8, 1, seed=1)
    worst = right(0.1, 1, seed=2)
    alone = lost([cheap, best], 0.05).none[0]
    assert lost([cheap, best, worst], 0.05).none[0] == pytest.approx(2 * alone)


def test_draws_are_paired_within_a_source_alone():
    rng = np.random.default_rng(0)
    of_draw = rng.normal(0, 0.8, (10, 1))
    one, other = ((rng.random((10, 400)) < expit(1 + of_draw)).astype(float) for _ in range(2))
    paired = lost([one, other], 0.05).large[0]
    assert paired < lost([one, other], 0.05, ("random", "balanced")).large[0]


def test_what_is_not_judged_shows_nothing():
    points = [right(0.7, 1), right(0.72, 1, seed=1)]
    for unjudged in (0, 1):
        found = lost(points, 0.5, unjudged=unjudged)
        assert (found.large[0], found.none[0]) == (1, 1)


def test_a_point_without_others_loses_nothing():
    found = lost([right(0.7)], 0.05)
    assert (found.large[0], found.none[0]) == (0, 1)


def test_candidates_with_gaps_are_compared_on_all_that_both_have():
    rng = np.random.default_rng(0)
    cheap, best = right(0.7), right(0.9, seed=1)
    one, other = (np.where(rng.random(of.shape) < 0.1, np.nan, of) for of in (cheap, best))
    both = np.isnan(one) | np.isnan(other)
    kept = ~both.all(axis=0)
    beside = contrast(*(np.where(both, np.nan, of)[:, kept] for of in (one, other)), True)
    assert lost([one, other], 0.05).none == pytest.approx(judge([beside], "less")[2])
    one[:, :200], other[:, 200:] = np.nan, np.nan  # nothing in common
    found = lost([one, other], 0.05)
    assert (found.large[0], found.none[0]) == (1, 1)


# -- moderation ---------------------------------------------------------------------------------


def squares(ratios: np.ndarray, freedom: int = 2) -> list[DrawSquares]:
    return [DrawSquares(0.1 * ratio, 0.1, freedom) for ratio in ratios]


def means(points: int, draws: int = 3, alike: float = 0.0) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    own, shared = rng.normal(size=(points, draws)), rng.normal(size=draws)
    return list(np.sqrt(alike) * shared + np.sqrt(1 - alike) * own)


def test_where_all_draws_differ_alike_each_point_learns_from_all():
    ratios = 4 * chi2.ppf((np.arange(30) + 0.5) / 30, 2) / 2
    after = moderated(squares(ratios), means(30))
    assert np.ptp([of.draws for of in after]) < 0.5 * np.ptp([0.1 * ratio for ratio in ratios])
    assert min(of.freedom for of in after) > 6


def test_where_points_differ_by_nature_each_keeps_nearly_its_own():
    ratios = np.array([1, 500, 1, 500, 2, 900, 1.5, 400], dtype=float)
    after = moderated(squares(ratios), means(8))
    assert max(of.freedom for of in after) < 4
    assert after[1].draws > 20 * after[0].draws


def test_points_with_the_same_draws_count_as_fewer():
    ratios = np.full(20, 4.0)
    own, same = (moderated(squares(ratios), means(20, 3, alike))[0] for alike in (0.0, 0.99))
    assert same.freedom < 4 < own.freedom


def test_one_point_has_nothing_to_learn_from():
    found = squares(np.array([3.0]))
    assert moderated(found, means(1)) == found
    without = [DrawSquares(0.0, 0.0, 2), *found]
    assert moderated(without, means(2)) == without


RATIOS = {
    "alike": [3.0, 4, 3.5, 4.5, 3, 4, 5, 3.2, 4.1],
    "wide": [1, 9, 20, 0.5, 3, 30, 12, 2, 25],
    "apart": [1, 9, 40, 1e-6, 3, 90, 12, 2, 70],
}


@pytest.mark.parametrize("ratios", RATIOS)
def test_ratios_are_shrunk_to_what_they_have_in_common_by_smyths_formulas(ratios: str):
    draws = [5] * 6 + [3] * 2 + [2]
    made = [means(1, count)[0] for count in draws]
    rng = np.random.default_rng(1)
    made = [mean + 0.7 * rng.normal(size=len(mean)) for mean in made]
    given = [DrawSquares(0.1 * ratio, 0.1, count - 1) for ratio, count in zip(RATIOS[ratios], draws, strict=True)]

    def together(parts: list[np.ndarray]) -> float:
        count, size = len(parts), len(parts[0])
        alike = 0.25
        if count > 1:
            pairs = np.corrcoef(parts)[np.triu_indices(count, 1)] ** 2
            chance = 1 / (size - 1)
            alike = max((pairs.mean() - chance) / (1 - chance), 0)
        return (size - 1) * count / (1 + (count - 1) * alike)

    most = together(made[:6]) + together(made[6:8]) + together(made[8:])
    freedom = np.array(draws) - 1.0
    ratio = np.maximum(RATIOS[ratios], 0.02)
    logarithm = np.log(ratio) - digamma(freedom / 2) + np.log(freedom / 2)
    by_nature = logarithm.var(ddof=1) - polygamma(1, freedom / 2).mean()
    worth = most
    if ratios != "alike":
        worth = 2 * brentq(lambda half: polygamma(1, half) - by_nature, 0.01, 1e4)
        assert worth < most
    else:
        assert by_nature < 0
    common = np.exp(logarithm.mean() + digamma(worth / 2) - np.log(worth / 2))
    shrunk = (worth * max(common, 1) + freedom * ratio) / (worth + freedom)
    total = np.maximum(np.minimum(worth + freedom, most), freedom)
    for found, square, freedoms in zip(moderated(given, made), shrunk, total, strict=True):
        assert found == pytest.approx((0.1 * square, 0.1, freedoms))


def test_of_two_draws_points_are_taken_to_be_somewhat_alike():
    after = moderated(squares(np.full(5, 4.0), 1), means(5, 2))
    assert after[0].freedom == pytest.approx(5 / (1 + 4 * 0.25))


def test_two_points_learn_from_each_other():
    first, second = moderated(squares(np.array([2.0, 6.0])), means(2))
    assert 0.2 < first.draws < second.draws < 0.6


def test_points_whose_draws_do_not_differ_count_like_the_others():
    (same,) = means(1)
    after = moderated(squares(np.array([2.0, 4.0, 0.0])), [same, same, np.zeros(3)])
    assert [of.freedom for of in after] == [2, 2, 2]  # all are one point's, again and again
