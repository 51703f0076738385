"""How often ``icl-bench check`` fails a run by chance, and how often it finds a loss.

    python benchmarks/check.py [--trials 1000]

Simulated pairs of runs with 250 test examples, which all points of a run share; tables as in
docs/check.md.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

from icl_bench.analysis.regression import decide, divided, loss_p

TEST, TOLERANCE, ALPHA = 250, 0.01, 0.05


class Rates(NamedTuple):
    """Shares of trials."""

    whole: float
    """All points together are lost."""
    point: float
    """Some point is."""
    either: float
    """The check fails."""
    alone: float
    """Some point would be, if the points had all of alpha and there were no test of the whole."""


def unchanged(rng: np.random.Generator, trials: int, points: int, draws: int, unsure: float, alike: bool) -> np.ndarray:
    """Differences ``(trials, points, draws, test)`` of two runs that differ by chance alone.

    Of a share of predictions both runs are ``unsure``; ``alike``: of the same test examples in all
    points and draws, whose answers are then right with the same chance everywhere.
    """
    shape = (trials, points, draws, TEST)
    one = (trials, 1, 1, TEST) if alike else shape
    chance = np.where(rng.random(one) < unsure, rng.random(one), rng.random(one) < 0.6)
    first, second = rng.random((2, *shape)) < chance
    differences: np.ndarray = second.astype(float) - first
    return differences


def worse(rng: np.random.Generator, trials: int, losses: np.ndarray, draws: int, uneven: float) -> np.ndarray:
    """Differences ``(trials, points, draws, test)`` of a run that loses this in each point.

    3% of the predictions become right in each; ``uneven`` is the variance of how easily a test
    example flips, in all points and draws.
    """
    shape = (trials, len(losses), draws, TEST)
    one = (trials, 1, 1, TEST)
    easily = rng.gamma(1 / uneven, uneven, one) if uneven else 1.0
    to_wrong = ((0.03 + losses) / 0.6)[:, None, None] * easily
    right = rng.random(shape) < rng.beta(1.2, 0.8, one)
    flipped = rng.random(shape) < np.where(right, to_wrong, 0.03 / 0.4 * easily)
    return np.where(right, -1.0, 1.0) * flipped


def rates(differences: np.ndarray) -> Rates:
    """What a check says of simulated runs."""
    found = []
    for trial in differences:
        p = loss_p(trial.reshape(-1, TEST))
        of_whole, of_points = divided(ALPHA, p, len(trial))
        whole = p <= of_whole and trial.mean() < -TOLERANCE
        point = decide(list(trial), TOLERANCE, of_points)[2].any()
        alone = decide(list(trial), TOLERANCE, ALPHA)[2].any()
        found.append((whole, point, whole or point, alone))
    return Rates(*np.mean(np.array(found, dtype=float), axis=0).tolist())


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    print("| points | draws | unsure | of the same examples | all together | some point | either |")
    print("| ---: | ---: | ---: | --- | ---: | ---: | ---: |")
    for points, draws, unsure, alike in [
        (6, 1, 0.1, False),
        (6, 3, 0.1, False),
        (6, 3, 0.4, False),
        (6, 3, 0.4, True),
        (24, 1, 0.4, False),
        (24, 1, 0.4, True),
        (24, 3, 0.1, True),
    ]:
        rng = np.random.default_rng([points, draws, int(100 * unsure), alike])
        found = rates(unchanged(rng, trials, points, draws, unsure, alike))
        same = "yes" if alike else "no"
        print(
            f"| {points} | {draws} | {unsure:.0%} | {same} | {found.whole:.1%} | "
            f"{found.point:.1%} | {found.either:.1%} |",
            flush=True,
        )
    print()
    print("| points | lose | points each | draws | flips | all together | some point | either | points alone |")
    print("| ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    for points, losing, loss, draws, uneven in [
        (24, 24, 0.02, 1, 0.0),
        (24, 24, 0.02, 1, 1.0),
        (24, 24, 0.015, 1, 1.0),
        (6, 6, 0.02, 3, 1.0),
        (6, 6, 0.03, 1, 1.0),
        (6, 1, 0.05, 3, 0.0),
        (6, 1, 0.05, 3, 1.0),
        (6, 1, 0.05, 1, 0.0),
        (24, 1, 0.05, 3, 1.0),
    ]:
        rng = np.random.default_rng([points, losing, draws, int(1000 * loss), int(uneven)])
        losses = np.where(np.arange(points) < losing, loss, 0.0)
        found = rates(worse(rng, trials, losses, draws, uneven))
        flips = "uneven" if uneven else "even"
        print(
            f"| {points} | {losing} | {100 * loss:g} | {draws} | {flips} | {found.whole:.1%} | "
            f"{found.point:.1%} | {found.either:.1%} | {found.alone:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
