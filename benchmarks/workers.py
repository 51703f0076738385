"""Workers against threads: seconds and memory of a sweep by one process with 1 and N threads, and by N workers.

    python benchmarks/workers.py --rounds 2

All computation is measured from the first cell on, without loading. Ratios are of one run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil  # a dependency of accelerate

from icl_bench.results.reading import read_results

RUN = [sys.executable, "-m", "icl_bench", "run", "--task", "banking77", "--model", "gemma3-270m", "--quiet"]


def measured(options: list[str], threads: int, results: str) -> tuple[float, float, float]:
    """Seconds of the command, seconds since its first journal, and its highest memory in MiB, each page once."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    start, first, most = time.monotonic(), None, 0.0
    with subprocess.Popen([*RUN, *options, "--results", results], env=environment) as command:
        tree = psutil.Process(command.pid)
        while command.poll() is None:
            if first is None and any(Path(results).glob("**/*.jsonl")):
                first = time.monotonic()
            with suppress(psutil.Error):
                each = [tree, *tree.children(recursive=True)]
                most = max(most, sum(one.memory_full_info().pss for one in each) / 2**20)
            time.sleep(0.1)
    assert not command.returncode
    end = time.monotonic()
    return end - start, end - (first or start), most


def answers(results: str) -> list[str]:
    """All predictions, in an order that every run has."""
    frame = read_results(Path(results)).sort_values(["cell", "test_id"])
    return [str(one) for one in frame["prediction"]]


def main() -> None:
    """Run each way in turn, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--number", type=int, default=os.cpu_count(), help="workers, and threads of all together")
    parser.add_argument("--sweep", default="--k 10,50,100 --draws 2 --test-size 100")
    given = parser.parse_args()
    sweep, number = given.sweep.split(), given.number
    ways: dict[str, tuple[list[str], int]] = {"1 thread": ([], 1), f"{number} threads": ([], number)}
    ways[f"{number} workers"] = (["--workers", str(number)], number)
    known: list[str] | None = None
    for turn in range(given.rounds):
        for name, (options, threads) in ways.items():
            with tempfile.TemporaryDirectory() as results:
                whole, computing, memory = measured([*sweep, *options], threads, results)
                found = answers(results)
            known = known or found
            differ = sum(one != other for one, other in zip(known, found, strict=True))
            print(
                f"{turn + 1}: {name}: {computing:.1f} s computing, {whole:.1f} s in all, {memory:,.0f} MiB, "
                f"{differ} of {len(found)} answers differ from those of the first",
                flush=True,
            )


if __name__ == "__main__":
    main()
