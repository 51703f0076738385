"""The transformers backend: many queries packed over one growing prefix cache.

It supports any decoder of the transformers library that uses ``AttentionInterface``. When a model is
loaded, a few tokens are computed with and without this backend's attention and compared, so a model
with another kind of attention is refused.

A cell's answers are bit-identical, regardless of earlier cells and resumptions: a prefix is computed in fixed chunks,
and a query is always packed with the same others, whether or not these were answered already. Only lack of memory
changes what is computed together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from icl_bench.backends.interface import Answer, Counters, Decoding, Exact, Free
from icl_bench.backends.transformers.attention_steps import PrefixReading, View
from icl_bench.backends.transformers.device_memory import finish, release
from icl_bench.backends.transformers.forward_check import check_forward
from icl_bench.backends.transformers.loaded_model import LoadedModel
from icl_bench.backends.transformers.packed_decoding import (
    HEAD_ROWS,
    OpenPack,
    PackLimits,
    answer_room,
    most_tokens,
    tree_tokens,
)
from icl_bench.backends.transformers.prefix_cache import PrefixCache
from icl_bench.backends.transformers.reused_demonstrations import ReusedDemonstrations
from icl_bench.errors import CellError
from icl_bench.models.attention_patterns import FULL, Pattern, Ranges
from icl_bench.models.memory import memory_errors_as_user_errors, out_of_memory
from icl_bench.models.rotary_positions import OWN_POSITIONS, RotaryPositions
from icl_bench.prompts.encoding import Ids, PromptSet
from icl_bench.wording import first_line

REUSING = 16
"""The largest number of prompts whose demonstrations are computed together."""

CALLS_OPEN = 4
"""Calls of a pack whose answers are generated together on the CPU. A call is small there, so its
data stays in the processor's cache."""

CHUNK, CHUNK_ON_CPU = 2048, 512
"""Tokens of a prefix computed in one call. Tokens after the last whole chunk are computed again for
each cell, so larger chunks would repeat more work."""

T = TypeVar("T")

Read = tuple[Ranges | None, ...]
"""The ranges of demonstration tokens that each query of a cell reads; empty if all queries read everything."""


