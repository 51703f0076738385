"""What 80,000 tokens of demonstrations cost a model of Llama-2-7B's shape on one card.

    python benchmarks/gpu_study.py [--backends transformers,vllm] [--out FILE.json]
    python benchmarks/gpu_study.py --device cpu --small    # runs small, measures nothing

Weights are random: what is measured does not depend on them. Printed are, for k demonstrations, the
seconds of a cell of 250 queries and of all cells together, each backend in a process of its own;
of the transformers backend also its memory and a prefill's share of the card's matrix product.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from gpu.engine import engine_backend
from gpu.findings import Options
from gpu.models import (
    LLAMA_2_7B,
    TINY,
    answered,
    backend_of,
    byte_tokenizer,
    config_of,
    prompts_of,
    random_network,
    shape_of,
)
from gpu.speed import rates
from safetensors.torch import save_file

from icl_bench.backends.interface import Decoding, Free, Greedy
from icl_bench.backends.label_constraint import compile_labels
from icl_bench.models.attention_patterns import FULL
from icl_bench.prompts.encoding import PromptSet
from icl_bench.sweep.compute_cost import flops

BACKENDS = ("transformers", "vllm")
SMALL = TINY | {"head_dim": 64, "hidden_size": 256}
"""Heads that vLLM has on a CPU."""
FREE = 5
GOAL_PREFILL, GOAL_SWEEP = 0.5, 120.0


def cells(small: bool) -> dict[int, PromptSet]:
    """Prompts by k: demonstrations of 80 tokens, 250 queries of 25, one prefix behind the other."""
    ks, size, queries = ((2, 5), 8, 4) if small else ((10, 100, 1000), 80, 250)
    return {k: prompts_of(k, size, queries, 7 if small else 25) for k in ks}


def side(name: str, options: Options, folder: Path | None, *, free: bool) -> dict[str, Any]:
    """Answer all cells with one backend, after one that does not count."""
    asked, dtype = cells(options.small), "bfloat16" if options.on_card else "float32"
    labels = [f" intent number {i}\n" for i in range(5 if options.small else 77)]
    config = config_of("llama", **(SMALL if options.small else LLAMA_2_7B))
    backend: Any
    tokenizer: Any = byte_tokenizer()
    if folder is None:
        network = random_network(config, options.device, dtype)
        backend = backend_of(network, options.device, dtype)
    else:
        longest = max(len(prompts.prefix) for prompts in asked.values())
        # no weights are read: speed does not depend on them
        backend, tokenizer = engine_backend(folder, longest + 100, dtype, load_format="dummy")
    decoding: Decoding = Free(("\x00no such text",), FREE) if free else Greedy(compile_labels(labels, tokenizer))
    answered(backend, prompts_of(1, 8, 2, 7), [decoding] * 2)
    found: dict[str, Any] = {"backend": name, "cells": {}}
    for k, prompts in asked.items():
        before = backend.counters.prefix_seconds
        options.settle()
        start = time.perf_counter()
        answers = answered(backend, prompts, [decoding] * len(prompts))
        options.settle()
        found["cells"][k] = {
            "prefix_tokens": len(prompts.prefix),
            "seconds": time.perf_counter() - start,
            "prefix_seconds": backend.counters.prefix_seconds - before,
            "answers": len(answers),
        }
    if folder is None:
        found |= _prefill(options, backend, config, max(asked))
        if options.on_card:
            found["peak_gib"] = torch.cuda.max_memory_allocated(options.device) / 2**30
    return found


def _prefill(options: Options, backend: Any, config: Any, k: int) -> dict[str, float]:
    """The longest prefix anew: tokens a second, and its share of the product's rate."""
    prompts, (product, copy) = cells(options.small)[k], rates(options)

    def prefill() -> None:
        backend.cache.drop()
        backend.load_prefix(prompts)

    seconds, tokens = options.seconds(prefill, 1), len(prompts.prefix)
    work = flops(shape_of(config), FULL, None, 0, tokens)
    return {
        "product_tflops": product / 1e12,
        "copy_gbs": copy / 1e9,
        "prefill_tokens_a_second": tokens / seconds,
        "prefill_share_of_product": work / seconds / product,
    }


def tell(found: dict[str, Any], small: bool) -> None:
    """Print one side; of small sizes, that they ran."""
    print(f"{found['backend']}:")
    for k, cell in found["cells"].items():
        figures = (
            "ran; not measured"
            if small
            else (f"{cell['seconds']:7.2f} s, {cell['prefix_seconds']:7.2f} of them the prefix's")
        )
        print(f"  k={k:>5} {cell['prefix_tokens']:>7,} tokens, {cell['answers']} answers: {figures}")
    if small:
        return
    total = sum(cell["seconds"] for cell in found["cells"].values())
    print(f"  all cells: {total:.1f} s (goal: under {GOAL_SWEEP:.0f})")
    if "prefill_share_of_product" in found:
        print(
            f"  prefill: {found['prefill_tokens_a_second']:,.0f} tokens/s, "
            f"{found['prefill_share_of_product']:.0%} of the product's "
            f"{found['product_tflops']:.0f} TFLOP/s (goal: {GOAL_PREFILL:.0%})"
        )
    if "peak_gib" in found:
        print(f"  memory: {found['peak_gib']:.1f} GiB at the peak")


def main() -> int:
    """Run each backend in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--free", action="store_true", help=f"{FREE} free tokens in place of a label")
    parser.add_argument("--out", type=Path, default=Path("gpu-study.json"))
    parser.add_argument("--side", choices=BACKENDS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    options = Options(arguments.device, arguments.small)
    if arguments.side:
        print(json.dumps(side(arguments.side, options, arguments.folder, free=arguments.free)))
        return 0
    found, failed = [], 0
    for name in arguments.backends.split(","):
        if name == "vllm" and importlib.util.find_spec("vllm") is None:
            print("vllm: left out, it is not installed")
            continue
        command = [sys.executable, __file__, *sys.argv[1:], "--side", name]
        done = _process(command, options) if name == "vllm" else _run(command)
        if done.returncode:
            print(f"{name}: failed\n{done.stderr[-2000:]}")
            failed += 1
            continue
        found.append(json.loads(done.stdout.strip().splitlines()[-1]))
        tell(found[-1], arguments.small)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


def _process(command: list[str], options: Options) -> subprocess.CompletedProcess[str]:
    """The same with a folder of a configuration and a tokenizer, which is what vLLM reads."""
    with TemporaryDirectory(prefix="gpu-study-") as folder:
        config = config_of("llama", **(SMALL if options.small else LLAMA_2_7B))
        config.architectures = ["LlamaForCausalLM"]
        config.save_pretrained(folder)
        save_file({"none": torch.zeros(1)}, Path(folder) / "model.safetensors")
        byte_tokenizer().save_pretrained(folder)
        return _run([*command, "--folder", folder])


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
