"""Replays races on stored predictions and on simulated ones: whether the choice is right, and what it takes.

    python benchmarks/choosing.py replays predictions.parquet [--trials 1000] [--margins 0.01,0.02,0.05] [--queries N]
    python benchmarks/choosing.py budgets predictions.parquet [--trials 1000] [--margins 0.02]
    python benchmarks/choosing.py simulations [--trials 1000] [--target sweep] [--draws 10]

A replay puts the rows and draws of a full grid of predictions in random order and races its settings. The
truth is the mean over the whole grid. ``uniform`` asks all settings the same number of positions at the
cost of the race, ``halving`` is successive halving (Karnin, Koren & Somekh 2013, ICML) at that cost.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import expit, logit

from icl_bench.choosing.evidence import Target
from icl_bench.choosing.race import Candidate, Race, Rules

BUDGETS = (0.01, 0.02, 0.05, 0.10, 0.25)
"""Shares of a grid's predictions."""


class Grid(NamedTuple):
    """All answers of all settings: a full sweep."""

    name: str
    scores: np.ndarray
    """``(candidates, draws, rows)``"""
    drawn: np.ndarray
    """Whether answers differ between draws: ``(candidates,)``."""
    truth: np.ndarray
    """``(candidates,)``"""
    shown: np.ndarray
    """Demonstrations in a prompt: ``(candidates,)``."""

    @property
    def predictions(self) -> int:
        """Of a full sweep: what depends on no draw is asked once."""
        draws, rows = self.scores.shape[1:]
        return int(np.where(self.drawn, draws * rows, rows).sum())


def grids(path: Path) -> Iterator[Grid]:
    """Yield the grids of each task and model: all settings, and the random demonstrations as drawn alone."""
    frame = pd.read_parquet(path)
    frame["correct"] = (frame["gold"] == frame["prediction"]).astype(float)
    for (task, model), of_pair in frame.groupby(["task", "model"]):
        for name in ("all settings", "random"):
            scores, shown = [], []
            for (select, order, k), cells in of_pair.groupby(["select", "order", "k"]):
                if name == "all settings" or (select, order) == ("random", "drawn"):
                    shown.append(k)
                    scores.append(cells.pivot(index="draw", columns="test_id", values="correct").to_numpy())
            draws = max(map(len, scores))
            drawn = np.array([len(s) > 1 and bool((s != s[0]).any()) for s in scores])
            same = [s if d else np.repeat(s[:1], draws, axis=0) for s, d in zip(scores, drawn, strict=True)]
            whole = np.array(same)
            yield Grid(f"{task}, {model}, {name}", whole, drawn, whole.mean(axis=(1, 2)), np.array(shown))


def in_schedule(grid: Grid, rng: np.random.Generator) -> np.ndarray:
    """Return the scores in the order in which a race asks them, ``(candidates, draws * rows)``."""
    draws, rows = grid.scores.shape[1:]
    passes, places = np.divmod(np.arange(draws * rows), rows)
    draw, row = rng.permutation(draws)[(places + passes) % draws], rng.permutation(rows)[places]
    return grid.scores[:, draw, row]


class Outcome(NamedTuple):
    """How a race went."""

    choice: int
    spent: int
    decided: bool
    ever_out: bool
    """Whether one that is better than all others by more than the margin was ever out."""
    leaders: list[tuple[int, int]]
    """Predictions and leader after each round."""


def race(
    grid: Grid,
    asked: np.ndarray,
    margin: float,
    target: Target,
    growth: float = Rules.growth,
    queries: float | None = None,
) -> Outcome:
    """Run one race to its end.

    With ``queries``, a prediction costs as much as it shows demonstrations, and a query. A cheaper setting is asked
    only while its next round costs at most what it would save in so many queries.
    """
    draws, rows = grid.scores.shape[1:]
    costs = np.zeros(len(grid.shown)) if queries is None else grid.shown + 1.0
    candidates = [Candidate(str(i), bool(drawn), costs[i]) for i, drawn in enumerate(grid.drawn)]
    rules = Rules(rows, draws, margin, target=target, queries=queries or math.inf, growth=growth)
    running = Race(candidates, rules)
    best, second = np.argsort(grid.truth)[::-1][:2]
    alone = grid.truth[best] - grid.truth[second] > margin
    ever_out, leaders = False, []
    while asks := running.next():
        for ask in asks:
            running.tell(ask, asked[ask.candidate, ask.start : ask.stop])
        leaders.append((int(running.spent.sum()), running.choice()))
        ever_out |= bool(alone and best not in running.running())
    spent, choice = leaders[-1]
    return Outcome(choice, spent, running.decided(), ever_out, leaders)


def means(asked: np.ndarray, grid: Grid, far: int) -> np.ndarray:
    """Return each candidate's mean after so many positions, rows of equal weight."""
    rows = grid.scores.shape[2]
    if far <= rows:
        return np.asarray(asked[:, :far].mean(axis=1))
    passes, begun = divmod(far, rows)
    sums, counts = asked[:, : passes * rows].reshape(len(asked), passes, rows).sum(axis=1), np.full(rows, passes)
    sums[:, :begun] += asked[:, passes * rows : far]
    counts[:begun] += 1
    return np.asarray((sums / counts).mean(axis=1))


