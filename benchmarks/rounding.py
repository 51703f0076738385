"""How many answers a 16-bit format changes, with the library's layers and with ours, and seconds.

    python benchmarks/rounding.py --data DIR [--task nlu] [--k 10,100] [--rows 250]

The same cells three times on the CPU: in float32, in bfloat16 with the library's layers, and in
bfloat16 with those of :mod:`icl_bench.backends.cpu_layers`. Each sweep is in a process of its own,
the loaded model given.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIDES = {"float32": ("float32", True), "library": ("bfloat16", False), "ours": ("bfloat16", True)}
"""By name: the format, and whether the layers are ours."""


def side(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Sweep in one format: seconds, and predictions by k and test row."""
    from icl_bench.backends import loaded_model
    from icl_bench.backends.spec import BackendSpec
    from icl_bench.results.reading import read_results
    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep

    dtype, ours = SIDES[name]
    if not ours:
        loaded_model.refit = lambda *_: None  # type: ignore[attr-defined]
    spec = RunSpec(
        task=arguments.task,
        model=arguments.model,
        k=arguments.k,
        draws=1,
        test_size=arguments.rows,
        data_dir=arguments.data,
        backend=BackendSpec(backend="transformers", device="cpu", dtype=dtype),
    )
    sweep = Sweep.prepare(spec)
    backend = sweep.load_backend()
    sweep.load_backend = lambda: backend  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        sweep.run(Path(folder))
        seconds = time.perf_counter() - start
        frame = read_results(folder)
    answers = {
        str(k): rows.set_index("test_id")["prediction"].to_dict() for k, rows in frame.groupby("k")
    }
    accuracy = frame.groupby("k")["correct"].mean().to_dict()
    return {"seconds": seconds, "answers": answers, "accuracy": accuracy}


def main() -> None:
    """Run the three in turn; print how many answers differ from those of float32, and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="data folder")
    parser.add_argument("--task", default="nlu")
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--k", default="10,100")
    parser.add_argument("--rows", type=int, default=250)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(side(arguments.side, arguments)))
        return
    found = {}
    for name in SIDES:
        command = [sys.executable, __file__, *sys.argv[1:], "--side", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
    exact = found["float32"]
    for name, one in found.items():
        print(f"{name}: {one['seconds'] / exact['seconds']:.2f} of float32's seconds")
        for k, answers in one["answers"].items():
            other = sum(answers[row] != said for row, said in exact["answers"][k].items())
            share, right = other / len(answers), one["accuracy"][k]
            print(f"  k={k}: {other} of {len(answers)} differ ({share:.1%}), accuracy {right:.3f}")


if __name__ == "__main__":
    main()
