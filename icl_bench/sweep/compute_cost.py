"""Cost of reading prompts: operations, and bytes of keys and values, by attention pattern.

The formulas are those of Zebra (Song et al. 2023), table 9, applied per layer with the exact number of keys: a token of
a layer that sees n keys takes ``4 * heads_width * n`` operations for scores and values, in addition to two per
parameter. The output head takes two for each logit and unit of the hidden states' width.

Only computed operations count. An answer's last token is not fed back, and logits are computed only where a token is
chosen or scored. A backend with ``BackendLoader.skips_unread`` computes the whole last layer only for tokens whose
hidden states are read, and queries, keys and values for the others. Masked keys are not counted, although some kernels
compute them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.models.architecture import Architecture
from icl_bench.models.attention_patterns import BlockLayout, Pattern, Ranges, ReceptiveSpan, keys_seen
from icl_bench.prompts.encoding import PromptSet, parts

if TYPE_CHECKING:
    from icl_bench.backends.label_constraint import LabelTrie

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
    lead: int = 0
    """Tokens before the first demonstration."""
    encoded: tuple[int, ...] = ()
    """With reuse: tokens of each demonstration that is computed once for all prompts."""
    vectors: tuple[int, ...] = ()
    """Number of vectors that each prompt reads; a single number if all prompts share them."""
    read: tuple[Ranges | None, ...] = field(default=(), repr=False)
    """Which tokens of the demonstrations each query reads, if queries differ in it."""

    @classmethod
    def of(cls, prompts: PromptSet, pattern: Pattern) -> PromptLayout:
        """The layout of these prompts under an attention pattern."""
        encoded: tuple[int, ...] = ()
        if pattern.reuses:
            shown = {ids for i in range(len(prompts)) for ids in parts(prompts, i, pattern.sink)}
            encoded = tuple(sorted(map(len, shown)))
        own = tuple(map(len, prompts.suffixes))
        ends = prompts.ends if pattern.blocks else ()
        vectors = tuple(map(len, prompts.vector_texts))
        read = prompts.read_by(pattern)
        return cls(pattern, len(prompts.prefix), own, ends, prompts.lead, encoded, vectors, read)

    def repeated(self, count: int) -> PromptLayout:
        """The same prompts, each repeated this number of times in a row."""

        def each(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(value for value in values for _ in range(count)) if len(values) > 1 else values

        own = tuple(tokens for tokens in self.own_tokens for _ in range(count))
        return replace(self, own_tokens=own, ends=each(self.ends), vectors=each(self.vectors), read=each(self.read))

    @property
    def encoded_tokens(self) -> int:
        """With reuse: tokens of all demonstrations that are computed once for all prompts."""
        return sum(self.encoded)

    def bounds(self, index: int) -> Sequence[int]:
        """With reuse: the end of the sink of one prompt, and of each demonstration after it."""
        return (self.lead, *self.ends[0 if len(self.ends) == 1 else index])[self.pattern.sink :]

    def vectors_of(self, index: int) -> int:
        """Number of vectors that one prompt reads."""
        return self.vectors[0 if len(self.vectors) == 1 else index] if self.vectors else 0

    def layout(self, index: int) -> BlockLayout | None:
        """The blocks of one prompt."""
        if not self.ends:
            return None
        layout = self.pattern.layout(self.ends[0 if len(self.ends) == 1 else index])
        return replace(layout, read=self.read[index]) if layout and self.read else layout


@dataclass(frozen=True)
class AnswerWork:
    """Computation of one answer, after its query."""

    fed: tuple[float, ...] = ()
    """Tokens at each distance from the query's end that are computed to choose or score later ones."""
    logits: float = 0.0
    """The number of positions times tokens for which logits are computed."""

    @classmethod
    def generated(cls, tokens: float, vocabulary: int) -> AnswerWork:
        """The work of generating ``tokens`` tokens with logits over ``vocabulary``. The last token is not fed back."""
        whole, part = divmod(max(0.0, tokens - 1), 1)
        return cls((1.0,) * int(whole) + ((part,) if part else ()), tokens * vocabulary)

    @classmethod
    def scored(cls, trie: LabelTrie, vocabulary: int, *, once: bool = True) -> AnswerWork:
        """The work of scoring all labels of a tree: its inner tokens, and the vocabulary's logits after each.

        Unless ``once``, each of these tokens is a request of its own that computes those before it in the label again.
        (Query tokens that such a request recomputes are not counted, because they depend on the engine's cache blocks.)
        """
        counts = np.bincount(trie.depths[trie.inner])[1:]
        if not once:
            counts = counts[::-1].cumsum()[::-1]
        return cls(tuple(counts.tolist()), len(trie.inner) * vocabulary)

    def behind(self, thought: float, mark: float, vocabulary: int) -> AnswerWork:
        """The same work after a thought of this number of generated tokens and the tokens of its end mark."""
        return AnswerWork((1.0,) * round(thought + mark) + self.fed, self.logits + thought * vocabulary)


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

    def times(self, samples: int) -> ComputeCost:
        """The cost if each query is answered this number of times. Each answer computes the query again."""
        return replace(self, query_flops=self.query_flops * samples, whole_flops=self.whole_flops * samples)


