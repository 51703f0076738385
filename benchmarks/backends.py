"""The same cells on the transformers backend and on vLLM: seconds, tokens a second, cached share.

    python benchmarks/backends.py --data DIR [--k 10,100,400] [--rows 50] [--dtype auto]

Each backend runs in a process of its own, one after the other; loading is printed apart. A cell's
seconds are the backend's, from its prefix to its last answer.
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

BACKENDS = ("transformers", "vllm")


def side(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Sweep with one backend."""
    from icl_bench.backends.spec import BackendSpec
    from icl_bench.results.reading import finished_cells, read_results
    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep

    spec = RunSpec(
        task=arguments.task,
        model=arguments.model,
        k=arguments.k,
        draws=1,
        test_size=arguments.rows,
        data_dir=arguments.data,
        backend=BackendSpec(backend=name, dtype=arguments.dtype),
    )
    sweep = Sweep.prepare(spec)
    start = time.perf_counter()
    backend = sweep.load_backend()
    started = time.perf_counter() - start
    sweep.load_backend = lambda: backend  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        sweep.run(Path(folder))
        seconds = {m["spec"]["k"]: m["seconds"] for _, m in finished_cells(Path(folder))}
        frame = read_results(folder)
    points = {}
    for k in sorted(seconds):
        rows = frame[frame["k"] == k]
        points[k] = {
            "seconds": seconds[k],
            "cached_share": rows["cached_tokens"].sum() / rows["prompt_tokens"].sum(),
            "prompt_tokens": int(rows["prompt_tokens"].sum()),
            "predictions": rows.set_index("test_id")["prediction"].to_dict(),
            "accuracy": rows["correct"].mean(),
        }
    cells = [cell for cell in sweep.plan.cells if cell.problem is None]
    own = sum(cell.prompt_tokens - cell.prefix_tokens * arguments.rows for cell in cells)
    return {
        "identity": backend.identity(),
        "started": started,
        "points": points,
        "computed": backend.counters.prompt_tokens,
        "least": max(cell.prefix_tokens for cell in cells) + own,
        "queries": arguments.rows * len(cells),
    }


def main() -> None:
    """Run both and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--task", default="banking77")
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--k", default="10,100,400")
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--side", choices=BACKENDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(side(arguments.side, arguments)))
        return
    found = {}
    for name in BACKENDS:
        command = [sys.executable, __file__, "--side", name, *sys.argv[1:]]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[name] = json.loads(done.stdout.strip().splitlines()[-1])
    for name, made in found.items():
        extra = (made["computed"] - made["least"]) / made["queries"]
        print(f"{name} {made['identity']}: started in {made['started']:.0f} s; computed "
              f"{made['computed']:,} prompt tokens, (longest prefix + queries' own) + "
              f"{extra:.0f} a query")  # fmt: skip
        for k, point in made["points"].items():
            rate = point["prompt_tokens"] / point["seconds"]
            print(
                f"  k={k:>5}: {point['seconds']:.1f} s, {rate:,.0f} prompt tokens/s, "
                f"{point['cached_share']:.1%} cached, accuracy {point['accuracy']:.3f}"
            )
    first, second = (made["points"] for made in found.values())
    for k in first:
        a, b = first[k]["predictions"], second[k]["predictions"]
        same = sum(a[row] == b[row] for row in a)
        print(f"k={k}: {same} of {len(a)} predictions equal; time vllm / transformers "
              f"{second[k]['seconds'] / first[k]['seconds']:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
