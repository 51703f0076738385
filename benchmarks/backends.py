"""The same cells on the transformers backend and on vLLM: seconds, tokens a second, cached share.

    python benchmarks/backends.py --data DIR [--k 10,100,400] [--rows 50] [--dtype auto]

Each backend runs in a process of its own, one after the other; loading is printed apart. A cell's
seconds are the backend's, from its prefix to its last answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from timed import answers, in_own_process, spec_of, timed

BACKENDS = ("transformers", "vllm")


def side(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Sweep with one backend."""
    done = timed(spec_of(arguments, backend=name, dtype=arguments.dtype))
    said, frame = answers(done.predictions), done.predictions
    points = {}
    for k in sorted(done.cell_seconds):
        rows = frame[frame["k"] == k]
        points[k] = {
            "seconds": done.cell_seconds[k],
            "cached_share": rows["cached_tokens"].sum() / rows["prompt_tokens"].sum(),
            "prompt_tokens": int(rows["prompt_tokens"].sum()),
            "predictions": said[str(k)],
            "accuracy": rows["correct"].mean(),
        }
    return {
        "identity": done.backend.identity(),
        "started": done.load_seconds,
        "points": points,
        "computed": done.backend.counters.prompt_tokens,
        "least": done.longest_prefix + done.own_tokens,
        "queries": len(frame),
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
    found = {name: in_own_process(__file__, "--side", name, *sys.argv[1:]) for name in BACKENDS}
    for name, made in found.items():
        extra = (made["computed"] - made["least"]) / made["queries"]
        print(
            f"{name} {made['identity']}: started in {made['started']:.0f} s; computed "
            f"{made['computed']:,} prompt tokens, (longest prefix + queries' own) + "
            f"{extra:.0f} a query"
        )
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
        print(
            f"k={k}: {same} of {len(a)} predictions equal; time vllm / transformers "
            f"{second[k]['seconds'] / first[k]['seconds']:.2f}"
        )


if __name__ == "__main__":
    main()