def flops(
    architecture: Architecture,
    pattern: Pattern,
    layout: BlockLayout | None,
    first: int,
    last: int,
    vectors: int = 0,
    read: int | None = None,
) -> float:
    """Operations of the layers for the tokens ``[first, last)`` of one prompt.

    Each token reads ``vectors``: one key each in every layer, and the parameters added to the layers.
    ``read`` is how many of the last tokens have hidden states that are read; None for all. If they are
    fewer, the last layer computes queries, keys and values of all tokens and then itself for those.
    """
    tokens, passed = last - first, architecture.parameters * (last - first)
    layers, (span, width) = _layers(architecture, pattern)
    keys = {layer: keys_seen(layer[0], layout, first, last) for layer in layers}
    seen = sum(count * layer[1] * keys[layer] for layer, count in layers.items())
    if read is not None and architecture.layer_parameters:
        seen += width * (keys_seen(span, layout, last - read, last) - keys[span, width])
        skipped = architecture.layer_parameters - architecture.projection_parameters
        passed += architecture.layer_parameters * read - skipped * tokens
    if vectors:
        passed += architecture.reader_parameters * tokens
        seen += vectors * tokens * sum(heads for heads, _ in architecture.widths)
    return 2.0 * passed + 4.0 * seen


Layer = tuple[ReceptiveSpan, int]
"""What a layer's tokens see, and the width of its heads."""


@lru_cache(maxsize=64)
def _layers(architecture: Architecture, pattern: Pattern) -> tuple[Counter[Layer], Layer]:
    """The number of layers of each kind, and the last layer."""
    widths = [heads for heads, _ in architecture.widths]
    layers = list(zip(pattern.spans(architecture.windows), widths, strict=True))
    return Counter(layers), layers[-1]


def cache_bytes(architecture: Architecture, pattern: Pattern, tokens: int, dtype: str, vectors: int = 0) -> float:
    """Bytes of the cached keys and values of this many tokens and vectors."""
    layers = zip(pattern.spans(architecture.windows), architecture.widths, strict=True)
    return 2.0 * ITEM_BYTES[dtype] * sum(width * (span.kept(tokens) + vectors) for span, (_, width) in layers)


def cost_of(
    prompts: PromptLayout, architecture: Architecture, answers: Sequence[AnswerWork], dtype: str
) -> ComputeCost:
    """Cost of a cell's prompts. ``answers`` has the work of each answer, or one entry for all."""
    prefix, pattern = prompts.prefix_tokens, prompts.pattern
    longest = prefix + max(prompts.own_tokens, default=0)
    most = max(prompts.vectors, default=0)
    held = cache_bytes(architecture, pattern, longest, dtype, most)
    queries = _each(prompts, architecture, answers)
    if pattern.reuses:
        once = _reused(prompts, architecture, 0, prompts.encoded) if queries else 0.0
    else:
        read = most if len(prompts.vectors) == 1 else 0
        once = flops(architecture, pattern, prompts.layout(0), 0, prefix, read, read=0)
        once += 2.0 * architecture.vector_parameters * read
    whole, query = np.mean(queries, axis=0) if queries else (0.0, 0.0)
    return ComputeCost(once, float(query), float(whole), held)


def _reused(prompts: PromptLayout, architecture: Architecture, index: int, encoded: Sequence[int]) -> float:
    """Operations of one prompt's tokens before its demonstrations that are reused, and of ``encoded``
    demonstrations.

    Each is computed right after the sink, as a query whose last hidden state is read.
    """
    pattern, head = prompts.pattern, prompts.bounds(index)[0]
    base = head if pattern.sink else 0
    before = flops(architecture, pattern, None, 0, head, read=0)
    sizes = Counter(encoded)
    return before + sum(n * flops(architecture, pattern, None, base, base + s, read=1) for s, n in sizes.items())


def _each(
    prompts: PromptLayout, architecture: Architecture, answers: Sequence[AnswerWork]
) -> Sequence[tuple[float, float]]:
    """Operations of each query: with nothing cached, and beyond what is cached."""
    known: dict[Any, tuple[float, float]] = {}
    result = []
    for i, own in enumerate(prompts.own_tokens):
        answer = answers[0 if len(answers) == 1 else i]
        alike = len(prompts.ends) <= 1 and not prompts.read
        key = (own, answer, prompts.vectors_of(i)) if alike else (own, answer, i)
        if key not in known:
            known[key] = _of_query(prompts, architecture, i, answer)
        result.append(known[key])
    return result


def _of_query(prompts: PromptLayout, architecture: Architecture, index: int, answer: AnswerWork) -> tuple[float, float]:
    """Operations of one query: with nothing cached, and beyond what is cached."""
    pattern, layout, read = prompts.pattern, prompts.layout(index), prompts.vectors_of(index)
    end = prompts.prefix_tokens + prompts.own_tokens[index]
    if pattern.reuses:
        bounds = prompts.bounds(index)
        kept, before = bounds[-1], _reused(prompts, architecture, index, np.diff(bounds).tolist())
    else:
        kept = prompts.prefix_tokens
        before = flops(architecture, pattern, layout, 0, kept, read, read=0)
    query = flops(architecture, pattern, layout, kept, end, read, read=1)
    query += architecture.logits_flops(answer.logits)
    for distance, tokens in enumerate(answer.fed):
        query += tokens * flops(architecture, pattern, layout, end + distance, end + distance + 1, read)
    projected = 2.0 * architecture.vector_parameters * read
    if len(prompts.vectors) > 1:
        query += projected
    else:
        before += projected
    return before + query, query
