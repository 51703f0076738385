"""Memory: what a prefix takes at its peak, and what answers become where it does not suffice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from icl_bench.backends.transformers.attention_steps import Extend

from .answers import mixed_decodings
from .findings import Finding, Options, at_least, at_most
from .models import LLAMA_2_7B, TINY, answered, backend_of, config_of, prompts_of, random_network

SPARE_GIB = 2.0


def memory(options: Options) -> Iterator[Finding]:
    """The peak beside weights and cache, and a forced lack of memory."""
    shape = TINY if options.small else LLAMA_2_7B | {"num_hidden_layers": 8}
    dtype = "float32" if options.small else "bfloat16"
    network = random_network(config_of("llama", **shape), options.device, dtype)
    backend = backend_of(network, options.device, dtype)
    weights = sum(p.nbytes for p in network.parameters())
    prompts = prompts_of(24 if options.small else 2000, 16, 30, 12)
    decodings = mixed_decodings(backend.model.tokenizer, len(prompts))
    if options.on_card:
        torch.cuda.reset_peak_memory_stats(options.device)
    wanted = answered(backend, prompts, decodings)
    peak = torch.cuda.max_memory_allocated(options.device) if options.on_card else 0
    over = (peak - weights - backend.cache.prefix.nbytes()) / 2**30
    name = f"peak of {len(prompts.prefix):,} tokens over weights and cache, GiB"
    if options.on_card:
        yield at_most("memory", name, over, SPARE_GIB, timed=True)
    else:
        yield Finding("memory", name, note="a card's alone")
    backend.cache.drop()
    before = backend.cache.chunk_tokens
    with mock.patch.object(backend.model, "forward", _short_of_memory(backend, before // 2)):
        found = answered(backend, prompts, decodings)
    same = [(a.label, a.text) == (b.label, b.text) for a, b in zip(found, wanted, strict=True)]
    halved = backend.cache.chunk_tokens == before // 2
    yield Finding("memory", "a forced lack of memory halves the chunk", passed=halved)
    # in half precision a smaller chunk rounds otherwise: near ties may turn
    least = 1.0 if dtype == "float32" else 0.9
    yield at_least("memory", "equal answers with smaller chunks", sum(same) / len(same), least)


def _short_of_memory(backend: Any, tokens: int) -> Any:
    """The model's call, for which chunks of more than so many tokens do not fit."""
    real = backend.model.forward

    def forward(flat: torch.Tensor, positions: torch.Tensor, step: Any) -> torch.Tensor:
        if isinstance(step, Extend) and len(flat) > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. (forced)")
        hidden: torch.Tensor = real(flat, positions, step)
        return hidden

    return forward
