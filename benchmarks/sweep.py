"""Time and memory of a whole sweep, beside a reference script on the same model and data.

    python benchmarks/sweep.py --data DIR --reference packed_sweep.py [--dtype auto] [--rounds 1]

Each side runs in a process of its own, one after the other, so that its peak memory is its own.
Both are timed from the first prefix token to the last answer, the loaded model given. Figures of
different machines, or of different runs, are not to be compared; the ratio in one run is.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from timed import in_own_process, timed

SHOTS = (1, 10, 50, 100, 250, 400, 1000)


def ours(data: Path, dtype: str, rows: int, results: Path | None) -> dict[str, Any]:
    """Sweep Banking-77 with this program; seconds, accuracy, counts, peak memory."""
    from icl_bench.sweep.run_spec import RunSpec

    spec = RunSpec(
        task="banking77",
        model="gemma3-270m",
        k=",".join(map(str, SHOTS)),
        draws=1,
        test_size=rows,
        data_dir=data,
        dtype=dtype,
    )
    done = timed(spec, results)
    return {
        "seconds": done.seconds,
        "dtype": done.backend.identity()["dtype"],
        "accuracy": done.predictions.groupby("k")["correct"].mean().to_dict(),
        "prefix_tokens_computed": done.backend.counters.prefix_tokens,
        "longest_prefix": done.longest_prefix,
        "own_tokens_computed": done.backend.counters.own_tokens,
        "own_tokens": done.own_tokens,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def reference(script: Path, data: Path, rows: int) -> dict[str, Any]:
    """Run the reference script as it is and read what it prints."""
    from icl_bench.models.registry import resolve

    folder = resolve("gemma3-270m").source
    command = [sys.executable, str(script), folder, str(data / "banking77"), str(rows)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    last = output.strip().splitlines()[-1]
    seconds = float(re.search(r"total=([0-9.]+)s", last)[1])  # type: ignore[index]
    accuracy = float(re.search(r"accuracy=([0-9.]+)", last)[1])  # type: ignore[index]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    return {"seconds": seconds, "accuracy": accuracy, "peak_gib": peak}


def _in_own_process(side: str, arguments: argparse.Namespace) -> dict[str, Any]:
    words = ["--side", side, "--data", str(arguments.data)]
    words += ["--rows", str(arguments.rows), "--dtype", arguments.dtype]
    if arguments.results:
        words += ["--results", str(arguments.results)]
    if arguments.reference:
        words += ["--reference", str(arguments.reference)]
    found: dict[str, Any] = in_own_process(__file__, *words)
    return found


def main() -> None:
    """Run both sides in turn and print figures and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="data folder with banking77/")
    parser.add_argument("--reference", type=Path, help="the reference script")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rows", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--results", type=Path, help="keep the predictions here (a new folder)")
    parser.add_argument("--side", choices=("ours", "reference"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side == "ours":
        found = ours(arguments.data, arguments.dtype, arguments.rows, arguments.results)
        print(json.dumps(found))
        return
    if arguments.side == "reference":
        print(json.dumps(reference(arguments.reference, arguments.data, arguments.rows)))
        return
    for _ in range(arguments.rounds):
        mine = _in_own_process("ours", arguments)
        print("ours:     ", json.dumps(mine), flush=True)
        computed = mine["prefix_tokens_computed"] + mine["own_tokens_computed"]
        print(
            f"computed prompt tokens / (longest prefix + queries' own): "
            f"{computed / (mine['longest_prefix'] + mine['own_tokens']):.4f}"
        )
        if arguments.reference:
            theirs = _in_own_process("reference", arguments)
            print("reference:", json.dumps(theirs), flush=True)
            print(f"time, ours / reference: {mine['seconds'] / theirs['seconds']:.2f}", flush=True)


if __name__ == "__main__":
    main()
