"""How many answers a 16-bit format changes, with the libraries' layers and with ours, and seconds.

    python benchmarks/rounding.py --data DIR [--task nlu] [--k 10,100] [--rows 250]

The same cells four times on the CPU: in float32, in bfloat16 with the libraries' layers and
attention, with the layers of :mod:`icl_bench.backends.transformers.cpu_layers`, and with these and the attention
of :mod:`icl_bench.backends.transformers.attention_products`, which this processor may or may not choose itself.
Each sweep is in a process of its own, the loaded model given.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from timed import answers, in_own_process, spec_of, timed

SIDES = {
    "float32": ("float32", True, False),
    "libraries": ("bfloat16", False, False),
    "our layers": ("bfloat16", True, False),
    "and attention": ("bfloat16", True, True),
}
"""By name: the format, and whether the layers are ours and the attention is."""


def side(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Sweep in one format: seconds, predictions by k and test row, accuracy by k."""
    from icl_bench.backends.transformers import attention_products, loaded_model

    dtype, layers, attention = SIDES[name]
    attention_products.pays = lambda: attention  # type: ignore[assignment]
    if not layers:
        loaded_model.refit = lambda *_: None  # type: ignore[attr-defined]
    done = timed(spec_of(arguments, backend="transformers", device="cpu", dtype=dtype))
    accuracy = done.predictions.groupby("k")["correct"].mean().to_dict()
    said = answers(done.predictions)
    return {"seconds": done.seconds, "answers": said, "accuracy": accuracy}


def main() -> None:
    """Run all in turn; print how many answers differ from those of float32, and ratios."""
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
    found = {name: in_own_process(__file__, *sys.argv[1:], "--side", name) for name in SIDES}
    exact = found["float32"]
    for name, one in found.items():
        print(f"{name}: {one['seconds'] / exact['seconds']:.2f} of float32's seconds")
        for k, said in one["answers"].items():
            other = sum(said[row] != wanted for row, wanted in exact["answers"][k].items())
            share, right = other / len(said), one["accuracy"][k]
            print(f"  k={k}: {other} of {len(said)} differ ({share:.1%}), accuracy {right:.3f}")


if __name__ == "__main__":
    main()
