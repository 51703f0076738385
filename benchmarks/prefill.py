"""How fast a prefix is read on a CPU, as a share of the machine's own matrix product.

    python benchmarks/prefill.py [--tokens 2500,25000] [--dtype bfloat16] [--rounds 2]

Product and prefill are measured by turns in one process, with random tokens, each after a run that
does not count; of the rounds the best of each is taken. Operations are those that are computed: of
the last layer keys and values alone (``icl_bench/backends/transformers/last_layer.py``), and all of the others
by the formula of plans.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gpu.findings import Options

CLOCK = Options("cpu")

SIZE = 2048
"""Rows and columns of the product."""


def product_rate(dtype: torch.dtype) -> float:
    """Operations a second of a square product."""
    one, other = (torch.randn(SIZE, SIZE).to(dtype) for _ in range(2))
    return 2 * SIZE**3 / CLOCK.seconds(lambda: one @ other, 10)


def computed(config: Any, source: str, tokens: int) -> float:
    """Operations of a prefix, without what is not computed of the last layer."""
    from icl_bench.models.architecture import architecture_of
    from icl_bench.models.attention_patterns import FULL
    from icl_bench.sweep.compute_cost import flops

    shape = architecture_of(source)
    behind_keys = config.hidden_size * (3 * config.intermediate_size + shape.heads_width)
    shape = replace(shape, parameters=shape.parameters - behind_keys, windows=shape.windows[:-1])
    return flops(shape, FULL, None, 0, tokens)


def main() -> None:
    """Measure and print a line for each length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--tokens", default="2500,25000")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()

    from icl_bench.backends.transformers.backend import TransformersBackend
    from icl_bench.models.registry import resolve
    from icl_bench.models.tokenizers import load
    from icl_bench.prompts.encoding import PromptSet

    source = resolve(asked.model).source
    backend = TransformersBackend.load(source, load(source), dtype=asked.dtype, device="cpu")
    config, dtype = backend.model.config, backend.model.dtype
    random = np.random.default_rng(0)
    for tokens in map(int, asked.tokens.split(",")):
        ids = tuple(random.integers(0, config.vocab_size, tokens).tolist())
        prompts = PromptSet(ids, ((1,),))

        def prefill() -> None:
            backend.cache.drop()
            backend.load_prefix(prompts)  # noqa: B023 - called within its round

        rounds = [(product_rate(dtype), CLOCK.seconds(prefill, 1)) for _ in range(asked.rounds)]
        rate, seconds = max(r for r, _ in rounds), min(s for _, s in rounds)
        share = computed(config, source, tokens) / seconds / rate
        print(f"{tokens:,} tokens: {seconds:.1f} s, {share:.0%} of the product's {rate / 1e12:.2f} TFLOP/s ({dtype})")


if __name__ == "__main__":
    main()
