"""The prefix that a model has read: made to hold what is asked for next, computing what is new.

In 16-bit formats a token's keys depend a little on which tokens are computed in one call with it.
So a prefix is cut at multiples of one number of tokens, whatever was asked for before: what lies
before the last such place is kept for longer prefixes, what lies behind it is computed for each
anew.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from icl_bench.backends.interface import Counters
from icl_bench.backends.transformers.attention_steps import Extend, View
from icl_bench.backends.transformers.device_memory import give_back, out_of_memory, release
from icl_bench.backends.transformers.kv_cache import Prefix
from icl_bench.backends.transformers.loaded_model import LoadedModel
from icl_bench.prompts.encoding import Ids

SMALLEST_CHUNK = 64
"""Tokens of a prefix that are not computed in smaller chunks, however short memory is."""


class PrefixCache:
    """Keys and values of one prefix at a time, over which queries are computed."""

    def __init__(self, model: LoadedModel, counters: Counters, chunk_tokens: int) -> None:
        """``chunk_tokens`` is how much of a prefix is computed per call, and where it is cut; it
        falls where memory is short.
        """
        self.model, self.counters, self.chunk_tokens = model, counters, chunk_tokens
        self.prefix, self.view = Prefix(), View()
        self.peak_bytes = 0
        """Most bytes that were held since this was last set to 0."""
        self._ids: Ids = ()
        self._kept = self.prefix.mark()
        """The state at the last place that is cut there in every prefix."""
        self._reserves = True

    def load(self, prefix: Ids, reserve: int, view: View) -> None:
        """Make the cache hold just this prefix, computing what it does not hold yet.

        ``reserve`` is the tokens of the longest prefix that will follow.
        """
        if self._ids != prefix or not self._holds(view):
            self.prefix.rewind(self._kept)
            self._ids = self._ids[: self._kept.length]
        if self._ids != prefix[: len(self._ids)] or not self._holds(view):
            self.drop()
        self.view = view
        if self._reserves and reserve > len(prefix):
            chunk_tokens = self.chunk_tokens
            self.prefix.reserve(reserve)
            try:
                self.read(prefix[len(self._ids) :])
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                # room for later cells must not cost this one
                self._reserves, self.chunk_tokens = False, chunk_tokens
                self.drop()
                release(self.model.device)
        self.prefix.reserve(len(prefix))
        self.read(prefix[len(self._ids) :])

    def _holds(self, view: View) -> bool:
        """Whether what is cached was computed as this view has it."""
        mine = self.view
        if mine.layout is None or view.layout is None:
            return mine == view
        return mine.spans == view.spans and view.layout.begins(mine.layout, len(self._ids))

    def drop(self) -> None:
        """Forget the prefix and give its memory back; nothing holds it in a circle."""
        self.prefix, self._ids = Prefix(), ()
        self._kept = self.prefix.mark()
        give_back(self.model.device)

    def read(self, ids: Ids, each: Callable[[Tensor], None] | None = None) -> None:
        """Compute more tokens of the prefix, a chunk a call; smaller chunks if memory is short.

        ``each`` is given the last hidden states of every chunk, ``(tokens, hidden)``, which are not
        computed without it.
        """
        done = 0
        while done < len(ids):
            part = ids[done : done + self.chunk_tokens]
            mark = self.prefix.mark()
            try:
                hidden = self._chunk(part, whole=each is not None)
            except BaseException as error:
                self.prefix.rewind(mark)
                if not out_of_memory(error) or len(part) <= SMALLEST_CHUNK:
                    raise
                self.shrink(len(part))
                release(self.model.device)
                continue
            self.prefix.length += len(part)
            if each is not None:
                each(hidden)
            done += len(part)
            self._ids += part
            self.counters.prefix_tokens += len(part)
            if self.prefix.length % self.chunk_tokens == 0:
                self._kept = self.prefix.mark()
        self.peak_bytes = max(self.peak_bytes, self.prefix.nbytes())

    def shrink(self, tokens: int) -> None:
        """From here on, compute less than so many tokens in a call, but not less than the smallest
        chunk. Chunks are halved, so that what was cut before is still cut in the same places.
        """
        while self.chunk_tokens >= tokens and self.chunk_tokens > SMALLEST_CHUNK:
            self.chunk_tokens = max(SMALLEST_CHUNK, self.chunk_tokens // 2)

    def _chunk(self, ids: Ids, *, whole: bool) -> Tensor:
        """Keys and values of the next tokens; with ``whole``, their last hidden states ``(tokens,
        hidden)``.
        """
        start, device = self.prefix.length, self.model.device
        tokens = self.model.tokens(ids)
        positions = torch.arange(start, start + len(ids), device=device)
        step = Extend(self.prefix, len(ids), self.view, whole)
        return self.model.forward(tokens, positions, step)

    @contextmanager
    def extended(self, own: Ids, view: View) -> Iterator[None]:
        """For a while, the prefix with one prompt's own tokens behind it, which count as such."""
        mark, ids, before = self.prefix.mark(), self._ids, self.counters.prefix_tokens
        shared, kept, self.view = self.view, self._kept, view
        try:
            self.prefix.reserve(self.prefix.length + len(own))
            self.read(own)
            yield
        finally:
            self.prefix.rewind(mark)
            self._ids, self._kept, self.view = ids, kept, shared
            self.counters.own_tokens += self.counters.prefix_tokens - before
            self.counters.prefix_tokens = before

    def standing_in(self, prefix: Prefix) -> PrefixCache:
        """The same with another prefix, which was computed elsewhere; this one stays as it is."""
        other = copy.copy(self)
        other.prefix = prefix
        return other
