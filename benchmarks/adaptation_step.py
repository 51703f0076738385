"""A training step under a pattern beside one in full, against what the formula says.

    python benchmarks/adaptation_step.py [--model smollm2-135m-instruct] [--length 4096]
                                         [--attention grouped:4,512] [--steps 5] [--device cpu]

Both by turns in one process, forward and backward of one sequence without the optimizer. Printed
are the medians, their ratio, and the ratio of operations; ends with 1 where the first is more than
1.1 times the second.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--attention", default="grouped:4,512")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    asked = parser.parse_args()
    from transformers import AutoModelForCausalLM

    from icl_bench.backends.device import dtype_name
    from icl_bench.backends.transformers.checkpoint import load_network
    from icl_bench.backends.transformers.device_memory import finish
    from icl_bench.models.architecture import architecture_of
    from icl_bench.models.attention_patterns import FULL, Pattern
    from icl_bench.models.registry import resolve
    from icl_bench.quiet_libraries import hush_libraries
    from icl_bench.sweep.compute_cost import flops
    from icl_bench.training.adaptation.training import AdaptedModel
    from icl_bench.training.sparse_attention import use_sparse_attention

    hush_libraries()
    source, pattern = resolve(asked.model).source, Pattern.parse(asked.attention)
    dtype = dtype_name(asked.dtype, asked.device)
    network = load_network(AutoModelForCausalLM, source, dtype="float32").to(asked.device)
    use_sparse_attention(network)
    models = {p: AdaptedModel(network, p).train() for p in (FULL, pattern)}
    ids = torch.randint(100, 10_000, (1, asked.length), device=asked.device)
    taken: dict[object, list[float]] = {p: [] for p in models}
    kind, half = torch.device(asked.device).type, dtype == "bfloat16"
    for _ in range(asked.steps + 1):
        for one, model in models.items():
            start = time.perf_counter()
            with torch.autocast(kind, torch.bfloat16, enabled=half):
                loss = model(ids, ids)["loss"]
            loss.backward()
            finish(torch.device(asked.device))
            taken[one].append(time.perf_counter() - start)
    seconds = {p: statistics.median(found[1:]) for p, found in taken.items()}
    shape = architecture_of(source)
    head = 2.0 * network.get_output_embeddings().weight.numel() * asked.length
    counted = {p: flops(shape, p, None, 0, asked.length) + head for p in models}
    measured, formula = (by[pattern] / by[FULL] for by in (seconds, counted))
    print(
        f"{asked.model}, {asked.length:,} tokens, {dtype}: {seconds[FULL]:.2f} s in full, "
        f"{seconds[pattern]:.2f} s under {pattern}: {measured:.2f} of it; by formula "
        f"{formula:.2f}; {measured / formula:.2f} times the formula"
    )
    sys.exit(measured > 1.1 * formula)


if __name__ == "__main__":
    main()
