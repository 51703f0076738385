"""The transformers backend: one prefix cache that grows, many queries packed over it.

Any decoder of the transformers library that takes its attention from ``AttentionInterface`` runs
here unchanged; on loading, a few tokens are computed both ways and compared, so that a model whose
attention is of another kind is refused instead of answered wrongly.

The same cell has the same answers, bit for bit, whatever ran before it and however often it was
resumed: a prefix is cut at fixed places, and queries are packed with the same others, whether or
not these were answered already. Only lack of memory changes what is computed together.
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

from icl_bench.backends.interface import Answer, Counters, Decoding
from icl_bench.backends.transformers.attention_steps import Reading, View
from icl_bench.backends.transformers.device_memory import finish, memory_reason, no_room, out_of_memory, release
from icl_bench.backends.transformers.forward_check import check_forward
from icl_bench.backends.transformers.loaded_model import LoadedModel
from icl_bench.backends.transformers.packed_decoding import (
    HEAD_ROWS,
    OpenPack,
    PackLimits,
    answer_room,
    pack_kind,
    tree_tokens,
)
from icl_bench.backends.transformers.prefix_cache import PrefixCache
from icl_bench.backends.transformers.reused_demonstrations import ReusedDemonstrations
from icl_bench.errors import CellError
from icl_bench.models.attention_patterns import FULL, Pattern, Ranges
from icl_bench.prompts.encoding import Ids, PromptSet

REUSING = 16
"""Prompts whose demonstrations are computed together before they are answered, at most."""

CALLS_OPEN = 4
"""Calls of a pack whose answers are written together on the CPU, where a call is small so that
what it computes stays in the processor's cache."""

CHUNK, CHUNK_ON_CPU = 1024, 512
"""Tokens of a prefix that are computed in one call. What lies behind the last whole chunk is
computed for each cell anew, so that larger chunks would compute more of it twice."""

