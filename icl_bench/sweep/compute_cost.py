"""Cost of reading prompts: operations, and bytes of keys and values, by attention pattern.

The formulas are those of Zebra (Song et al. 2023), table 9, applied by layer and with exact numbers
of keys: a token of a layer that sees n keys takes ``4 * heads_width * n`` operations for scores and
values, beside two for each parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from icl_bench.models.architecture import Architecture
from icl_bench.models.attention_patterns import BlockLayout, Pattern, Ranges, keys_seen
from icl_bench.prompts.encoding import PromptSet, parts

ITEM_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class PromptLayout:
    """How a cell's prompts are read: their tokens, where demonstrations end, and the pattern."""

    pattern: Pattern
    prefix_tokens: int
    own_tokens: tuple[int, ...]
    """Tokens of each prompt after the prefix."""
    ends: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    """Where each demonstration of a prompt ends: one entry if all prompts share them, empty if it
    does not matter."""
    encoded_tokens: int = 0
    """With reuse: tokens of all demonstrations that are computed once for all prompts."""
    vectors: tuple[int, ...] = ()
    """Number of vectors that each prompt reads; a single number if all prompts share them."""
    read: tuple[Ranges | None, ...] = field(default=(), repr=False)
    """Which tokens of the demonstrations each query reads, if queries differ in it."""

    @classmethod
    def of(cls, prompts: PromptSet, pattern: Pattern) -> PromptLayout:
        """The layout of these prompts under an attention pattern."""
        encoded = 0
        if pattern.reuses:
            shown = {ids for i in range(len(prompts)) for ids in parts(prompts, i, pattern.sink)}
            encoded = sum(map(len, shown))
        own = tuple(map(len, prompts.suffixes))
        ends = prompts.ends if pattern.blocks else ()
        vectors = tuple(map(len, prompts.vector_texts))
        read = prompts.read_by(pattern)
        return cls(pattern, len(prompts.prefix), own, ends, encoded, vectors, read)

    def layout(self, index: int) -> BlockLayout | None:
        """The blocks of one prompt."""
        if not self.ends:
            return None
        layout = self.pattern.layout(self.ends[0 if len(self.ends) == 1 else index])
        return replace(layout, read=self.read[index]) if layout and self.read else layout


@dataclass(frozen=True)
class ComputeCost:
    """Cost of a cell's prompts. ``flops`` are floating-point operations."""

    prefix_flops: float
    """Operations of the part that is computed once for all queries."""
    query_flops: float
    """Further operations of a query, including its answer (mean)."""
    whole_flops: float
    """Operations of a query with nothing cached (mean)."""
    cache_bytes: float
    """Bytes of the cached keys and values of the longest prompt."""


def flops(
    architecture: Architecture, pattern: Pattern, layout: BlockLayout | None, first: int, last: int, vectors: int = 0
) -> float:
    """Operations for the tokens ``[first, last)`` of one prompt.

    Each token reads ``vectors``: one key each in every layer, and the parameters added to the layers.
    """
    layers = Counter(pattern.spans(architecture.windows))
    seen = sum(count * keys_seen(s, layout, first, last) for s, count in layers.items())
    passed = architecture.parameters
    if vectors:
        passed += architecture.reader_parameters
        seen += vectors * (last - first) * len(architecture.windows)
    return 2.0 * passed * (last - first) + 4.0 * architecture.heads_width * seen


def cache_bytes(architecture: Architecture, pattern: Pattern, tokens: int, dtype: str, vectors: int = 0) -> float:
    """Bytes of the cached keys and values of this many tokens and vectors."""
    kept = sum(span.kept(tokens) + vectors for span in pattern.spans(architecture.windows))
    return 2.0 * architecture.key_width * ITEM_BYTES[dtype] * kept


def cost_of(prompts: PromptLayout, architecture: Architecture, answer_tokens: float, dtype: str) -> ComputeCost:
    """Cost of a cell's prompts, with ``answer_tokens`` for each query."""
    prefix, pattern = prompts.prefix_tokens, prompts.pattern
    longest = prefix + max(prompts.own_tokens, default=0)
    most = max(prompts.vectors, default=0)
    held = cache_bytes(architecture, pattern, longest, dtype, most)
    queries = _each(prompts, architecture, answer_tokens)
    if pattern.reuses:
        shown = sum(ends[-1] for ends in prompts.ends)
        once = sum(whole - query for whole, query in queries) * prompts.encoded_tokens / shown
    else:
        read = most if len(prompts.vectors) == 1 else 0
        once = flops(architecture, pattern, prompts.layout(0), 0, prefix, read)
        once += 2.0 * architecture.vector_parameters * read
    whole, query = np.mean(queries, axis=0) if queries else (0.0, 0.0)
    return ComputeCost(once, float(query), float(whole), held)


def _each(prompts: PromptLayout, architecture: Architecture, answer_tokens: float) -> Sequence[tuple[float, float]]:
    """Operations of each query: with nothing cached, and beyond what is cached."""
    pattern, prefix = prompts.pattern, prompts.prefix_tokens
    known: dict[Any, tuple[float, float]] = {}
    result = []
    for i, own in enumerate(prompts.own_tokens):
        read = prompts.vectors[0 if len(prompts.vectors) == 1 else i] if prompts.vectors else 0
        key = (own, i) if len(prompts.ends) > 1 or prompts.read else (own, read)
        if key not in known:
            layout, end = prompts.layout(i), prefix + own
            kept = prompts.ends[i][-1] if pattern.reuses else prefix
            before = flops(architecture, pattern, layout, 0, kept, read)
            answer = answer_tokens * flops(architecture, pattern, layout, end, end + 1, read)
            query = flops(architecture, pattern, layout, kept, end, read) + answer
            projected = 2.0 * architecture.vector_parameters * read
            if len(prompts.vectors) > 1:
                query += projected
            else:
                before += projected
            known[key] = before + query, query
        result.append(known[key])
    return result
