"""Tests of differences at few draws: how often they raise a false alarm, and what they find.

    python benchmarks/statistics_comparisons.py [--trials 500] [--draws 3]

Made-up answers to curves over k whose draws are nested: those of a smaller k begin those of a
larger one. Each line is one way in which draws may differ; ``plain`` is the test of each k alone,
``moderated`` the one that takes the variance of draws from the whole curve. ``wider`` is the largest
width of a moderated interval over that of the plain one, among all of them.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit

from icl_bench.analysis.statistics.contrast import contrast, judge
from icl_bench.analysis.statistics.moderation import DrawMeans, moderated

SHOTS = (1, 5, 10, 25, 50, 100, 250, 500, 1000)


@dataclass(frozen=True)
class World:
    """How two curves come about; spreads are of log-odds."""

    low: float = 0.4
    """The share of right answers at the smallest k, in the median draw of the median example."""
    high: float = 0.9
    """That at the largest k."""
    by_draw: float = 0.5
    """Spread of a side's draws at the smallest k."""
    fall: float = 0.25
    """By which power of k the spread of draws falls."""
    persistent: float = 0.0
    """The share of a draw's variance that is the same at every k; the rest is nested."""
    by_test: float = 1.5
    gain: float = 0.0
    """What the first side is better by."""
    matched: bool = True
    draws: int = 3
    test: int = 250
    shots: tuple[int, ...] = SHOTS
    identical: int = 0
    """At so many of the smallest ks the second side's draws are identical, as those of retrieval are."""


class Rates(NamedTuple):
    """Shares of comparisons with p up to 0.05, by either test."""

    plain: float
    moderated: float
    wider: float
    """The largest width of a moderated interval over that of the plain one."""


def draw_effects(world: World, rng: np.random.Generator) -> np.ndarray:
    """Log-odds of one side's draws at each k, ``(draws, ks)``.

    A draw's effect at k is a mean over its first k demonstrations, so that the correlation of two
    ks is the square root of their ratio; on top of it stands what persists.
    """
    ks = np.array(world.shots, dtype=float)
    steps = np.sqrt(np.diff(ks, prepend=0))
    nested = (rng.normal(size=(world.draws, len(ks))) * steps).cumsum(axis=1) / np.sqrt(ks)
    kept = rng.normal(size=(world.draws, 1))
    effect = np.sqrt(1 - world.persistent) * nested + np.sqrt(world.persistent) * kept
    effects: np.ndarray = world.by_draw * (ks / ks[0]) ** -world.fall * effect
    return effects


def scores(world: World, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Right answers of both sides, ``(ks, draws, test)`` each."""
    odds = np.linspace(logit(world.low), logit(world.high), len(world.shots))[:, None, None]
    common = rng.normal(0, world.by_test, (1, 1, world.test))

    def side(gain: float, identical: int = 0) -> np.ndarray:
        draws = draw_effects(world, rng).T[:, :, None]
        draws[:identical] = 0
        own = rng.normal(0, world.by_test / 2, (1, 1, world.test))
        right = rng.random((len(world.shots), world.draws, world.test)) < expit(odds + gain + draws + common + own)
        answers: np.ndarray = right.astype(float)
        answers[:identical] = answers[:identical, :1]
        return answers

    return side(world.gain), side(0.0, world.identical)


def rates(world: World, trials: int, seed: int = 0) -> Rates:
    """How often either test calls the two sides different, over all ks and trials."""
    rng = np.random.default_rng(seed)
    numbers = np.arange(world.draws)
    found, samples = [], []
    for trial in range(trials):
        for k, first, second in zip(world.shots, *scores(world, rng), strict=True):
            found.append(contrast(first, second, world.matched))
            sides = (first - second,) if world.matched else (first, second)
            samples.append([DrawMeans((trial, name), k, numbers, side.mean(axis=1)) for name, side in enumerate(sides)])
    plain, both = judge(found), judge(moderated(found, samples))
    widths = (both[1] - both[0]) / (plain[1] - plain[0])
    return Rates(float((plain[2] <= 0.05).mean()), float((both[2] <= 0.05).mean()), float(widths.max()))


WORLDS = {
    "draws hardly differ": World(by_draw=0.1),
    "draws differ, less at larger k": World(),
    "draws differ much": World(by_draw=1.0),
    "draws differ equally at every k": World(fall=0.0),
    "half of a draw's effect is the same at every k": World(fall=0.0, persistent=0.5),
    "all of a draw's effect is the same at every k": World(fall=0.0, persistent=1.0),
    "accuracy near 100%": World(low=0.9, high=0.985),
    "three values of k": World(shots=(1, 10, 100)),
    "neighbouring values of k": World(shots=(50, 60, 75, 90, 100)),
    "each point has its own draws": World(matched=False),
    "own draws, which differ much": World(matched=False, by_draw=1.0),
    "own draws, identical at three small k": World(matched=False, identical=3),
    "own draws, identical at six of nine k": World(matched=False, identical=6),
    "own draws, identical at three small k, others hardly differ": World(matched=False, by_draw=0.1, identical=3),
}


def main() -> None:
    """Print false alarms and power in every world."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--gain", type=float, default=0.7, help="log-odds of the difference")
    options = parser.parse_args()
    print(f"{'':60} {'false alarms':>20} {'found':>20}")
    print(f"{'':60} {'plain':>10} {'moderated':>9} {'plain':>10} {'moderated':>9} {'wider':>6}")
    for name, world in WORLDS.items():
        null = rates(replace(world, draws=options.draws), options.trials)
        there = replace(world, draws=options.draws, gain=options.gain)
        power = rates(there, options.trials, seed=1)
        shares = " ".join(f"{share:10.1%}" for share in (*null[:2], *power[:2]))
        print(f"{name:60} {shares} {max(null.wider, power.wider):6.1f}", flush=True)


if __name__ == "__main__":
    main()
