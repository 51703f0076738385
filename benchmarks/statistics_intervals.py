"""How often the analysis is right: coverage, false alarms and power in simulated sweeps.

    python benchmarks/statistics_intervals.py [--trials 1000] [--only intervals,comparisons,...]

Prints the tables of docs/statistics.md. An answer is right with a probability whose log-odds are
the point's own and what its draw, its test example, and point and example together add; these are
normal. "Draws' sd" is how far the true accuracies of draws differ, in points, at the first point of
the row. True means are integrals, not simulated.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from icl_bench.analysis.findings.replication import DIFFERENT, SAME, UNDETERMINED, verdicts
from icl_bench.analysis.statistics.best import Candidate, best_interval, leads, losses
from icl_bench.analysis.statistics.contrast import contrast, judge
from icl_bench.analysis.statistics.dominance import DOMINATED, ON, dominance
from icl_bench.analysis.statistics.grid import Grid
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.analysis.statistics.paired import holm
from icl_bench.analysis.statistics.power import components, power
from icl_bench.analysis.statistics.texts import ratio_limits, sampled

TEST_SD, BOTH_SD = 2.0, 0.3
"""Log-odds by test example and by test example and point: as the study's predictions have them,
where mean squares by test examples are 10 to 20 times the residual."""


MARGIN = 0.05


@dataclass(frozen=True)
class Sweep:
    """Points of one task and model."""

    means: tuple[float, ...]
    """True mean accuracies."""
    draws: int = 3
    draw_sd: float = 0.3
    """In log-odds."""
    alike: float = 0.0
    """Correlation of a draw's effects on different points: 0 for draws of their own."""
    test: int = 250
    fades: bool = False
    """Draws differ ten times as much at the first point as at the last, as they do over k."""

    @property
    def draw_sds(self) -> np.ndarray:
        """How far draws differ at each point, in log-odds: ``(points,)``."""
        ends = (3.3, 0.33) if self.fades else (1.0, 1.0)
        return self.draw_sd * np.geomspace(*ends, len(self.means))

    @property
    def odds(self) -> np.ndarray:
        """Log-odds of the points, ``(points,)``."""
        return np.array([_odds(mean, float(sd)) for mean, sd in zip(self.means, self.draw_sds, strict=True)])

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Right answers, ``(points, draws, test)``."""
        points = len(self.means)
        shared, own = rng.normal(size=(1, self.draws, 1)), rng.normal(size=(points, self.draws, 1))
        of_draw = np.sqrt(self.alike) * shared + np.sqrt(1 - self.alike) * own
        of_test = rng.normal(0, TEST_SD, self.test) + rng.normal(0, BOTH_SD, (points, 1, self.test))
        odds = self.odds[:, None, None] + self.draw_sds[:, None, None] * of_draw + of_test
        right: np.ndarray = (rng.random(odds.shape) < expit(odds)).astype(float)
        return right

    def draw_points(self) -> float:
        """How far true accuracies of draws differ at the first point: a deviation, in points."""
        at = norm.ppf((np.arange(200) + 0.5) / 200)
        spread = np.hypot(TEST_SD, BOTH_SD)
        draws = expit(self.odds[0] + self.draw_sd * at[:, None] + spread * at[None, :]).mean(axis=1)
        return 100 * float(draws.std())


@cache
def _odds(mean: float, draw_sd: float) -> float:
    """The log-odds of the median answer that give a mean accuracy: by bisection."""
    spread = np.sqrt(draw_sd**2 + TEST_SD**2 + BOTH_SD**2)
    normal = spread * norm.ppf((np.arange(4000) + 0.5) / 4000)
    low, high = -15.0, 15.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expit(middle + normal).mean() < mean else (low, middle)
    return low


def intervals(trials: int) -> Iterable[str]:
    """Coverage of a point's 95% limits."""
    yield from header("accuracy %", "draws", "draws' sd", "too high", "too low", "coverage %")
    for draws in (3, 5, 10):
        for mean in (0.1, 0.5, 0.8, 0.9, 0.98):
            for draw_sd in (0.0, 0.3, 0.6, 1.0):
                sweep = Sweep((mean,), draws, draw_sd)
                limits = np.array([mean_interval(s[0])[1:] for s in samples(sweep, trials)])
                high, low = (limits[:, 0] > mean).mean(), (limits[:, 1] < mean).mean()
                yield row(mean * 100, draws, sweep.draw_points(), high * 100, low * 100, (1 - high - low) * 100)


