"""The cache of a model's prefix, extended from one prefix to the next.

In 16-bit formats, a token's keys depend slightly on the tokens computed in the same call. So a
prefix is always computed in chunks of a fixed number of tokens. Whole chunks are kept for longer
prefixes. Tokens after the last whole chunk are computed again for each prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from icl_bench.backends.interface import Counters
from icl_bench.backends.transformers.attention_steps import Extend, View
from icl_bench.backends.transformers.device_memory import give_back, release
from icl_bench.backends.transformers.kv_cache import Prefix
from icl_bench.backends.transformers.loaded_model import LoadedModel
from icl_bench.models.memory import out_of_memory
from icl_bench.prompts.encoding import Ids

SMALLEST_CHUNK = 64
"""The smallest chunk of a prefix, used if memory is short."""


class PrefixCache:
    """Keys and values of one prefix at a time, over which queries are computed."""

    def __init__(self, model: LoadedModel, counters: Counters, chunk_tokens: int) -> None:
        """``chunk_tokens`` is how much is computed in one call. It is lowered if memory is short."""
        self.model, self.counters, self.chunk_tokens = model, counters, chunk_tokens
        self.prefix, self.view = Prefix(), View()
        self.peak_bytes = 0
        """Peak bytes of the prefix since this was last set to 0."""
        self._ids: Ids = ()
        self._kept_mark = self.prefix.mark()
        """The state after the last whole chunk."""
        self._reserves = True

    def load(self, prefix: Ids, reserve: int, view: View) -> None:
        """Load exactly this prefix. ``reserve`` is the number of tokens of the longest later prefix."""
        if self._ids != prefix or not self._holds(view):
            self.prefix.rewind(self._kept_mark)
            self._ids = self._ids[: self._kept_mark.length]
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
                # this cell must not fail because later cells need memory
                self._reserves, self.chunk_tokens = False, chunk_tokens
                self.drop()
                release(self.model.device)
        self.prefix.reserve(len(prefix))
        self.read(prefix[len(self._ids) :])

    @property
    def state(self) -> tuple[Ids, View] | None:
        """The cached prefix, and which tokens see which; None for demonstrations in blocks."""
        return None if self.view.layout is not None else (self._ids, self.view)

    def _holds(self, view: View) -> bool:
        """Whether the cached prefix was computed with this view."""
        mine = self.view
        if mine.layout is None or view.layout is None:
            return mine == view
        return mine.spans == view.spans and view.layout.begins(mine.layout, len(self._ids))

    def drop(self) -> None:
        """Drop the prefix and release its memory."""
        self.prefix, self._ids = Prefix(), ()
        self._kept_mark = self.prefix.mark()
        give_back(self.model.device)

    def read(self, ids: Ids, on_chunk: Callable[[Tensor], None] | None = None) -> None:
        """Compute more tokens of the prefix, a chunk per call; smaller chunks if memory is short.

        ``on_chunk`` is called with the last hidden states of every chunk, ``(tokens, hidden)``,
        which are computed only for it.
        """
        start = 0
        while start < len(ids):
            part = ids[start : start + self.chunk_tokens]
            mark = self.prefix.mark()
            try:
                hidden = self._chunk(part, read_hidden=on_chunk is not None)
            except BaseException as error:
                self.prefix.rewind(mark)
                if not out_of_memory(error) or len(part) <= SMALLEST_CHUNK:
                    raise
                self.shrink(len(part))
                release(self.model.device)
                continue
            self.prefix.length += len(part)
            if on_chunk is not None:
                on_chunk(hidden)
            start += len(part)
            self._ids += part
            self.counters.prefix_tokens += len(part)
            if self.prefix.length % self.chunk_tokens == 0:
                self._kept_mark = self.prefix.mark()
        self.peak_bytes = max(self.peak_bytes, self.prefix.nbytes())

    def shrink(self, tokens: int) -> None:
        """From now on, compute chunks of fewer than ``tokens``, but not smaller than the smallest chunk. Chunks are
        halved, so earlier boundaries remain boundaries.
        """
        while self.chunk_tokens >= tokens and self.chunk_tokens > SMALLEST_CHUNK:
            self.chunk_tokens = max(SMALLEST_CHUNK, self.chunk_tokens // 2)

    def _chunk(self, ids: Ids, *, read_hidden: bool) -> Tensor:
        """Compute the next tokens. With ``read_hidden``, returns their last hidden states: ``(tokens, hidden)``."""
        start = self.prefix.length
        positions = torch.arange(start, start + len(ids), device=self.model.device)
        return self.model.forward(
            self.model.tokens(ids), positions, Extend(self.prefix, len(ids), self.view, read_hidden)
        )

    @contextmanager
    def extended(self, own_ids: Ids, view: View) -> Iterator[None]:
        """A context in which the prefix is extended by one prompt's own tokens."""
        mark, ids, before = self.prefix.mark(), self._ids, self.counters.prefix_tokens
        shared, kept_mark, self.view = self.view, self._kept_mark, view
        try:
            self.prefix.reserve(self.prefix.length + len(own_ids))
            self.read(own_ids)
            yield
        finally:
            self.prefix.rewind(mark)
            self._ids, self._kept_mark, self.view = ids, kept_mark, shared
            self.counters.own_tokens += self.counters.prefix_tokens - before
            self.counters.prefix_tokens = before
