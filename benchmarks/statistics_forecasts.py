"""How often forecasts hold what is seen later: simulated curves of five kinds.

    python benchmarks/statistics_forecasts.py [--trials 200] [--kinds rising,flat,...] [--draws 1,3]

Prints the tables of docs/statistics.md. Answers are simulated as in statistics_intervals.py, with
draws that differ by 13 points (standard deviation) at k = 1 and by 3 at k = 100, whose effects at a k
and at twice as many have a correlation of 0.4, as neighbouring k of the study's published predictions
have. What is forecast is compared with what is then simulated at twice and four times the largest k,
with as many draws on the same test examples.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import cache
from itertools import product

import numpy as np
from scipy.special import expit
from scipy.stats import norm
from statistics_intervals import BOTH_SD, TEST_SD, header, row

from icl_bench.analysis.findings.forecast import FACTORS, forecasts

TEST = 250

KS = ((1, 5, 10, 25, 50, 100, 250), (1, 4, 16, 64, 256), (10, 50, 100, 250), (1, 2, 5, 10, 25, 50, 100, 250, 500))
"""The k of a simulated curve are one of these."""

ALIKE = 0.4
"""Correlation of a draw's effects at a k and at twice as many."""

ABOVE = (0.03, 0.06)
"""How far the wanted score is above the highest point of a flat curve."""

NORMAL = norm.ppf((np.arange(405) + 0.5) / 405)
"""Quantiles, to average over a normal distribution."""

Curve = Callable[[np.ndarray], np.ndarray]
"""True mean scores, by log2 k."""


def rising(ks: np.ndarray, rng: np.random.Generator) -> Curve:
    """By 2.5 to 6 points a doubling, all the way, and less where that would end above 93%."""
    low, first, last = rng.uniform(0.08, 0.4), ks[0], ks[-1] + 2
    slope = min(rng.uniform(0.025, 0.06), (0.93 - low) / (last - first))
    return lambda x: low + slope * (x - first)


def flat(_ks: np.ndarray, rng: np.random.Generator) -> Curve:
    """At 20 to 92%."""
    level = rng.uniform(0.2, 0.92)
    return lambda x: np.full(len(x), level)


def saturating(ks: np.ndarray, rng: np.random.Generator) -> Curve:
    """By 20 to 50 points, logistic over log k, half of it before a sixth of the largest k."""
    low, gain, steep = rng.uniform(0.1, 0.4), rng.uniform(0.2, 0.5), rng.uniform(0.6, 1.4)
    middle = rng.uniform(max(1, ks[0]), ks[-1] - np.log2(6))
    return lambda x: low + gain * expit(steep * (x - middle))


def falling(ks: np.ndarray, rng: np.random.Generator) -> Curve:
    """By six points a doubling, after a peak that at least two larger k follow."""
    peak = ks[rng.integers(max(0, len(ks) - 4), len(ks) - 2)]
    top, rise = rng.uniform(0.65, 0.9), rng.uniform(0.02, 0.06)
    return lambda x: np.maximum(top - rise * np.maximum(peak - x, 0) - 0.06 * np.maximum(x - peak, 0), 0.03)


def stepped(ks: np.ndarray, rng: np.random.Generator) -> Curve:
    """By 5 to 20 points, up or down, anywhere from the smallest k to four times the largest."""
    level, step = rng.uniform(0.3, 0.75), rng.uniform(0.05, 0.2) * rng.choice([-1, 1])
    place = rng.uniform(ks[0], ks[-1] + 2)
    return lambda x: level + step * (x >= place)


KINDS = {kind.__name__: kind for kind in (rising, flat, saturating, falling, stepped)}


def draw_sd(k: float) -> float:
    """Log-odds by draw: 13 points at k = 1, 6 at 5, 3 at 100."""
    return float(0.17 + 0.7 / k**0.7)


@cache
def _means(sd: float) -> tuple[np.ndarray, np.ndarray]:
    """Median log-odds, and the mean accuracies that they give."""
    odds = np.linspace(-14, 14, 281)
    return odds, expit(odds[:, None] + np.sqrt(TEST_SD**2 + BOTH_SD**2 + sd**2) * NORMAL).mean(axis=1)