def cost(grid: Grid, far: int) -> np.ndarray:
    """Return the predictions of each candidate that came so far."""
    return np.where(grid.drawn, far, min(far, grid.scores.shape[2]))


def affordable(grid: Grid, which: np.ndarray, spent: int, budget: float, start: int) -> int:
    """Return how far these candidates get from where they are with what is left of a budget."""
    rows, drawn = grid.scores.shape[2], int(grid.drawn[which].sum())
    left = budget - spent
    first = min(int(left / len(which)), max(rows - start, 0))  # within the first pass all cost the same
    left -= first * len(which)
    later = int(left / drawn) if drawn and start + first >= rows else 0
    return int(min(start + first + later, grid.scores.shape[1] * rows))


def uniform(grid: Grid, asked: np.ndarray, budget: float) -> int:
    """Return the choice after asking all the same."""
    far = affordable(grid, np.arange(len(asked)), 0, budget, 0)
    return int(means(asked, grid, far).argmax()) if far else 0


def halving(grid: Grid, asked: np.ndarray, budget: float) -> int:
    """Return the choice of successive halving: equal budgets a round, the better half goes on."""
    left, far, spent = np.arange(len(asked)), 0, 0
    rounds = max(int(np.ceil(np.log2(len(asked)))), 1)
    for r in range(rounds):
        new = affordable(grid, left, spent, budget * (r + 1) / rounds, far)
        spent += int((cost(grid, new) - cost(grid, far))[left].sum())
        far = new
        if far:
            found = means(asked[left], grid, far)
            left = left[np.argsort(-found, kind="stable")[: max(len(left) // 2, 1)]]
    return int(left[0])


def within(grid: Grid, choices: Sequence[int], margin: float) -> float:
    """Return the share of choices that are within the margin of the best."""
    return float((grid.truth.max() - grid.truth[list(choices)] <= margin + 1e-9).mean())


def replays(grid: Grid, margins: Sequence[float], trials: int, growth: float, queries: float | None) -> None:
    """Print a line for each margin; the demonstrations of the choice are the median."""
    for margin in margins:
        rng, began = np.random.default_rng(0), time.perf_counter()
        outcomes, others = [], []
        for _ in range(trials):
            asked = in_schedule(grid, rng)
            outcomes.append(race(grid, asked, margin, "sweep", growth, queries))
            others.append([way(grid, asked, outcomes[-1].spent) for way in (uniform, halving)])
        shares = np.array([outcome.spent for outcome in outcomes]) / grid.predictions
        chosen = [outcome.choice for outcome in outcomes]
        loss = grid.truth.max() - grid.truth[chosen]
        cells = [
            grid.name,
            str(len(grid.scores)),
            f"{margin * 100:g}",
            f"{within(grid, chosen, margin):.1%}",
            f"{np.median(shares):.1%} ({np.quantile(shares, 0.9):.1%})",
            *(f"{within(grid, column, margin):.1%}" for column in zip(*others, strict=True)),
            f"{loss.mean() * 100:.2f}",
            f"{np.median(grid.shown[chosen]):.0f} of {grid.shown[grid.truth.argmax()]}",
            f"{(time.perf_counter() - began) / trials * 1000:.0f}",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


def budgets(grid: Grid, margins: Sequence[float], trials: int) -> None:
    """Print how often the choice is within the margin when the budget ends the race."""
    for margin in margins:
        rng = np.random.default_rng(1)
        right = np.zeros((len(BUDGETS), 3))
        for _ in range(trials):
            asked = in_schedule(grid, rng)
            outcome = race(grid, asked, margin, "sweep")
            for b, share in enumerate(BUDGETS):
                budget = share * grid.predictions
                led = [leader for spent, leader in outcome.leaders if spent <= budget]
                choices = [led[-1] if led else 0, uniform(grid, asked, budget), halving(grid, asked, budget)]
                right[b] += [within(grid, [choice], margin) for choice in choices]
        shown = [" / ".join(f"{value:.0%}" for value in line / trials) for line in right]
        print("| " + " | ".join([grid.name, f"{margin * 100:g}", *shown]) + " |", flush=True)


@dataclass(frozen=True)
class World:
    """Settings with known accuracies, over all rows and draws that there could be."""

    accuracies: tuple[float, ...]
    by_row: float = 1.5
    """Spread of rows in log-odds, the same for all settings."""
    by_setting: float = 0.7
    """Spread of a setting's rows beside that."""
    by_draw: float = 0.3
    """Spread of a setting's draws."""
    of_pair: float = 0.5
    """Spread of a draw's rows."""
    retrieval: int = 0
    """So many settings, the last ones, depend on no draw."""

    def grid(self, name: str, draws: int, rows: int, rng: np.random.Generator) -> Grid:
        """Draw a full sweep of it."""
        count = len(self.accuracies)
        drawn = np.arange(count) < count - self.retrieval
        spread = np.where(drawn, np.hypot(self.by_draw, self.of_pair), 0.0)
        total = np.sqrt(self.by_row**2 + self.by_setting**2 + spread**2)
        middle = [median(a, s) for a, s in zip(self.accuracies, total, strict=True)]
        odds = np.array(middle)[:, None, None] + self.by_row * rng.standard_normal(rows)
        odds = odds + self.by_setting * rng.standard_normal((count, 1, rows))
        effects = self.by_draw * rng.standard_normal((count, draws, 1))
        effects = effects + self.of_pair * rng.standard_normal((count, draws, rows))
        sure = rng.random((count, 1, rows)) * np.ones((1, draws, 1))
        scores = (sure < expit(odds + drawn[:, None, None] * effects)).astype(float)
        return Grid(name, scores, drawn, scores.mean(axis=(1, 2)), np.zeros(count))


NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)


def median(accuracy: float, spread: float) -> float:
    """Return the log-odds about which answers with this spread have this accuracy."""
    low, high = -15.0, 15.0
    for _ in range(60):
        middle = (low + high) / 2
        reached = float((WEIGHTS * expit(middle + spread * NODES)).sum() / WEIGHTS.sum())
        low, high = (middle, high) if reached < accuracy else (low, middle)
    return float(logit(0.5)) + middle


RISING = (0.35, 0.42, 0.5, 0.58, 0.65, 0.71, 0.76, 0.8, 0.83, 0.85, 0.86, 0.865)
BARELY = (0.7205, *[0.7] * 11)
WORLDS = {
    "no difference": World((0.8,) * 12),
    "no difference, retrieval": World((0.8,) * 12, retrieval=6),
    "one clear winner": World((0.85, *[0.7] * 11)),
    "a winner by little more than the margin": World(BARELY),
    "the same, a winner by retrieval": World(BARELY[::-1], retrieval=1),
    "the same, half of them retrieval": World(BARELY, retrieval=6),
    "many equal": World((0.85,) * 6 + (0.8, 0.75, 0.7, 0.6, 0.5, 0.4)),
    "strong draw effects": World(BARELY, by_draw=1.0),
    "strong draw effects, no difference": World((0.7,) * 12, by_draw=1.0),
    "nearly all right": World((0.985, *[0.9645] * 11)),
    "rising curve": World(RISING),
    "falling curve": World(RISING[::-1], by_draw=0.6),
}


def simulations(target: Target, draws: int, rows: int, trials: int, only: str) -> None:
    """Print a line for each world: errors against the sweep's means or the true ones, as the target says."""
    for name, world in WORLDS.items():
        if only not in name:
            continue
        rng, true = np.random.default_rng(2), np.array(world.accuracies)
        outcomes, losses, shares, true_losses = [], [], [], []
        for _ in range(trials):
            grid = world.grid(name, draws, rows, rng)
            swept = int(grid.truth.argmax())
            if target == "new":
                grid = grid._replace(truth=true)
            outcomes.append(race(grid, in_schedule(grid, rng), 0.02, target))
            choice = outcomes[-1].choice
            losses.append(grid.truth.max() - grid.truth[choice])
            true_losses.append(true.max() - true[[choice, swept]])
            shares.append(outcomes[-1].spent / grid.predictions)
        decided = np.array([outcome.decided for outcome in outcomes])
        off = (np.array(true_losses) > 0.02 + 1e-9).mean(axis=0)
        cells = [
            name,
            f"{np.mean([outcome.ever_out for outcome in outcomes]):.1%}",
            f"{(decided & (np.array(losses) > 0.02 + 1e-9)).mean():.1%}",
            f"{decided.mean():.0%}",
            f"{np.median(shares):.1%}",
            f"{off[0]:.1%} / {off[1]:.1%}",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Read what is asked and print Markdown rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["replays", "budgets", "simulations"])
    parser.add_argument("predictions", type=Path, nargs="?", help="the published predictions")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--margins", default="0.01,0.02,0.05")
    parser.add_argument("--only", default="", help="grids or worlds with this in their names")
    parser.add_argument("--target", choices=["sweep", "new"], default="sweep")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--growth", type=float, default=Rules.growth, help="of rounds, in replays")
    parser.add_argument("--queries", type=float, help="replays: what is shown costs, so many pay for it")
    given = parser.parse_args()
    if given.what == "simulations":
        simulations(given.target, given.draws, given.rows, given.trials, given.only)
        return
    if given.predictions is None:
        parser.error("replays need the file of the published predictions")
    margins = [float(margin) for margin in given.margins.split(",")]
    for grid in grids(given.predictions):
        if given.only not in grid.name:
            continue
        if given.what == "replays":
            replays(grid, margins, given.trials, given.growth, given.queries)
        else:
            budgets(grid, margins, given.trials)


if __name__ == "__main__":
    main()
