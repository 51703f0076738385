"""Prompts assembled from demonstrations that are each computed once for all prompts."""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Iterator, Sequence

from icl_bench.backends.transformers.attention_steps import View
from icl_bench.backends.transformers.demonstration_cache import LIMIT_BYTES, DemonstrationCache, RotaryShift, assembled
from icl_bench.backends.transformers.device_memory import finish
from icl_bench.backends.transformers.packed_decoding import OpenPack, PackLimits
from icl_bench.backends.transformers.prefix_cache import PrefixCache
from icl_bench.models.attention_patterns import Pattern
from icl_bench.prompts.encoding import Ids, PromptSet, parts


class ReusedDemonstrations:
    """Caches of demonstrations, for each sink that they were computed after."""

    def __init__(self, cache: PrefixCache, limits: PackLimits) -> None:
        self._cache, self._limits = cache, limits
        self.kept: dict[Ids, DemonstrationCache] = {}
        """Tokens of the sink -> the cache of demonstrations."""
        self._limit_bytes = LIMIT_BYTES

    def clear(self) -> None:
        """Drop all demonstrations."""
        self.kept.clear()

    def batches(self, prompts: PromptSet, max_prompts: int, pattern: Pattern) -> Iterator[range]:
        """All prompts in batches of at most ``max_prompts`` whose demonstrations fit into the limit.

        A single prompt may exceed the limit. Batches depend on all prompts, so a resumed cell has
        the same batches.
        """
        room = self._limit_bytes // self._cache.model.token_bytes
        start, batch_demonstrations, tokens = 0, set[Ids](), 0
        for i in range(len(prompts)):
            demonstrations = set(parts(prompts, i, pattern.sink))
            new_tokens = sum(map(len, demonstrations - batch_demonstrations))
            if i > start and (i - start == max_prompts or tokens + new_tokens > room):
                yield range(start, i)
                start, batch_demonstrations, tokens = i, set(), 0
                new_tokens = sum(map(len, demonstrations))
            batch_demonstrations |= demonstrations
            tokens += new_tokens
        yield range(start, len(prompts))

    def assembled(
        self, prompts: PromptSet, batch: Sequence[int], todo: Collection[int], pattern: Pattern
    ) -> Iterator[tuple[int, PrefixCache, int]]:
        """Assemble the prompts of a batch that are in ``todo``. First computes the demonstrations of
        the whole batch that are not cached.

        Yields a prompt's index in the set, the cache of its demonstrations and the tokens before
        them, and the number of its tokens that no earlier prompt had.
        """
        head = prompts.ids(batch[0])[: [prompts.lead, *prompts.ends_of(batch[0])][pattern.sink]]
        sink_ids = head if pattern.sink else ()
        spans = pattern.spans(self._cache.model.windows)
        self._cache.load(sink_ids, 0, View(spans))
        cache = self.kept.setdefault(sink_ids, DemonstrationCache(len(sink_ids), self._limit_bytes))
        demonstrations = {index: parts(prompts, index, pattern.sink) for index in batch}
        needed = {ids for index in batch for ids in demonstrations[index]}
        fresh = {ids for ids in needed if ids not in cache}
        self._compute(sorted(fresh, key=lambda ids: (len(ids), ids)), cache, needed)
        self._cache.load(head, 0, View(spans))
        shift = RotaryShift(self._cache.model.core)
        for index in batch:
            assert prompts.ids(index)[: len(head)] == head, "prompts that reuse begin alike"
            layers = [cache.get(part) for part in demonstrations[index]]
            new = sum(len(part) for part in demonstrations[index] if part in fresh)
            fresh.difference_update(demonstrations[index])
            if index in todo:
                prefix = assembled(self._cache.prefix, layers, cache.base, spans, shift)
                held = prefix.nbytes() + cache.nbytes
                self._cache.peak_bytes = max(self._cache.peak_bytes, held)
                of_prompt = copy.copy(self._cache)
                of_prompt.prefix = prefix
                yield index, of_prompt, new
        cache.trim()

    def _compute(self, texts: Sequence[Ids], cache: DemonstrationCache, needed: Collection[Ids]) -> None:
        """Compute demonstrations after the loaded sink, many in one call. ``texts`` are sorted by
        length.

        The cache is trimmed after each call, but keeps the ``needed`` demonstrations.
        """
        start, counters = time.perf_counter(), self._cache.counters
        while texts:
            size = self._limits.first_rows([len(text) for text in texts])
            pack, texts = texts[:size], texts[size:]
            opened = OpenPack(self._cache, pack, 0)
            for row, text in enumerate(pack):
                cache.put(text, opened.keys.row(row, len(text)))
            cache.trim(needed)
            counters.prefix_tokens += sum(map(len, pack))
        finish(self._cache.model.device)
        counters.prefix_seconds += time.perf_counter() - start