def simulated(kind: str, draws: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The k of a curve, with twice and four times the largest, and true means and answers there.

    The true means, ``(points,)``, are over draws, on the same test examples as the answers,
    ``(points, draws, test)``.
    """
    some = np.array(KS[rng.integers(len(KS))])
    ks = np.append(some, some[-1] * np.array(FACTORS))
    x = np.log2(ks)
    true = KINDS[kind](x[: len(some)], rng)(x)
    deviations = np.array([draw_sd(k) for k in ks])
    odds = np.array([np.interp(mean, *_means(sd)[::-1]) for mean, sd in zip(true, deviations, strict=True)])
    root = np.linalg.cholesky(ALIKE ** np.abs(x[:, None] - x))
    of_draw = deviations[:, None] * (root @ rng.normal(size=(len(ks), draws)))
    of_test = rng.normal(0, TEST_SD, TEST) + rng.normal(0, BOTH_SD, (len(ks), TEST))
    without_draws = odds[:, None, None] + of_test[:, None]
    chance = expit(without_draws + of_draw[:, :, None])
    there = expit(without_draws + deviations[:, None, None] * NORMAL[5::10, None]).mean(axis=(1, 2))
    return ks, there, (rng.random(chance.shape) < chance).astype(float)


def held(kind: str, draws: int, trials: int) -> Iterable[str]:
    """Coverage of the 90% intervals that are reported, their share and width, and the medians' errors."""
    found: dict[int, list[tuple[float, ...]]] = {factor: [] for factor in FACTORS}
    rng = np.random.default_rng([draws, *kind.encode()])
    for _ in range(trials):
        ks, true, answers = simulated(kind, draws, rng)
        points = len(ks) - len(FACTORS)
        rows = forecasts(ks[:points], list(answers[:points]), rng)
        for factor, at, told in zip(FACTORS, range(points, len(ks)), rows, strict=True):
            if "forecast" in told:
                found[factor].append(_outcome(told, float(answers[at].mean()), true[at] - true[points - 1]))
    for factor, outcomes in found.items():
        columns = 100 * np.array(outcomes or [(np.nan,) * 6]).T
        shares, sizes, gains = columns[:2].mean(axis=1), np.median(columns[2:4], axis=1), columns[4:].mean(axis=1)
        yield row(kind, draws, factor, 100 * len(outcomes) / trials, *map(float, (*shares, *sizes, *gains)))


HELD = (
    "curve",
    "draws",
    "at k times",
    "reported %",
    "coverage %",
    "score below %",
    "median width",
    "median error",
    "forecast gain",
    "true gain",
)


def _outcome(told: dict[str, float], seen: float, gain: float) -> tuple[float, ...]:
    """Held, seen below, width, error of the median, its gain and the true one."""
    inside = told["low"] <= seen <= told["high"]
    return inside, seen < told["low"], told["high"] - told["low"], abs(told["forecast"] - seen), told["gain"], gain


def wanted(draws: int, above: float, trials: int) -> str:
    """How often a k is reported from which on a flat curve has a score that it never has."""
    rng, found = np.random.default_rng([draws, 7]), []
    for _ in range(trials):
        ks, true, answers = simulated("flat", draws, rng)
        points = len(ks) - len(FACTORS)
        rows = forecasts(ks[:points], list(answers[:points]), rng, min(float(true.max()) + above, 1))
        reported = [told for told in rows if "wanted_chance" in told]
        found.append([any(not np.isnan(told[name]) for told in reported) for name in ("k_even", "k_likely")])
    even, likely = 100 * np.mean(found, axis=0)
    return row(draws, 100 * above, float(even), float(likely))


WANTED = ("draws", "points above the curve", "k as likely as not %", "likely k %")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated")
    parser.add_argument("--draws", default="1,2,3,10", help="comma-separated")
    arguments = parser.parse_args()
    draws = [int(number) for number in arguments.draws.split(",")]
    print(f"\n{arguments.trials:,} samples a row\n")
    print(*header(*HELD), sep="\n")
    for kind, number in product(arguments.kinds.split(","), draws):
        print(*held(kind, number, arguments.trials), sep="\n", flush=True)
    print("", *header(*WANTED), sep="\n")
    for number, above in product(draws, ABOVE):
        print(wanted(number, above, arguments.trials), flush=True)


if __name__ == "__main__":
    main()
