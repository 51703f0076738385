"""What the commands of a first look cost: processor seconds of each, beside what they may take.

    python benchmarks/startup.py [--model gemma3-270m] [--task stdlib_six] [--rounds 3]

Processor time (user and system) of a child process with one thread and a warm file cache, the best
of some rounds: a busy machine lengthens it, nothing shortens it. What is prepared once (the model,
its tokenizer) is prepared before; ``first`` is that preparation, in an empty cache folder. Ends
with 1 where a command takes longer than it may.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

PREDICTIONS = 1000
PREPARED = ["-c", "from icl_bench.models.registry import resolve; resolve('gemma3-270m')"]


def processor_seconds(arguments: Sequence[str], environment: Mapping[str, str]) -> float:
    """Of one run of this Python with arguments. Raises ``SystemExit`` where it fails."""
    child = subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert child.stderr is not None
    said = child.stderr.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {said.decode()}")
    return used.ru_utime + used.ru_stime


def write_results(folder: Path) -> None:
    """A folder with 1,000 made-up predictions: two k, five draws, 100 test rows."""
    import pandas as pd

    rng = np.random.default_rng(0)
    points = [(k, draw) for k in (1, 10) for draw in range(5)]
    rows = [
        {
            "task": "made-up",
            "model": "none",
            "select": "random",
            "order": "drawn",
            "k": k,
            "draw": draw,
            "test_id": str(row),
            "gold": "ab"[row % 2],
            "prediction": "ab"[row % 2 if rng.random() < 0.5 + k / 40 else 1 - row % 2],
        }
        for k, draw in points
        for row in range(PREDICTIONS // len(points))
    ]
    pd.DataFrame(rows).to_csv(folder / "rows.csv", index=False)
    command = ["-m", "icl_bench", "import", str(folder / "rows.csv"), "--results", str(folder)]
    processor_seconds(command, {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--task", default="stdlib_six")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    over = 0
    with tempfile.TemporaryDirectory() as name:
        results = Path(name) / "results"
        results.mkdir()
        write_results(results)
        both = ["--task", arguments.task, "--model", arguments.model]
        run = ["run", *both, "--k", "1", "--draws", "1", "--test-size", "4"]
        shown = Path(name) / "shown"
        one_thread = {"OMP_NUM_THREADS": "1"}
        processor_seconds(["-m", "icl_bench", *run, "--results", str(shown)], one_thread)
        commands: list[tuple[str, list[str], float]] = [
            ("--help", ["--help"], 0.3),
            ("tasks", ["tasks"], 0.6),
            ("summary", ["summary", "--results", str(results)], 1.5),
            ("plan", ["plan", *both, "--k", "1,10,100", "--draws", "3"], 3.0),
            ("show", ["show", "--task", arguments.task, "--k", "1", "--results", str(shown)], 3.0),
            ("tasks --check", ["tasks", "--check", *both[1:]], 3.0),
        ]
        for label, command, most in commands:
            seconds = [
                processor_seconds(["-m", "icl_bench", *command], one_thread) for _ in range(1 + arguments.rounds)
            ]
            over += report(label, min(seconds[1:]), most)
        cache = {**one_thread, "ICL_BENCH_CACHE": str(Path(name) / "cache")}
        over += report("first", processor_seconds(PREPARED, cache), 20.0)
    sys.exit(min(over, 1))


def report(label: str, seconds: float, most: float) -> bool:
    """Print a line; whether it is over."""
    over = seconds > most
    print(f"{label:15} {seconds:6.2f} s  of {most:4.1f} s{'  over' if over else ''}", flush=True)
    return over


if __name__ == "__main__":
    main()
