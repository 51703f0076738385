"""Prompts that are put together of demonstrations, each computed once for all prompts."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from icl_bench.backends.transformers.attention_steps import View
from icl_bench.backends.transformers.demonstration_cache import LIMIT_BYTES, DemonstrationCache, RotaryShift, assembled
from icl_bench.backends.transformers.device_memory import finish
from icl_bench.backends.transformers.packed_decoding import OpenPack, PackLimits
from icl_bench.backends.transformers.prefix_cache import PrefixCache
from icl_bench.models.attention_patterns import Pattern
from icl_bench.prompts.encoding import Ids, PromptSet, parts


@dataclass(frozen=True)
class AssembledPrompt:
    """One prompt whose demonstrations are there."""

    index: int
    """Which prompt of the set."""
    cache: PrefixCache
    """Holds its demonstrations, and what stands before them."""
    new_tokens: int
    """How many of its tokens were computed for it and for no prompt before."""


class ReusedDemonstrations:
    """Demonstrations that were shown once, kept behind the sink that they were computed behind."""

    def __init__(self, cache: PrefixCache, limits: PackLimits) -> None:
        self._cache, self._limits = cache, limits
        self._kept: dict[Ids, DemonstrationCache] = {}
        self._limit_bytes = LIMIT_BYTES

    @property
    def kept(self) -> Mapping[Ids, DemonstrationCache]:
        """What is kept, by the tokens of the sink."""
        return self._kept

    def clear(self) -> None:
        """Forget all of them."""
        self._kept.clear()

    def batches(self, prompts: PromptSet, most: int, pattern: Pattern) -> Iterator[range]:
        """All prompts, so many together at most, but no more than have room for what they show.

        One prompt alone may show more than has room. Which are together depends on all of them,
        so that a cell that is resumed has the same batches.
        """
        room = self._limit_bytes // self._cache.model.token_bytes
        start, together, tokens = 0, set[Ids](), 0
        for i in range(len(prompts)):
            shown = set(parts(prompts, i, pattern.sink))
            more = sum(map(len, shown - together))
            if i > start and (i - start == most or tokens + more > room):
                yield range(start, i)
                start, together, tokens = i, set(), 0
                more = sum(map(len, shown))
            together |= shown
            tokens += more
        yield range(start, len(prompts))

    def assembled(
        self, prompts: PromptSet, batch: Sequence[int], wanted: Collection[int], pattern: Pattern
    ) -> Iterator[AssembledPrompt]:
        """Put those prompts of a batch together that are wanted; what none of the batch, wanted or
        not, has shown before is computed first.
        """
        head = prompts.ids(batch[0])[: [prompts.lead, *prompts.ends_of(batch[0])][pattern.sink]]
        behind = head if pattern.sink else ()
        spans = pattern.spans(self._cache.model.windows)
        self._cache.load(behind, 0, View(spans))
        kept = self._kept.setdefault(behind, DemonstrationCache(len(behind), self._limit_bytes))
        shown = {i: parts(prompts, i, pattern.sink) for i in batch}
        needed = {ids for i in batch for ids in shown[i]}
        fresh = {ids for ids in needed if ids not in kept}
        self._compute(sorted(fresh, key=lambda ids: (len(ids), ids)), kept, needed)
        self._cache.load(head, 0, View(spans))
        shift = RotaryShift(self._cache.model.core)
        for i in batch:
            assert prompts.ids(i)[: len(head)] == head, "prompts that reuse begin alike"
            layers = [kept.get(part) for part in shown[i]]
            new = sum(len(part) for part in shown[i] if part in fresh)
            fresh.difference_update(shown[i])
            if i in wanted:
                prefix = assembled(self._cache.prefix, layers, kept.base, spans, shift)
                held = prefix.nbytes() + kept.nbytes
                self._cache.peak_bytes = max(self._cache.peak_bytes, held)
                yield AssembledPrompt(i, self._cache.standing_in(prefix), new)
        kept.trim()

    def _compute(self, texts: Sequence[Ids], kept: DemonstrationCache, needed: Collection[Ids]) -> None:
        """Compute demonstrations behind the loaded sink, many in one call; sorted by length.

        Those that are needed make room for themselves: at no time more is kept than the limit,
        the needed ones and one call's.
        """
        start, counters = time.perf_counter(), self._cache.counters
        while texts:
            size = self._limits.first_rows([len(text) for text in texts])
            pack, texts = texts[:size], texts[size:]
            opened = OpenPack(self._cache, pack, 0)
            for row, text in enumerate(pack):
                kept.put(text, opened.keys_of(row, len(text)))
            kept.trim(needed)
            counters.prefix_tokens += sum(map(len, pack))
        finish(self._cache.model.device)
        counters.prefix_seconds += time.perf_counter() - start
