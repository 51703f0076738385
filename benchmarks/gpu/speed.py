"""Speed of an 8-layer model of Llama 2's shape beside the device's own products and copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from icl_bench.backends.interface import Free
from icl_bench.backends.transformers.packed_decoding import OpenPack
from icl_bench.models.attention_patterns import FULL
from icl_bench.prompts.encoding import PromptSet
from icl_bench.sweep.compute_cost import flops

from .findings import Finding, Options, at_least, at_most
from .models import LLAMA_2_7B, TINY, backend_of, config_of, ids, random_network, shape_of

PREFILL, PACK, DECODE = 0.35, 0.3, 3.0


def rates(options: Options) -> tuple[float, float]:
    """Operations a second of a bfloat16 product, and bytes a second of a copy (read and write)."""
    size = 256 if options.small else 8192
    kind = torch.bfloat16 if options.on_card else torch.float32
    a, b = (torch.randn(size, size, device=options.device).to(kind) for _ in range(2))
    product = options.seconds(lambda: a @ b, 10)
    source = torch.zeros((2**20 if options.small else 2**30), dtype=torch.uint8).to(options.device)
    target = torch.empty_like(source)
    copy = options.seconds(lambda: target.copy_(source), 10)
    return 2.0 * size**3 / product, 2.0 * len(source) / copy


def speed(options: Options) -> Iterator[Finding]:
    """A prefill, a pack of queries over it, and the steps of their answers."""
    shape = TINY if options.small else LLAMA_2_7B | {"num_hidden_layers": 8}
    tokens, rows, own = (300, 5, 7) if options.small else (32_768, 250, 25)
    dtype = "float32" if options.small else "bfloat16"
    product, copy = rates(options)
    yield Finding("speed", "matrix product, TFLOP/s", product / 1e12, timed=True)
    yield Finding("speed", "copy, GB/s", copy / 1e9, timed=True)
    config = config_of("llama", **shape)
    network = random_network(config, options.device, dtype)
    backend = backend_of(network, options.device, dtype)
    prefill, pack, step = timings(options, backend, tokens, rows, own)
    counted = shape_of(config)
    rate = flops(counted, FULL, None, 0, tokens) / prefill / product
    yield at_least("speed", f"prefill of {tokens:,}, share of product", rate, PREFILL, timed=True)
    work = rows * flops(counted, FULL, None, tokens, tokens + own)
    name = f"pack of {rows} x {own}, share of product"
    yield at_least("speed", name, work / pack / product, PACK, timed=True)
    weights = sum(p.nbytes for p in network.parameters())
    read = weights + backend.cache.prefix.nbytes() * (1 + rows * own / tokens)
    # all queries of a step read the same keys, so that its operations take as long as its bytes
    floor = read / copy + rows * flops(counted, FULL, None, tokens + own, tokens + own + 1) / product
    yield at_most("speed", "decode step, times its bytes and operations", step / floor, DECODE, timed=True)


def timings(options: Options, backend: Any, tokens: int, rows: int, own: int) -> tuple[float, float, float]:
    """Seconds of a prefill, of a pack of queries behind it, and of one step of all answers."""
    vocabulary = backend.model.config.vocab_size
    suffixes = [ids(own, 1 + i, vocabulary) for i in range(rows)]
    prompts = PromptSet(ids(tokens, 0, vocabulary), tuple(suffixes))

    def prefill() -> None:
        backend.cache.drop()
        backend.load_prefix(prompts)

    def packed() -> OpenPack:
        return OpenPack(backend.cache, suffixes, 16)

    def steps(count: int) -> float:
        answers = [Free(("\x00no such text",), count)] * rows
        return options.seconds(lambda: packed().answers(answers))

    return (options.seconds(prefill, 1), options.seconds(packed), max(1e-9, (steps(10) - steps(2)) / 8))
