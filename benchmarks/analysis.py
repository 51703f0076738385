"""The analysis at a large study's size: seconds of each table, and the most memory held.

    python benchmarks/analysis.py [--curves 100]

Made-up predictions: 100 curves of 10 ks, 10 draws and 250 test examples are 2.5 million.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from icl_bench.analysis.curves import curves
from icl_bench.analysis.findings.calibration import calibration_error, reliability
from icl_bench.analysis.findings.comparisons import compare_models, retrieval_gain, sorting_penalty
from icl_bench.analysis.findings.demonstrations import by_distance, by_presence, copying
from icl_bench.analysis.findings.label_bias import confusions, label_bias, label_frequencies
from icl_bench.analysis.findings.order import noise_floor, order_sensitivity
from icl_bench.analysis.findings.saturation import context_shares, saturation_chances

SHOTS = np.array([1, 5, 10, 25, 50, 100, 250, 500, 1000, 2000])
DRAWS, TEST, LABELS = 10, 250, 77
WAYS = [("random", "drawn"), ("random", "by-label"), ("random", "shuffled:1"), ("bm25", "relevance")]


def predictions(count: int, rng: np.random.Generator) -> pd.DataFrame:
    """One row a prediction, as ``read_results`` gives them."""
    size = len(SHOTS) * DRAWS * TEST  # of a curve
    number = np.arange(count * size)
    curve, cell = number // size, number // TEST
    k, test = number // (DRAWS * TEST) % len(SHOTS), number % TEST
    pair, way = np.divmod(curve, len(WAYS))
    task, model = np.divmod(pair, 5)
    gold = rng.integers(0, LABELS, (5, TEST))[task % 5, test]
    right = rng.random(len(number)) < 0.3 + 0.06 * k
    said = np.where(right, gold, rng.integers(0, LABELS, len(number)))
    chance = rng.uniform(0.2, 1, len(number))

    def words(code: np.ndarray, names: list[str]) -> Any:
        return pd.Categorical.from_codes(code, names)  # type: ignore[call-overload]

    def named(name: str, code: np.ndarray) -> pd.Series[str]:
        names = pd.Series([f"{name} {i}" for i in range(int(code.max()) + 1)], dtype="str")
        return names.take(code).reset_index(drop=True)

    return pd.DataFrame(
        {
            "task": words(task, [f"task {i}" for i in range(task.max() + 1)]),
            "model": words(model, [f"model {i}" for i in range(5)]),
            "select": words((way == 3).astype(int), ["random", "bm25"]),
            "order": words(way, [order for _, order in WAYS]),
            "attention": words(0 * way, ["full"]),
            "variant": words(model, [f"variant {i}" for i in range(5)]),
            "cell": words(cell, [f"{i:012x}" for i in range(cell.max() + 1)]),
            "k": SHOTS[k].astype(np.int32),
            "draw": (number // TEST % DRAWS).astype(np.int32),
            "test_id": named("test", test),
            "gold": named("label", gold),
            "prediction": named("label", said),
            "correct": gold == said,
            "valid": True,
            "probability": 0.9 * chance,
            "label_mass": 0.9,
            "prompt_tokens": (20 * SHOTS[k]).astype(np.int32),
            "prompt_hash": named("prompt", np.where((way == 2) & (k == 0), number - 2 * size, number)),
        }
    )


def demonstrations(frame: pd.DataFrame, rng: np.random.Generator) -> dict[str, list[str]]:
    """The ids of each cell's: those of a smaller k begin those of a larger one."""
    draws = [[f"train {i}" for i in rng.permutation(int(SHOTS[-1]))] for _ in range(DRAWS)]
    cells = frame.drop_duplicates("cell")
    return {c: draws[d][:k] for c, d, k in zip(cells["cell"], cells["draw"], cells["k"], strict=True)}


def main() -> None:
    """Time every table once and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--curves", type=int, default=100)
    rng = np.random.default_rng(0)
    frame = predictions(parser.parse_args().curves, rng)
    shared = demonstrations(frame, rng)
    labels = {f"train {i}": f"label {i % LABELS}" for i in range(int(SHOTS[-1]))}
    windows = {f"model {i}": 80_000 for i in range(5)}
    tables: dict[str, Callable[[], Any]] = {
        "curves": lambda: curves(frame),
        "order_sensitivity": lambda: order_sensitivity(frame),
        "noise_floor": lambda: noise_floor(frame),
        "retrieval_gain": lambda: retrieval_gain(frame),
        "sorting_penalty": lambda: sorting_penalty(frame),
        "compare_models": lambda: compare_models(frame, "model 0"),
        "saturation_chances": lambda: saturation_chances(frame, rng),
        "context_shares": lambda: context_shares(frame, windows),
        "label_frequencies": lambda: label_frequencies(frame),
        "label_bias": lambda: label_bias(frame),
        "confusions": lambda: confusions(frame),
        "by_presence": lambda: by_presence(frame, labels, shared),
        "by_distance": lambda: by_distance(frame, labels, shared),
        "copying": lambda: copying(frame, shared),
        "reliability": lambda: reliability(frame),
        "calibration_error": lambda: calibration_error(frame, rng),
    }
    print(f"{len(frame):,} predictions; before the first table {peak():.2f} GiB")
    total = 0.0
    for name, make in tables.items():
        start = time.perf_counter()
        rows = len(make())
        seconds = time.perf_counter() - start
        total += seconds
        print(f"{name:>20}: {seconds:6.2f} s, {rows:>7,} rows, peak {peak():.2f} GiB", flush=True)
    print(f"{'all':>20}: {total:6.2f} s")


def peak() -> float:
    """The most memory this process has held, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
