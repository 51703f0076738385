"""Whether this machine's card computes rightly, within its memory and at a fair rate.

    python benchmarks/gpu_check.py [--only kernels,memory] [--model DIR] [--out FILE.json]
    python benchmarks/gpu_check.py --device cpu --small     # every part in a minute, no figures

Prints a line for each finding and writes them as JSON; exit 1 where one fails. ``docs/gpu.md`` says
what each part checks and why its bound is what it is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from gpu.answers import answers, precision
from gpu.engine import engine
from gpu.findings import Options, Part, run_parts, write_json
from gpu.kernels import kernels
from gpu.lora import lora
from gpu.memory import memory
from gpu.speed import speed

PARTS: dict[str, Part] = {
    "kernels": kernels,
    "answers": answers,
    "precision": precision,
    "vllm": engine,
    "memory": memory,
    "speed": speed,
    "lora": lora,
}


def main() -> int:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU; nothing is measured")
    parser.add_argument("--only", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--model", type=Path, help="a folder with a model; else random weights")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"))
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"--only {','.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("there is no CUDA card here; --device cpu --small runs every part small")
    if arguments.device == "cpu" and not arguments.small:
        parser.error("--device cpu needs --small: the sizes are a card's")
    options = Options(arguments.device, arguments.small, arguments.model)
    found = run_parts({name: PARTS[name] for name in PARTS if name in chosen}, options)
    write_json(found, options, arguments.out)
    failed = [finding for finding in found if finding.passed is False]
    print(f"{len(found)} findings, {len(failed)} failed; {arguments.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