T = TypeVar("T")


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
        """Answer with a model whose attention is ours (:func:`check_forward`).

        ``pack_tokens`` and ``pack_rows`` limit how much is packed into one call; ``chunk_tokens``
        is how much of a prefix is computed per call.
        """
        small = model.device.type == "cpu"
        self.model, self.counters = model, Counters()
        tokens = pack_tokens or (2048 if small else 16384)
        self.limits = PackLimits(pack_rows or 256, tokens, calls_open=CALLS_OPEN if small else 1)
        self._long_tokens = chunk_tokens or (512 if small else 4096)
        chunk = chunk_tokens or (CHUNK_ON_CPU if small else CHUNK)
        self.cache = PrefixCache(model, self.counters, chunk)
        self.reused = ReusedDemonstrations(self.cache, self.limits)
        self._read: tuple[Ranges | None, ...] = ()
        """Which tokens of the demonstrations each query of the cell reads, where not all do alike.
        """

    @classmethod
    def load(
        cls,
        source: str | Path,
        tokenizer: Any,
        *,
        revision: str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        **limits: int | None,
    ) -> TransformersBackend:
        """Load a model and check that it is computed rightly; ``limits`` are those of the class.

        Raises ``UserError``.
        """
        model = LoadedModel.load(source, tokenizer, revision, dtype, device)
        try:
            check_forward(model)
        except RuntimeError as error:  # the device's libraries take memory when first asked
            if not out_of_memory(error):
                raise
            raise no_room(source, error) from None
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
        """Make the cache hold just the prompts' shared prefix, as the pattern reads it.

        ``reserve`` is the tokens of the longest prefix that will follow.
        """
        self.cache.load(prompts.prefix, reserve, self._view(pattern, prompts, 0))

    def _view(self, pattern: Pattern, prompts: PromptSet, index: int) -> View:
        """Who sees whom in one prompt."""
        if pattern == FULL:
            return View()
        layout = pattern.layout(prompts.ends_of(index)) if pattern.blocks else None
        return View(pattern.spans(self.model.windows), layout, prompts.vectors_of(index))

    def losses(self, ids: Ids, pattern: Pattern = FULL) -> np.ndarray:
        """Loss of each token but the first, in nats: ``(tokens - 1,)`` float64.

        That is minus the log-probability given all tokens before it, as the pattern lets them be
        seen. Raises ``CellError`` where memory does not suffice.
        """
        wanted = torch.tensor(ids[1:], device=self.model.device)
        found: list[Tensor] = []

        def score(hidden: Tensor) -> None:
            for rows in hidden.split(HEAD_ROWS):
                start = sum(map(len, found))
                targets = wanted[start : start + len(rows)]
                logits = self.model.logits(rows[: len(targets)])
                chosen = logits.gather(1, targets[:, None])[:, 0]
                found.append(torch.logsumexp(logits, -1) - chosen)

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
        return torch.cat(found).double().cpu().numpy()

    # -- answering ------------------------------------------------------------------------------

    def answer(
        self,
        prompts: PromptSet,
        todo: Sequence[int],
        decodings: Sequence[Decoding],
        reserve: int,
        pattern: Pattern = FULL,
    ) -> Iterator[list[Answer]]:
        """See ``Backend.answer``. Packs queries of similar length that are answered in one way; a
        suffix that is too long for one call, or that has demonstrations to be read by blocks, is
        computed as a prefix of its own and dropped again.
        """
        self.cache.peak_bytes = self.model.peak_vector_bytes = 0
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
        in_order, wanted = self._in_order(prompts, decodings), frozenset(todo)
        packed = {i for i in in_order if self._packs(prompts, i, pattern, limits[i])}
        short = [i for i in in_order if i in packed]
        self._read = prompts.read_by(pattern)
        too_long = yield from self._answer_packed(prompts, short, wanted, decodings)
        for i in [*too_long, *(i for i in in_order if i in wanted - packed)]:
            view = self._view(pattern, prompts, i)
            work = lambda: self._answer_long(prompts, i, decodings[i], view, limits[i])  # noqa: B023, E731
            yield [self._guarded(work, len(prompts.ids(i)))]

    def _encode_vectors(self, prompts: PromptSet) -> None:
        """Make vectors of what prompts read so; from here on all tokens read what they share.

        Vectors of each prompt's own are read with its pack.
        """
        self.model.encode_texts(text for texts in prompts.vector_texts for text in texts)
        self.model.read_vectors(() if _have_own_vectors(prompts) else prompts.vectors_of(0))

    def _query_limits(self, pattern: Pattern, decodings: Sequence[Decoding], todo: Sequence[int]) -> list[int]:
        """Tokens of each query that may be packed: what lies in one window with its answer.

        Raises ``CellError`` where one that is asked has an answer that does not.
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
        """Whether a query is computed in one call with others."""
        if len(prompts.suffixes[index]) > limit:
            return False
        return not pattern.blocks or prompts.ends_of(index)[-1] <= len(prompts.prefix)

    @staticmethod
    def _in_order(prompts: PromptSet, decodings: Sequence[Decoding]) -> list[int]:
        """Queries that can be packed together are neighbours, and are sorted by length."""
        kinds = [pack_kind(decoding) for decoding in decodings]
        rank = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
        every = range(len(prompts))
        return sorted(every, key=lambda i: (rank[kinds[i]], len(prompts.suffixes[i]), i))

    def _answer_packed(
        self, prompts: PromptSet, short: Sequence[int], wanted: Collection[int], decodings: Sequence[Decoding]
    ) -> Generator[list[Answer], None, list[int]]:
        """Answer queries a pack at a time; packs are halved until they fit into memory.

        A pack of which some are wanted is computed whole. Returns those that did not fit even
        alone.
        """
        too_long: list[int] = []
        while short:
            pack = self._first_pack(prompts, short, decodings)
            if not any(i in wanted for i in pack):
                short = short[len(pack) :]
                continue
            suffixes, asked = [prompts.suffixes[i] for i in pack], [decodings[i] for i in pack]
            try:
                answers = self._timed(lambda: self._answer_rows(prompts, pack, suffixes, asked))  # noqa: B023
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                release(self.model.device)
                if len(pack) > 1:
                    self.limits.lower(len(pack), max(_widths(suffixes, asked)))
                else:
                    self.cache.shrink(len(suffixes[0]))
                    short, too_long = short[1:], [*pack, *too_long]
                continue
            short = short[len(pack) :]
            placed = [_placed(a, pack, len(prompts.prefix)) for a in answers]
            yield [answer for answer in placed if answer.index in wanted]
        return too_long

    def _first_pack(self, prompts: PromptSet, in_order: Sequence[int], decodings: Sequence[Decoding]) -> Sequence[int]:
        """As many of the first queries as are answered alike and keep within the limits."""
        kind = pack_kind(decodings[in_order[0]])
        alike = [i for i in in_order[: self.limits.rows] if pack_kind(decodings[i]) == kind]
        widths = _widths([prompts.suffixes[i] for i in alike], [decodings[i] for i in alike])
        # trees of labels are computed in one call behind all of a pack's queries
        trees = tree_tokens(decodings[in_order[0]])
        return alike[: self.limits.first_rows(widths, 1 if trees else self.limits.calls_open)]

    def _answer_pack(
        self, cache: PrefixCache, suffixes: Sequence[Ids], decodings: Sequence[Decoding], reading: Reading | None = None
    ) -> list[Answer]:
        """Answer queries over a prefix; an answer's index is its place in the pack."""
        opened = OpenPack.of(cache, suffixes, decodings, self.limits, reading)
        answers = opened.answers(decodings)
        self.counters.own_tokens += sum(map(len, suffixes))
        return answers

    def _answer_rows(
        self, prompts: PromptSet, pack: Sequence[int], suffixes: Sequence[Ids], decodings: Sequence[Decoding]
    ) -> list[Answer]:
        """Answer a pack of prompts, each with the vectors that it reads."""
        if _have_own_vectors(prompts):
            self.model.read_own_vectors([prompts.vectors_of(i) for i in pack])
        return self._answer_pack(self.cache, suffixes, decodings, self._reading(pack))

    def _reading(self, pack: Sequence[int]) -> Reading | None:
        """What each query of a pack reads of the prefix; None for all of it."""
        layout = self.cache.view.layout
        if layout is None or not self._read:
            return None
        ranges = [self._read[i] or ((0, len(layout.starts)),) for i in pack]
        return Reading.of(ranges, len(layout.starts), self.cache.prefix.length)

    def _answer_long(self, prompts: PromptSet, index: int, decoding: Decoding, view: View, limit: int) -> Answer:
        """Answer one prompt whose own part is long (retrieved demonstrations)."""
        if _have_own_vectors(prompts):
            self.model.read_vectors(prompts.vectors_of(index))
        suffix = prompts.suffixes[index]
        step = min(self.cache.chunk_tokens, limit)
        own = (len(suffix) - 1) // step * step
        if view.layout is not None:  # what comes behind the demonstrations sees all of them
            own = min(max(0, len(view.layout.starts) - len(prompts.prefix)), len(suffix) - 1)
        with self.cache.extended(suffix[:own], view):
            reading = self._reading([index])
            (answer,) = self._answer_pack(self.cache, [suffix[own:]], [decoding], reading)
        return _placed(answer, [index], len(prompts.prefix))

    # -- demonstrations that are computed once --------------------------------------------------

    def _answer_reusing(
        self, prompts: PromptSet, todo: Sequence[int], decodings: Sequence[Decoding], pattern: Pattern
    ) -> Iterator[list[Answer]]:
        """Answer prompts whose demonstrations are computed once for all of them.

        Which are computed together depends on the prompts before, also on those that are answered
        already; so these are gone through as well.
        """
        self.reused.clear()
        wanted = frozenset(todo)
        try:
            for batch in self.reused.batches(prompts, REUSING, pattern):
                if batch.start > max(todo, default=-1):
                    return
                work = lambda: self._answer_batch(prompts, batch, wanted, decodings, pattern)  # noqa: B023, E731
                if answers := self._guarded(work, max(len(prompts.ids(i)) for i in batch)):
                    yield answers
        finally:  # no other cell needs them, and a cell that failed for lack of memory least
            self.reused.clear()
            release(self.model.device)

    def _answer_batch(
        self,
        prompts: PromptSet,
        batch: Sequence[int],
        wanted: Collection[int],
        decodings: Sequence[Decoding],
        pattern: Pattern,
    ) -> list[Answer]:
        answers = []
        for ready in self.reused.assembled(prompts, batch, wanted, pattern):
            i, there = ready.index, ready.cache.prefix.length
            (answer,) = self._answer_pack(ready.cache, [prompts.ids(i)[there:]], [decodings[i]])
            answers.append(_placed(answer, [i], there - ready.new_tokens))
        return answers

    # -- time and memory ------------------------------------------------------------------------

    def _timed(self, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = work()
        finish(self.model.device)  # else the time of asking is measured, not that of computing
        self.counters.seconds += time.perf_counter() - start
        return result

    def _guarded(self, work: Callable[[], T], tokens: int) -> T:
        """Run work on so many tokens that cannot be halved; lack of memory fails the cell only."""
        try:
            return self._timed(work)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            reason = memory_reason(error, tokens)
        self.cache.drop()
        release(self.model.device)
        raise CellError(reason)


def _have_own_vectors(prompts: PromptSet) -> bool:
    """Whether each prompt reads vectors of its own; such prompts share no token."""
    return len(prompts.vector_texts) > 1


def _widths(suffixes: Sequence[Ids], decodings: Sequence[Decoding]) -> list[int]:
    """Tokens of the widest row of a pack's first rows, the last their number: rising."""
    own = (len(s) + tree_tokens(d) for s, d in zip(suffixes, decodings, strict=True))
    return list(accumulate(own, max))


def _placed(answer: Answer, pack: Sequence[int], cached: int) -> Answer:
    """The answer with its place in the prompt set instead of the pack."""
    return replace(answer, index=pack[answer.index], cached_tokens=cached)