def comparisons(trials: int) -> Iterable[str]:
    """Shares of p <= 0.05 (two-sided) where there is no difference, and where there is one."""
    yield from header(
        "accuracy %", "draws", "draws' sd", "common draws", "false alarms %", "found, 5 points %", "found, 10 points %"
    )
    for draws in (2, 3, 10):
        for mean in (0.5, 0.85):
            for draw_sd, alike, matched in ((0.15, 0, False), (0.6, 0, False), (0.6, 0.5, True)):
                found = []
                for less in (0, 0.05, 0.1):
                    sweep = Sweep((mean, mean - less), draws, draw_sd, alike)
                    sides = [contrast(s[0], s[1], matched) for s in samples(sweep, trials)]
                    found.append(100 * np.mean([judge([side])[2][0] <= 0.05 for side in sides]))
                yield row(mean * 100, draws, sweep.draw_points(), matched, *found)


ADVICE: dict[str, tuple[float, ...]] = {
    "2 points, the cheap one loses 0.5": (0.795, 0.8),
    "5 points, the cheapest loses 0.5, others 6 to 10": (0.795, 0.7, 0.72, 0.74, 0.8),
    "5 points, four lose 0.5": (0.795, 0.795, 0.795, 0.795, 0.8),
    "2 points, the cheap one loses 5": (0.75, 0.8),
    "5 points, four lose 5": (0.75, 0.75, 0.75, 0.75, 0.8),
}
"""Sweeps in order of cost."""


def advice(trials: int) -> Iterable[str]:
    """How often advice is wrong, and how often it finds the cheapest point."""
    yield from header(
        "sweep",
        "draws",
        "draws' sd",
        "common draws",
        "margin or more lost %",
        "cheapest advised %",
        "cheaper than the best found %",
    )
    for name, means in ADVICE.items():
        for draws in (3, 10):
            for draw_sd, alike in ((0.15, 0.0), (0.3, 0.0), (0.3, 0.5)):
                sweep = Sweep(means, draws, draw_sd, alike)
                taken = [taken_of(sample, alike > 0) for sample in samples(sweep, trials)]
                lost = [c and max(means) - means[t] > MARGIN - 1e-9 for t, c in taken]
                yield row(
                    name,
                    draws,
                    sweep.draw_points(),
                    alike > 0,
                    100 * np.mean(lost),
                    100 * np.mean([t == 0 for t, _ in taken]),
                    100 * np.mean([c for _, c in taken]),
                )


def taken_of(sample: np.ndarray, alike: bool) -> tuple[int, bool]:
    """Which point is advised, and whether it is claimed to lose less than the margin.

    That is ``analysis.advice.advise`` on arrays: points are in order of cost, all in the budget.
    """
    candidates = candidates_of(sample, alike)
    best = int(sample.mean(axis=(1, 2)).argmax())
    told = holm(losses(candidates, sample.ravel(), range(best), MARGIN).large) <= 0.05
    return (int(told.argmax()), True) if told.any() else (best, False)


def candidates_of(sample: np.ndarray, alike: bool) -> list[Candidate]:
    """The points of ``(points, draws, test)``, their draws of one source where they are ``alike``."""
    draws, tests = (np.arange(size) for size in sample.shape[1:])
    places = np.arange(sample.size).reshape(sample.shape)
    return [
        Candidate(Grid(draws, tests, rows), "same" if alike else str(number), 2**number)
        for number, rows in enumerate(places)
    ]


FRONTIERS: dict[str, tuple[float, ...]] = {
    "2 points, equal": (0.8, 0.8),
    "2 points, 0.1 apart": (0.8, 0.801),
    "2 points, 5 apart": (0.8, 0.85),
    "10 points, equal": (0.8,) * 10,
    "10 points, each 0.1 above the last": tuple(0.8 + 0.001 * np.arange(10)),
    "10 points, nine equal, the most expensive 2 above": (*(0.78,) * 9, 0.8),
    "10 points, the cheapest 10 above": (0.8, *(0.7,) * 9),
    "10 points, equal, near 100%": (0.98,) * 10,
    "10 points, each 0.1 above the last, near 0%": tuple(0.02 + 0.001 * np.arange(10)),
    "10 points, from 40 to 85 in steps of 5": tuple(np.linspace(0.4, 0.85, 10)),
    "30 points, equal": (0.8,) * 30,
    "30 points, each 0.1 above the last": tuple(0.8 + 0.001 * np.arange(30)),
    "30 points, 29 equal, the most expensive 3 above": (*(0.77,) * 29, 0.8),
}
"""Sweeps in order of cost."""


