"""What reading prompts takes: operations and bytes of keys and values, by attention pattern.

The formulas are those of Zebra (Song et al. 2023), table 9, taken by layer and with exact numbers
of keys: a token of a layer that sees n keys takes ``4 * heads_width * n`` operations for scores and
values, beside two for each parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.models.architecture import Architecture
from icl_bench.models.attention_patterns import BlockLayout, Pattern, Ranges, keys_seen
from icl_bench.prompts.encoding import parts

if TYPE_CHECKING:
    from icl_bench.prompts.encoding import PromptSet

ITEM_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class PromptLayout:
    """How a cell's prompts are read: their tokens, where demonstrations end, and the pattern."""

    pattern: Pattern
    prefix_tokens: int
    own_tokens: tuple[int, ...]
    """Of each prompt, behind the prefix."""
    ends: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    """Where each demonstration of a prompt ends; one for all prompts where they share them, none
    where it does not matter."""
    encoded_tokens: int = 0
    """With reuse: tokens of all demonstrations that are computed once for all prompts."""
    vectors: tuple[int, ...] = ()
    """How many each prompt reads; one number for all where they share them."""
    read: tuple[Ranges | None, ...] = field(default=(), repr=False)
    """Which tokens of the demonstrations each query reads, where they do not read the same."""

    @classmethod
    def of(cls, prompts: PromptSet, pattern: Pattern) -> PromptLayout:
        """Take from prompts what decides their cost."""
        encoded = 0
        if pattern.reuses:
            shown = {ids for i in range(len(prompts)) for ids in parts(prompts, i, pattern.sink)}
            encoded = sum(map(len, shown))
        own = tuple(map(len, prompts.suffixes))
        ends = prompts.ends if pattern.blocks else ()
        vectors = tuple(map(len, prompts.vector_texts))
        read = prompts.read_by(pattern)
        return cls(pattern, len(prompts.prefix), own, ends, encoded, vectors, read)

    def vectors_of(self, index: int) -> int:
        """How many one prompt reads."""
        return self.vectors[0 if len(self.vectors) == 1 else index] if self.vectors else 0

    def layout(self, index: int) -> BlockLayout | None:
        """The blocks of one prompt."""
        if not self.ends:
            return None
        found = self.pattern.layout(self.ends[0 if len(self.ends) == 1 else index])
        return replace(found, read=self.read[index]) if found and self.read else found


@dataclass(frozen=True)
class ComputeCost:
    """What a cell's prompts take. ``flops`` are floating-point operations."""

    prefix_flops: float
    """Of what is computed once for all queries."""
    query_flops: float
    """Of a query on top of it, answer included (mean)."""
    whole_flops: float
    """Of a query with nothing computed before (mean)."""
    cache_bytes: float
    """Of the keys and values that are kept of the longest prompt."""

    def as_json(self) -> dict[str, float]:
        """Plain values, to store beside predictions."""
        return asdict(self)


def flops(
    architecture: Architecture, pattern: Pattern, layout: BlockLayout | None, first: int, last: int, vectors: int = 0
) -> float:
    """Operations for the tokens ``[first, last)`` of one prompt, each of which reads ``vectors``:
    one key each in every layer, and what was added to the layers.
    """
    layers = Counter(pattern.spans(architecture.windows))
    seen = sum(count * keys_seen(s, layout, first, last) for s, count in layers.items())
    passed = architecture.parameters
    if vectors:
        passed += architecture.reader_parameters
        seen += vectors * (last - first) * len(architecture.windows)
    return 2.0 * passed * (last - first) + 4.0 * architecture.heads_width * seen


def cache_bytes(architecture: Architecture, pattern: Pattern, tokens: int, dtype: str, vectors: int = 0) -> float:
    """Bytes of the keys and values that are kept of so many tokens and vectors."""
    kept = sum(span.kept(tokens) + vectors for span in pattern.spans(architecture.windows))
    return 2.0 * architecture.key_width * ITEM_BYTES[dtype] * kept


def cost_of(prompts: PromptLayout, architecture: Architecture, answer_tokens: float, dtype: str) -> ComputeCost:
    """Count what a cell's prompts take, with so many answer tokens a query."""
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
    """Operations of each query: with nothing computed before, and on top of what is kept."""
    pattern, prefix = prompts.pattern, prompts.prefix_tokens
    known: dict[Any, tuple[float, float]] = {}
    result = []
    for i, own in enumerate(prompts.own_tokens):
        read = prompts.vectors_of(i)
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
