"""What missing scores do to a mean and its limits, beside two other ways of taking them.

    python benchmarks/gaps.py [--trials 1000]

Simulated points of 250 test examples; a Markdown table. "Off" is the mean difference, in points,
from the mean without gaps, and the standard deviation of this difference.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from icl_bench.analysis.statistics.grid import complete
from icl_bench.analysis.statistics.intervals import mean_interval

TEST = 250
SPREADS = [(0.5, 0.1, 1.0), (0.6, 0.3, 2.0), (0.9, 0.3, 2.0)]
"""Accuracy of the median example in the median draw; spread by draw and by example (log-odds)."""


KINDS = [
    ("none", 0.0),
    ("anywhere", 0.05),
    ("anywhere", 0.2),
    ("hard examples", 0.2),
    ("one draw", 0.2),
    ("hard examples of one draw", 0.2),
]


def gap_chances(kind: str, share: float, of_test: np.ndarray, draws: int) -> np.ndarray:
    """The chance that each score is missing, ``(draws, test)``."""
    weight = expit(-2 * of_test) if kind.startswith("hard") else np.ones(TEST)
    chance = np.tile(share * weight / weight.mean(), (draws, 1))
    if kind.endswith("one draw"):
        chance *= np.where(np.arange(draws) == 0, draws, 0)[:, None]
        chance = chance.clip(max=0.96)
    return chance


def torn(scores: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """Scores with gaps, without draws and test examples that have no other."""
    scores = np.where(gaps, np.nan, scores)
    scores = scores[:, ~np.isnan(scores).all(axis=0)]
    kept: np.ndarray = scores[~np.isnan(scores).all(axis=1)]
    return kept


def row(
    rng: np.random.Generator, trials: int, draws: int, spread: tuple[float, float, float], kind: str, share: float
) -> str:
    """One line of the table."""
    accuracy, by_draw, by_test = spread
    odds = np.log(accuracy / (1 - accuracy))
    normal = norm.ppf((np.arange(4000) + 0.5) / 4000)
    true = expit(odds + np.hypot(by_draw, by_test) * normal).mean()
    held, width, off = [], [], []
    for _ in range(trials):
        of_draw, of_test = rng.normal(0, by_draw, (draws, 1)), rng.normal(0, by_test, TEST)
        whole = (rng.random((draws, TEST)) < expit(odds + of_draw + of_test)).astype(float)
        scores = torn(whole, rng.random(whole.shape) < gap_chances(kind, share, of_test, draws))
        mean, low, high = mean_interval(scores)
        held.append(low <= true <= high)
        width.append(high - low)
        part = scores[np.ix_(*complete(~np.isnan(scores)))]
        off.append(np.array([mean, np.nanmean(scores), part.mean()]) - whole.mean())
    moved = [f"{100 * m:+.1f} ± {100 * s:.1f}" for m, s in zip(np.mean(off, axis=0), np.std(off, axis=0), strict=True)]
    return (
        f"| {draws} | {accuracy:g} | {by_draw:g} | {kind} | {share:.0%} | {np.mean(held):.1%} "
        f"| {100 * np.mean(width):.1f} | {' | '.join(moved)} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    print(
        "| draws | accuracy | spread of draws | missing | share | limits hold | width | off | "
        "off, plain mean | off, complete part |"
    )
    print("| ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for draws in (3, 10):
        for spread in SPREADS:
            for number, (kind, share) in enumerate(KINDS):
                rng = np.random.default_rng([draws, int(100 * spread[0]), number])
                print(row(rng, trials, draws, spread, kind, share), flush=True)


if __name__ == "__main__":
    main()