def frontiers(trials: int) -> Iterable[str]:
    """How often some verdict of the frontier is wrong, and how often there is one where it is right."""
    yield from header(
        "points by cost",
        "draws",
        "test rows",
        "draws' sd",
        "common draws",
        "some point wrongly dominated %",
        "some point wrongly on the frontier %",
        "found, dominated %",
        "found, on the frontier %",
    )
    of_draws = (
        (3, 250, 0.3, 0.0, False),
        (3, 250, 0.3, 0.5, False),
        (3, 250, 0.3, 0.5, True),
        (3, 20, 0.3, 0.0, False),
        (3, 1000, 0.6, 0.0, False),
        (10, 250, 0.3, 0.5, False),
    )
    for name, means in FRONTIERS.items():
        true = np.array([mean > max(means[:at], default=0) for at, mean in enumerate(means)])
        costs = np.arange(len(means), dtype=float)
        for draws, test, draw_sd, alike, fades in of_draws:
            sweep = Sweep(means, draws, draw_sd, alike, test, fades)
            verdicts = np.array(
                [
                    dominance(leads(candidates_of(sample, alike > 0), sample.ravel()), costs).verdicts
                    for sample in samples(sweep, trials)
                ]
            )
            wrong = (verdicts == DOMINATED) & true, (verdicts == ON) & ~true
            right = verdicts[:, ~true] == DOMINATED, verdicts[:, true][:, 1:] == ON  # the cheapest is no finding
            yield row(
                name,
                draws,
                test,
                "10 to 1" if fades else sweep.draw_points(),
                alike > 0,
                *(100 * float(part.any(axis=1).mean()) for part in wrong),
                *(100 * float(part.mean()) if part.size else "none" for part in right),
            )


def powers(trials: int) -> Iterable[str]:
    """How often a difference is found, beside what is said beforehand from the true variances."""
    yield from header("accuracy %", "draws", "test rows", "common draws", "true difference", "computed %", "observed %")
    for draws, test, draw_sd, alike in (
        (3, 250, 0.3, 0.5),
        (3, 250, 0.3, 0.0),
        (3, 1000, 0.15, 0.5),
        (5, 250, 0.3, 0.5),
        (10, 250, 0.3, 0.5),
        (10, 250, 0.6, 0.0),
        (10, 100, 0.15, 0.5),
        (20, 500, 0.6, 0.5),
    ):
        for mean, less in ((0.8, 0.05), (0.5, 0.1)):
            matched, sweep = alike > 0, Sweep((mean, mean - less), draws, draw_sd, alike, test)
            many = Sweep((mean, mean - less), 400, draw_sd, alike, 4000)
            first, second = next(iter(samples(many, 1)))
            of = components(first, second, matched)
            assert of is not None
            sides = [contrast(s[0], s[1], matched) for s in samples(sweep, trials)]
            yield row(
                mean * 100,
                draws,
                test,
                matched,
                less * 100,
                100 * power(of, draws, test, less),
                100 * float(np.mean(judge(sides)[2] <= 0.05)),
            )


def best(trials: int) -> Iterable[str]:
    """Coverage of the limits for the highest of several points, and what they had been."""
    yield from header(
        "points",
        "accuracy %",
        "draws",
        "draws' sd",
        "common draws",
        "coverage %",
        "uncorrected coverage %",
        "mean width",
        "uncorrected width",
    )
    sweeps = [
        Sweep((mean,) * points, draws, draw_sd, alike)
        for points in (2, 10, 30)
        for mean, draws, draw_sd, alike in (
            (0.8, 3, 0.3, 0.0),
            (0.8, 3, 0.6, 0.5),
            (0.97, 3, 0.3, 0.0),
            (0.8, 10, 0.3, 0.0),
        )
    ]
    sweeps.append(Sweep(tuple(np.linspace(0.5, 0.9, 10)), 3, 0.3))
    for sweep in sweeps:
        held: list[tuple[bool, bool, float, float]] = []
        for sample in samples(sweep, trials):
            at = int(sample.mean(axis=(1, 2)).argmax())
            true = sweep.means[at]
            pair = best_interval(list(sample), at), mean_interval(sample[at])
            (here, width), (own, own_width) = ((i.low <= true <= i.high, 100 * (i.high - i.low)) for i in pair)
            held.append((here, own, width, own_width))
        shares = np.mean(held, axis=0) * [100, 100, 1, 1]
        of = f"{100 * min(sweep.means):g}" + (f" to {100 * max(sweep.means):g}" if len(set(sweep.means)) > 1 else "")
        yield row(len(sweep.means), of, sweep.draws, sweep.draw_points(), sweep.alike > 0, *shares)


