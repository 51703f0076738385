"""Answers of the device against those of the CPU, and of half precision against single."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from icl_bench.backends.interface import Decoding, Exact, Free, Greedy
from icl_bench.backends.label_constraint import compile_labels
from icl_bench.backends.transformers.packed_decoding import OpenPack
from icl_bench.models.attention_patterns import Pattern
from icl_bench.prompts.encoding import PromptSet

from .findings import Finding, Options, at_least, at_most
from .models import (
    FAMILIES,
    LABELS,
    TINY,
    answered,
    backend_of,
    byte_tokenizer,
    config_of,
    loaded,
    own_prompts,
    prompts_of,
    random_network,
    trie_of,
)

PATTERNS = ("full", "block:5,sink=1,local=1", "block:3,sink=0,local=0", "grouped:2,64", "approx:64,8", "block:1,reuse")
WITHIN = 1e-4
GAP = 0.5


def mixed_decodings(tokenizer: Any, count: int) -> list[Decoding]:
    """Queries take turns: greedy, exact, free."""
    greedy = Greedy(compile_labels([f" {label}\n" for label in LABELS], tokenizer))
    kinds: list[Decoding] = [greedy, Exact(trie_of(tokenizer)), Free(("\n",), 4)]
    return [kinds[i % 3] for i in range(count)]


def answers(options: Options) -> Iterator[Finding]:
    """Every pattern in every family, in float32: labels and texts equal, log-probabilities of labels to 1e-4."""
    shots, queries = (6, 6) if options.small else (60, 60)
    decodings = mixed_decodings(byte_tokenizer(), queries)
    for family, own in FAMILIES.items():
        config = config_of(family, **TINY | own)
        network = random_network(config, "cpu", "float32")
        sides = [backend_of(copy.deepcopy(network), d, "float32") for d in (options.device, "cpu")]
        differ, worst = 0, 0.0
        for text in PATTERNS:
            pattern = Pattern.parse(text)
            prompts = own_prompts(queries, min(shots, 12), 12) if pattern.reuses else prompts_of(shots, 12, queries, 9)
            here, there = (answered(side, prompts, decodings, pattern) for side in sides)
            for mine, theirs in zip(here, there, strict=True):
                differ += (mine.label, mine.text) != (theirs.label, theirs.text)
                if mine.scores is not None and theirs.scores is not None:
                    worst = max(worst, float(np.abs(mine.scores - theirs.scores).max()))
        yield at_most("answers", f"{family}: answers that differ, all patterns", differ, 0)
        yield at_most("answers", f"{family}: largest difference of labels' log-probabilities", worst, WITHIN)


def precision(options: Options) -> Iterator[Finding]:
    """bfloat16 against float32, both on the device, over the same prompts.

    An answer is the likeliest of 50 tokens behind a query. Where answers differ, the two tokens'
    logits in float32 may not be far apart.
    """
    shots, queries = (6, 12) if options.small else (100, 200)
    prompts = prompts_of(shots, 12, queries, 9)
    logits = {}
    for dtype in ("float32", "bfloat16"):
        if options.model is not None:
            backend = loaded(options.model, options.device, dtype)
        else:
            layers = {"num_hidden_layers": 2 if options.small else 8, "initializer_range": 0.05}
            config = config_of("llama", **TINY | layers)
            backend = backend_of(random_network(config, "cpu", "float32"), options.device, dtype)
        logits[dtype] = _ends(backend, prompts)[:, :50]
        del backend
    single, half = logits["float32"], logits["bfloat16"]
    chosen = half.argmax(-1, keepdim=True)
    gaps = (single.max(-1).values - single.gather(1, chosen)[:, 0]).double()
    yield at_least("precision", "equal answers, bfloat16 and float32", float((gaps == 0).double().mean()), 0.9)
    yield at_most("precision", "largest gap in float32 of answers that differ", float(gaps.max()), GAP)


def _ends(backend: Any, prompts: PromptSet) -> Tensor:
    """Logits behind every query: ``(queries, vocabulary)`` on the CPU."""
    backend.load_prefix(prompts)
    ends = OpenPack(backend.cache, prompts.suffixes, 0).ends
    return torch.cat([backend.model.head.logits(rows).cpu() for rows in ends.split(64)])