class TransformersBackend:
    """A decoder from a folder or the hub, on the CPU or CUDA."""

    name = "transformers"

    def __init__(
        self,
        model: LoadedModel,
        *,
        pack_tokens: int | None = None,
        pack_rows: int | None = None,
        chunk_tokens: int | None = None,
    ) -> None:
        """``model`` uses this backend's attention (:func:`check_forward`).

        The others limit how much is packed into one call, and how much of a prefix is computed in one.
        """
        small = model.device.type == "cpu"
        self.model, self.counters = model, Counters()
        tokens = pack_tokens or (2048 if small else 16384)
        self.limits = PackLimits(pack_rows or 256, tokens, calls_open=CALLS_OPEN if small else 1)
        self._long_tokens = chunk_tokens or (512 if small else 4096)
        chunk = chunk_tokens or (CHUNK_ON_CPU if small else CHUNK)
        self.cache = PrefixCache(model, self.counters, chunk)
        self.reused = ReusedDemonstrations(self.cache, self.limits)

        self._answered: OpenPack | None = None
        """The last pack that was answered with free text."""
        self._kept: OpenPack | None = None
        """The same pack while its answers are returned: prompts that continue them then reuse its keys."""

    @classmethod
    def load(
        cls,
        source: str | Path,
        tokenizer: Any,
        *,
        revision: str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        positions: RotaryPositions = OWN_POSITIONS,
        **limits: int | None,
    ) -> TransformersBackend:
        """Load and check a model. ``limits`` are those of the class. Raises ``UserError``."""
        model = LoadedModel.load(source, tokenizer, revision, dtype, device, positions)
        with memory_errors_as_user_errors(source):  # the device's libraries allocate memory on first use
            check_forward(model)
        return cls(model, **limits)

    def identity(self) -> dict[str, str]:
        """See ``Backend.identity``: its name and its arithmetic."""
        return {"backend": self.name, "dtype": str(self.model.dtype).removeprefix("torch.")}

    @property
    def peak_prefix_bytes(self) -> int:
        """See ``Backend.peak_prefix_bytes``."""
        return self.cache.peak_bytes + self.model.peak_vector_bytes

    # -- the prefix -----------------------------------------------------------------------------

    def load_prefix(self, prompts: PromptSet, reserve: int = 0, pattern: Pattern = FULL) -> None:
        """Load exactly the shared prefix of the prompts into the cache (:meth:`PrefixCache.load`)."""
        self.cache.load(prompts.prefix, reserve, self._view(pattern, prompts, 0))

    def _view(self, pattern: Pattern, prompts: PromptSet, index: int) -> View:
        """Which tokens a token sees in one prompt."""
        if pattern == FULL:
            return View()
        layout = pattern.layout(prompts.ends_of(index)) if pattern.blocks else None
        return View(pattern.spans(self.model.windows), layout, prompts.vectors_of(index))

    def losses(self, ids: Ids, pattern: Pattern = FULL) -> np.ndarray:
        """Loss of each token but the first, in nats: ``(tokens - 1,)`` float64.

        The loss is minus the log-probability given the tokens before it that are visible with the
        pattern. Raises ``CellError`` if memory does not suffice.
        """
        next_tokens = torch.tensor(ids[1:], device=self.model.device)
        losses: list[Tensor] = []

        def score(hidden: Tensor) -> None:
            for rows in hidden.split(HEAD_ROWS):
                start = sum(map(len, losses))
                targets = next_tokens[start : start + len(rows)]
                logits = self.model.head.logits(rows[: len(targets)])
                chosen_logits = logits.gather(1, targets[:, None])[:, 0]
                losses.append(torch.logsumexp(logits, -1) - chosen_logits)

        def read() -> None:
            self.cache.drop()
            self.model.read_vectors(())
            spans = None if pattern == FULL else pattern.spans(self.model.windows)
            self.cache.view = View(spans)
            self.cache.prefix.reserve(len(ids) - 1)
            self.cache.read(ids[:-1], score)

        self.cache.peak_bytes = 0
        self._guarded(read, len(ids))
        self.cache.drop()
        return torch.cat(losses).double().cpu().numpy()

    # -- answering ------------------------------------------------------------------------------

    def answer(
        self,
        prompts: PromptSet,
        todo: Sequence[int],
        decodings: Sequence[Decoding],
        reserve: int,
        pattern: Pattern = FULL,
    ) -> Iterator[list[Answer]]:
        """See ``Backend.answer``. Packs queries of similar length and the same kind of decoding. A
        suffix that is too long for one call, or has demonstrations in blocks, is computed as an
        extension of the prefix and dropped again.
        """
        self.cache.peak_bytes = self.model.peak_vector_bytes = 0
        self.counters.packs = self.limits.as_stored()
        self.model.read_vectors(())
        if prompts.vector_texts:
            self._guarded(lambda: self._encode_vectors(prompts), len(prompts.vector_texts))
        if pattern.reuses:
            yield from self._answer_reusing(prompts, todo, decodings, pattern)
            return
        start = self.counters.seconds
        self._guarded(lambda: self.load_prefix(prompts, reserve, pattern), len(prompts.prefix))
        self.counters.prefix_seconds += self.counters.seconds - start
        limits = self._query_limits(pattern, decodings, todo)
        in_order, pending = self._in_order(prompts, decodings), frozenset(todo)
        packed = {i for i in in_order if self._packs(prompts, i, pattern, limits[i])}
        short = [i for i in in_order if i in packed]
        read = prompts.read_by(pattern)
        too_long = yield from self._answer_packed(prompts, short, pending, decodings, read)
        for i in [*too_long, *(i for i in in_order if i in pending - packed)]:
            view = self._view(pattern, prompts, i)
            work = lambda: self._answer_long(prompts, i, decodings[i], view, limits[i], read)  # noqa: B023, E731
            answer = self._guarded(work, prompts.size(i))
            self._answered = None  # its prefix is truncated again
            yield [answer]

    def _encode_vectors(self, prompts: PromptSet) -> None:
        """Encode the texts that prompts read as vectors. From here on, all tokens read shared ones.

        Vectors of single prompts are read with their packs.
        """
        self.model.encode_texts(text for texts in prompts.vector_texts for text in texts)
        self.model.read_vectors(() if _have_own_vectors(prompts) else prompts.vectors_of(0))

    def _query_limits(self, pattern: Pattern, decodings: Sequence[Decoding], todo: Sequence[int]) -> list[int]:
        """The largest number of tokens of each query that may be packed: a window minus its answer.

        Raises ``CellError`` if an answer of ``todo`` does not fit into a window.
        """
        window = pattern.packed_query_limit(self.model.windows)
        if window is None:
            return [self._long_tokens] * len(decodings)
        rooms = {name: answer_room(d) for name, d in {id(d): d for d in decodings}.items()}
        longest = max((rooms[id(decodings[i])] for i in todo), default=0)
        if window <= longest:
            raise CellError(f"--attention {pattern}: WINDOW must hold an answer, here {longest + 1} tokens at most")
        return [min(self._long_tokens, window - rooms[id(d)]) for d in decodings]

    @staticmethod
    def _packs(prompts: PromptSet, index: int, pattern: Pattern, limit: int) -> bool:
        """Whether a query is computed in a pack."""
        if len(prompts.suffixes[index]) > limit:
            return False
        return not pattern.blocks or prompts.ends_of(index)[-1] <= len(prompts.prefix)

    @staticmethod
    def _in_order(prompts: PromptSet, decodings: Sequence[Decoding]) -> list[int]:
        """All queries in order: those that can be packed together are adjacent, sorted by length."""
        kinds = [type(decoding) for decoding in decodings]
        rank = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        indices = range(len(prompts))
        return sorted(indices, key=lambda i: (rank[kinds[i]], len(prompts.suffixes[i]), i))

    def _answer_packed(
        self, prompts: PromptSet, short: Sequence[int], todo: Collection[int], decodings: Sequence[Decoding], read: Read
    ) -> Generator[list[Answer], None, list[int]]:
        """Answer queries a pack at a time. Packs are halved until they fit into memory. ``read`` is as in
        ``PromptSet.read_by``.

        A pack is always computed as a whole, even if only some of its queries are in ``todo``.
        Returns the queries that did not fit even alone.
        """
        too_long: list[int] = []
        while short:
            pack = self._first_pack(prompts, short, decodings)
            if not any(i in todo for i in pack):
                short = short[len(pack) :]
                continue
            suffixes, pack_decodings = [prompts.suffixes[i] for i in pack], [decodings[i] for i in pack]
            try:
                answers = self._timed(lambda: self._answer_rows(prompts, pack, suffixes, pack_decodings, read))  # noqa: B023
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                had_kept, self._kept = self._kept is not None, None
                release(self.model.device)
                if had_kept:
                    continue  # memory may suffice without the kept pack
                if len(pack) > 1:
                    self.limits.lower(len(pack), max(_widths(suffixes, pack_decodings)))
                    self.counters.packs = self.limits.as_stored()
                else:
                    self.cache.shrink(len(suffixes[0]))
                    short, too_long = short[1:], [*pack, *too_long]
                continue
            short = short[len(pack) :]
            kept, self._kept, self._answered = self._kept, self._answered, None
            try:
                yield [_with_prompt_index(answer, pack, len(prompts.prefix)) for answer in answers]
            finally:
                self._kept = kept
        return too_long

    def _first_pack(self, prompts: PromptSet, in_order: Sequence[int], decodings: Sequence[Decoding]) -> Sequence[int]:
        """The first queries with the same kind of decoding, up to the limits."""
        kind = type(decodings[in_order[0]])
        alike = [i for i in in_order[: self.limits.rows] if type(decodings[i]) is kind]
        widths = _widths([prompts.suffixes[i] for i in alike], [decodings[i] for i in alike])
        # trees of labels are computed in one call after all of a pack's queries
        first = decodings[in_order[0]]
        whole_trees = isinstance(first, Exact) and not first.searches
        return alike[: self.limits.first_rows(widths, 1 if whole_trees else self.limits.calls_open)]

    def _answer_pack(
        self,
        cache: PrefixCache,
        suffixes: Sequence[Ids],
        decodings: Sequence[Decoding],
        reading: PrefixReading | None = None,
    ) -> list[Answer]:
        """Answer queries over a prefix. An answer's index is its place in the pack."""
        extra, open_pack = max(map(most_tokens, decodings)), None
        if self._kept is not None and self._kept.is_over(cache) and reading is None:
            open_pack = self._kept.continued(suffixes, extra)
        if open_pack is None:
            open_pack = OpenPack(cache, suffixes, extra, self.limits, reading)
        answers = open_pack.answers(decodings)
        self.counters.own_tokens += open_pack.computed_tokens
        self._answered = open_pack if reading is None and isinstance(decodings[0], Free) else None
        return answers

    def _answer_rows(
        self,
        prompts: PromptSet,
        pack: Sequence[int],
        suffixes: Sequence[Ids],
        decodings: Sequence[Decoding],
        read: Read,
    ) -> list[Answer]:
        """Answer a pack of prompts, each with its own vectors."""
        if _have_own_vectors(prompts):
            self.model.read_own_vectors([prompts.vectors_of(i) for i in pack])
        return self._answer_pack(self.cache, suffixes, decodings, self._reading(pack, read))

    def _reading(self, pack: Sequence[int], read: Read) -> PrefixReading | None:
        """The parts of the prefix that each query of a pack reads; None for all of it."""
        layout = self.cache.view.layout
        if layout is None or not read:
            return None
        ranges = [read[i] or ((0, len(layout.starts)),) for i in pack]
        return PrefixReading.of(ranges, len(layout.starts), self.cache.prefix.length)

    def _answer_long(
        self, prompts: PromptSet, index: int, decoding: Decoding, view: View, limit: int, read: Read
    ) -> Answer:
        """Answer one prompt whose own part is long (retrieved demonstrations)."""
        if _have_own_vectors(prompts):
            self.model.read_vectors(prompts.vectors_of(index))
        suffix = prompts.suffixes[index]
        step = min(self.cache.chunk_tokens, limit)
        own_tokens = (len(suffix) - 1) // step * step
        if view.layout is not None:  # tokens after the demonstrations see all demonstrations
            own_tokens = min(max(0, len(view.layout.starts) - len(prompts.prefix)), len(suffix) - 1)
        with self.cache.extended(suffix[:own_tokens], view):
            reading = self._reading([index], read)
            (answer,) = self._answer_pack(self.cache, [suffix[own_tokens:]], [decoding], reading)
        return _with_prompt_index(answer, [index], len(prompts.prefix))

    # -- demonstrations computed once --------------------------------------------------

    def _answer_reusing(
        self, prompts: PromptSet, todo: Sequence[int], decodings: Sequence[Decoding], pattern: Pattern
    ) -> Iterator[list[Answer]]:
        """Answer prompts whose demonstrations are computed once for all of them.

        Which demonstrations are computed together depends on all earlier prompts, so prompts that
        are answered already are processed too.
        """
        self.reused.clear()
        pending = frozenset(todo)
        try:
            for batch in self.reused.batches(prompts, REUSING, pattern):
                if batch.start > max(todo, default=-1):
                    return
                work = lambda: self._answer_batch(prompts, batch, pending, decodings, pattern)  # noqa: B023, E731
                if answers := self._guarded(work, max(prompts.size(i) for i in batch)):
                    yield answers
        finally:  # no other cell needs them; also released after lack of memory
            self.reused.clear()
            release(self.model.device)

    def _answer_batch(
        self,
        prompts: PromptSet,
        batch: Sequence[int],
        todo: Collection[int],
        decodings: Sequence[Decoding],
        pattern: Pattern,
    ) -> list[Answer]:
        answers = []
        for index, cache, new_tokens in self.reused.assembled(prompts, batch, todo, pattern):
            prefix_tokens = cache.prefix.length
            (answer,) = self._answer_pack(cache, [prompts.ids(index)[prefix_tokens:]], [decodings[index]])
            self._answered = None  # its prefix is of this prompt alone
            answers.append(_with_prompt_index(answer, [index], prefix_tokens - new_tokens))
        return answers

    # -- time and memory ------------------------------------------------------------------------

    def _timed(self, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = work()
        finish(self.model.device)  # kernels are asynchronous
        self.counters.seconds += time.perf_counter() - start
        return result

    def _guarded(self, work: Callable[[], T], tokens: int) -> T:
        """Run work that cannot be split. Lack of memory fails only the cell."""
        try:
            return self._timed(work)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            reason = f"out of memory at {tokens:,} prompt tokens ({first_line(error)[:200]})"
        self.cache.drop()
        release(self.model.device)
        raise CellError(reason)


def _have_own_vectors(prompts: PromptSet) -> bool:
    """Whether each prompt has its own vectors. Such prompts share no prefix."""
    return len(prompts.vector_texts) > 1


def _widths(suffixes: Sequence[Ids], decodings: Sequence[Decoding]) -> list[int]:
    """For each n, the tokens of the widest of a pack's first n rows."""
    own = (len(s) + tree_tokens(d) for s, d in zip(suffixes, decodings, strict=True))
    return list(accumulate(own, max))


def _with_prompt_index(answer: Answer, pack: Sequence[int], cached: int) -> Answer:
    """The answer with its index in the prompt set instead of the pack."""
    return replace(answer, index=pack[answer.index], cached_tokens=cached)