def replication(trials: int) -> Iterable[str]:
    """How often two results of a known difference are called the same, different or neither."""
    yield from header(
        "draws", "draws' sd", "true difference", "same within 5 points %", "different %", "undetermined %"
    )
    for draws in (2, 3, 10):
        for draw_sd in (0.1, 0.3):
            for apart in (0, 5, 20):
                sweep = Sweep((0.8, 0.8 - apart / 100), draws, draw_sd)
                low, high, _ = judge([contrast(s[0], s[1], False) for s in samples(sweep, trials)])
                found = verdicts(low, high)
                shares = [100 * float((found == name).mean()) for name in (SAME, DIFFERENT, UNDETERMINED)]
                yield row(draws, sweep.draw_points(), apart, *shares)


def adaptation(trials: int) -> Iterable[str]:
    """Coverage of the limits of the share of an added loss that is won back, where it is 60%."""
    yield from header(
        "texts",
        "windows per text",
        "spread of texts",
        "spread of windows",
        "resampled windows, coverage %",
        "coverage %",
        "no interval %",
    )
    for texts, windows in ((1, 4), (1, 20), (4, 1), (4, 5), (10, 5)):
        for by_text, by_window in ((0.2, 0.2), (0.4, 0.2), (0.2, 0.5)) if texts > 1 else ((0.0, 0.2), (0.0, 0.5)):
            rng = np.random.default_rng([texts, windows])
            text_of = np.repeat(np.arange(texts), windows)
            held, limits = [], []
            for _ in range(trials):
                of_text = rng.normal(0, by_text, (2, texts, 1))
                lost = np.exp(of_text + rng.normal(0, by_window, (2, texts, windows))).reshape(2, -1)
                before, after = lost[0], 0.4 * lost[1]
                again = rng.integers(len(before), size=(500, len(before)))
                low, high = np.quantile(after[again].mean(1) / before[again].mean(1), [0.025, 0.975])
                held.append(low <= 0.4 <= high)
                limits.append(ratio_limits(sampled(after, text_of), sampled(before, text_of)))
            low, high = np.array(limits).T
            known = ~np.isnan(low)
            covered = ((low <= 0.4) & (high >= 0.4))[known].mean()
            yield row(
                texts,
                windows,
                by_text,
                by_window,
                *(100 * float(s) for s in (np.mean(held), covered, 1 - known.mean())),
            )


def samples(sweep: Sweep, trials: int) -> Iterable[np.ndarray]:
    """Simulated sweeps; the same for the same arguments."""
    rng = np.random.default_rng([len(sweep.means), sweep.draws, int(100 * sweep.draw_sd)])
    return (sweep.sample(rng) for _ in range(trials))


def header(*names: str) -> Sequence[str]:
    """The first two lines of a Markdown table."""
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def row(*cells: object) -> str:
    """A line of a Markdown table."""
    words = {True: "yes", False: "no"}
    shown = [
        words[cell] if isinstance(cell, bool) else f"{cell:.1f}" if isinstance(cell, float) else str(cell)
        for cell in cells
    ]
    return f"| {' | '.join(shown)} |"


SECTIONS: dict[str, Callable[[int], Iterable[str]]] = {
    "intervals": intervals,
    "comparisons": comparisons,
    "advice": advice,
    "frontiers": frontiers,
    "powers": powers,
    "best": best,
    "replication": replication,
    "adaptation": adaptation,
}


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, comma-separated")
    arguments = parser.parse_args()
    for name in arguments.only.split(","):
        print(f"\n## {name}: {arguments.trials:,} samples a row\n", flush=True)
        for line in SECTIONS[name](arguments.trials):
            print(line, flush=True)


if __name__ == "__main__":
    main()
