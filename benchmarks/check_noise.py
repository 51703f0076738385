"""False alarms of ``icl-bench check`` on stored predictions, for four kinds of noise, and losses that it finds.

    python benchmarks/check_noise.py [--seeds 20]

15 points of results/headlines.parquet: Gemma 3 270M, five tasks, random demonstrations, k = 10, 50 and 100, five draws
and 250 test rows. Tables as in docs/check.md.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from icl_bench.analysis.curves import curves
from icl_bench.analysis.regression import compare, overall, pair
from icl_bench.report.leaderboard_check import compare_leaderboards

RESULTS = Path(__file__).parents[1] / "results"
TOLERANCE, ALPHA = 0.01, 0.05
VARIANT = "stored"

Sides = tuple[pd.DataFrame, pd.DataFrame]


def stored(path: Path) -> pd.DataFrame:
    """The predictions of a file that this benchmark uses, labels as texts."""
    frame = pd.read_parquet(path)
    frame = frame.astype(dict.fromkeys(frame.select_dtypes("category"), object))
    chosen = (frame["model"] == "gemma3-270m") & (frame["select"] == "random") & frame["k"].isin([10, 50, 100])
    kept = frame[chosen].assign(variant=VARIANT, backend="", prompt_hash=None, label_space=None, perturbation=None)
    return kept.assign(correct=kept["gold"] == kept["prediction"], valid=True).reset_index(drop=True)


def changed(frame: pd.DataFrame, rng: np.random.Generator, to_wrong: float, to_right: float) -> pd.DataFrame:
    """The predictions with these shares of each point's changed from right to wrong, and the other way about."""
    right = frame["correct"].to_numpy(dtype=bool)
    share = frame.groupby(["task", "k"])["correct"].transform("mean").to_numpy()
    chance = np.where(right, to_wrong / share, to_right / (1 - share))
    flipped = rng.random(len(frame)) < chance
    predictions = np.where(flipped, np.where(right, "another label", frame["gold"]), frame["prediction"])
    return frame.assign(prediction=predictions, correct=right ^ flipped)


def formats(frame: pd.DataFrame, seeds: int) -> Iterator[Sides]:
    """As many changes as between float32 on a CPU and bfloat16 on a GPU (below), as often to right as to wrong."""
    for seed in range(seeds):
        yield frame, changed(frame, np.random.default_rng(seed), 0.0056, 0.0056)


def packs(frame: pd.DataFrame, seeds: int) -> Iterator[Sides]:
    """A fifth of them, as other packs of queries make."""
    for seed in range(seeds):
        yield frame, changed(frame, np.random.default_rng([seed, 1]), 0.0011, 0.0011)


def draws(frame: pd.DataFrame, seeds: int) -> Iterator[Sides]:
    """Other demonstrations: two of the five draws against the other three, and the other way about."""
    for some in itertools.islice(itertools.combinations(range(5), 2), (seeds + 1) // 2):
        two = frame["draw"].isin(some)
        yield frame[two], frame[~two]
        yield frame[~two], frame[two]


def rows(frame: pd.DataFrame, seeds: int) -> Iterator[Sides]:
    """Other test rows: one half of them against the other."""
    tests = frame["test_id"].unique()
    for seed in range(seeds):
        half = frame["test_id"].isin(np.random.default_rng([seed, 2]).permutation(tests)[: len(tests) // 2])
        yield frame[half], frame[~half]


def worse(loss: float, task: str | None = None) -> Callable[[pd.DataFrame, int], Iterator[Sides]]:
    """Runs that lose this share of all predictions, in one task or in all."""

    def made(frame: pd.DataFrame, seeds: int) -> Iterator[Sides]:
        concerned = frame["task"] == task if task else frame["task"].notna()
        for seed in range(seeds):
            rng = np.random.default_rng([seed, 3])
            parts = [changed(frame[concerned], rng, loss + 0.0056, 0.0056), frame[~concerned]]
            yield frame, pd.concat(parts, ignore_index=True)

    return made


def fails_by_predictions(base: pd.DataFrame, now: pd.DataFrame) -> bool:
    """Whether a check against an export fails."""
    pairs = pair(base, now, {(VARIANT, VARIANT)})
    whole = overall(pairs, TOLERANCE, ALPHA)
    points = compare(pairs, TOLERANCE, whole.alpha_points)
    return whole.verdict == "loss" or bool((points["verdict"] == "loss").any())


def fails_by_board(base: pd.DataFrame, now: pd.DataFrame) -> bool:
    """Whether a check against a leaderboard's CSV fails."""
    return compare_leaderboards(curves(base), curves(now), ("base", "now"), TOLERANCE, ALPHA).lost


def main() -> None:
    """Print how many of the runs fail, and what another number format changes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    frame = stored(RESULTS / "headlines.parquet")
    other = stored(RESULTS / "baseline" / "gemma3-270m.parquet")
    keys = ["task", "k", "draw", "test_id"]
    both = other.merge(frame, on=keys, suffixes=("_other", ""))
    answers = (both["prediction"] != both["prediction_other"]).mean()
    right = (both["correct"] != both["correct_other"]).mean()
    print(
        f"float32 on a CPU, bfloat16 on a GPU: {answers:.2%} of {len(both)} answers differ, {right:.2%} in being right"
    )
    same = frame.merge(other[keys], on=keys)
    failing = [fails_by_predictions(other, same), fails_by_predictions(same, other)]
    print(f"checked, each as the other's baseline, fails: {failing}")
    print("| run | runs | fail, baseline of predictions | fail, leaderboard |\n| --- | ---: | ---: | ---: |")
    for name, made, paired in [
        ("noise: number format", formats, True),
        ("noise: size of packs", packs, True),
        ("noise: other draws", draws, False),
        ("noise: other test rows", rows, False),
        ("loses 2 points in all tasks", worse(0.02), True),
        ("loses 5 points in all tasks", worse(0.05), True),
        ("loses 10 points in all tasks", worse(0.1), True),
        ("loses 5 points in TREC", worse(0.05, "trec"), True),
        ("loses 10 points in TREC", worse(0.1, "trec"), True),
        ("loses 20 points in TREC", worse(0.2, "trec"), True),
    ]:
        sides = list(made(frame, seeds))
        by_predictions = str(sum(fails_by_predictions(*side) for side in sides)) if paired else "refused"
        by_board = sum(fails_by_board(*side) for side in sides)
        print(f"| {name} | {len(sides)} | {by_predictions} | {by_board} |", flush=True)


if __name__ == "__main__":
    main()
