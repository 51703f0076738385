"""The attention of one model call: over the shared prefix, and of a pack of queries.

A model call is a *step*. It either extends the prefix (``Extend``), or computes tokens of several
queries that each see the prefix and their own tokens (``Pack``). A step is passed through the model
to the attention function, which calls it for every layer's result.

A layer with a sliding window of W tokens keeps only the last W - 1 keys of the prefix, because later
tokens do not see further back. A layer that sees means of chunks beyond its window keeps the means,
and its last tokens from the beginning of a chunk. With blocks of demonstrations, attention is
computed only for the blocks that a block sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from icl_bench.backends.transformers.attention_kernels import (
    Mask,
    PartialAttention,
    TokenParts,
    attend,
    attend_past,
    has_windows,
    merge,
    on_cuda,
)
from icl_bench.backends.transformers.kv_cache import LayerKeys, PackKeys, Prefix, chunk_means, concatenated
from icl_bench.models.attention_patterns import BlockLayout, Ranges, ReceptiveSpan

SLIDING_BLOCK = 128
"""Query tokens of a sliding layer computed together. Each block of them sees W - 1 + 128 keys."""

BLOCK_RUN = 256
"""Tokens of small blocks computed together, with a mask."""


@dataclass(frozen=True)
class View:
    """Which tokens a token sees in each layer."""

    spans: tuple[ReceptiveSpan, ...] | None = None
    """The span of each layer; None for the model's own windows."""
    layout: BlockLayout | None = None
    """The blocks of the demonstrations."""
    vectors: tuple[str, ...] = ()
    """Texts that all tokens read as vectors."""

    def __post_init__(self) -> None:
        if self.layout is not None and any(span.chunk for span in self.spans or ()):
            raise ValueError("blocks and means of chunks are not computed together")

    def span(self, layer: int, window: int | None) -> ReceptiveSpan:
        """The span of a layer, given its window in the model."""
        return ReceptiveSpan(window) if self.spans is None else self.spans[layer]


def _with_chunk_weight(part: PartialAttention, chunk: int) -> PartialAttention:
    """A part over means of chunks, where each mean has the weight of its chunk's keys."""
    return PartialAttention(part.out, part.lse + math.log(chunk))


def _visible_keys(
    lows: np.ndarray, first: int, keys: range, near: np.ndarray | None = None, sink: int = 0
) -> np.ndarray:
    """Which keys the tokens from ``first`` on see: ``(tokens, keys)`` bool.

    Each token sees the keys from its position in ``lows`` up to itself and those before ``sink``, but no key before its
    position in ``near``. All positions count from the same origin.
    """
    token = np.arange(first, first + len(lows))[:, None]
    key = np.arange(keys.start, keys.stop)[None]
    seen: np.ndarray = (key <= token) & ((key >= lows[:, None]) | (key < sink))
    return seen if near is None else seen & (key >= near[:, None])


class Masks:
    """The masks of a step, each created once for all layers that need it."""

    def __init__(self) -> None:
        self._masks_by_key: dict[tuple[object, ...], Mask] = {}

    def get(
        self, key: tuple[object, ...], query: Tensor, key_tensor: Tensor, seen: Callable[[], Tensor | np.ndarray]
    ) -> Mask:
        """The mask of this key for a layer's ``query`` and ``key_tensor``.

        ``seen`` computes it if it does not exist yet: ``(tokens, keys)`` or
        ``(rows, tokens, keys)`` bool.
        """
        groups = query.shape[1] // key_tensor.shape[1]
        key = (*key, groups)
        if key not in self._masks_by_key:
            visible = torch.as_tensor(seen(), device=query.device)
            visible = visible if visible.ndim == 3 else visible[None]
            self._masks_by_key[key] = Mask(visible, groups, query.dtype)
        return self._masks_by_key[key]


@dataclass
class Extend:
    """Add ``tokens`` tokens to the prefix."""

    prefix: Prefix
    tokens: int
    view: View = View()
    whole: bool = True
    """Whether their last hidden states are read. If not, only keys and values of the last layer are
    needed."""
    _masks: Masks = field(default_factory=Masks)

    def layer(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """One layer's attention: ``(1, heads, tokens, head_dim)`` for query and result."""
        span, layout = self.view.span(layer, window), self.view.layout
        if span.chunk is not None:
            return self._chunked(layer, query, LayerKeys(key, value), scale, span)
        if span.window is not None:
            return self._sliding(layer, query, key, value, scale, span.window)
        if layout is not None:
            self.prefix.append_full(layer, key, value)
            return self._blocked(self.prefix.whole(layer), query, scale, layout)
        parts = [attend(query, key, value, scale, causal=True)]
        if self.prefix.length:
            parts += attend_past(query, *self.prefix.full(layer), scale)
        self.prefix.append_full(layer, key, value)
        return merge(parts)

    def store(self, layer: int, key: Tensor, value: Tensor, window: int | None) -> None:
        """Store a layer's keys and values, without attention."""
        span = self.view.span(layer, window)
        if span.chunk is not None:
            self._store_chunks(layer, LayerKeys(key, value), span)
        elif span.window is not None:
            self._store_window(layer, concatenated(self.prefix.tail(layer), LayerKeys(key, value)), span.window)
        else:
            self.prefix.append_full(layer, key, value)

    # -- blocks of demonstrations ---------------------------------------------------------------

    def _blocked(self, held: LayerKeys, query: Tensor, scale: float, layout: BlockLayout) -> Tensor:
        """Attention within blocks: each block sees itself, its local blocks and the sink. Nothing else is computed."""
        outs, first = [], self.prefix.length
        for start, end in self._runs(layout):
            block = query[:, :, start - first : end - first]
            lows = layout.first(np.arange(start, end))
            low, sink = int(lows[0]), layout.sink_end if lows[0] else 0
            if lows[0] == lows[-1]:
                parts = [attend(block, *held.part(start, end), scale, causal=True)]
                if low < start:
                    parts.append(attend(block, *held.part(low, start), scale))
            else:
                seen = partial(_visible_keys, lows, start, range(low, end))
                mask = self._masks.get(("blocks", start, end), block, held.key, seen)
                parts = [attend(block, *held.part(low, end), scale, mask=mask)]
            if sink:
                parts.append(attend(block, *held.part(0, sink), scale))
            outs.append(merge(parts))
        return torch.cat(outs, 2)

    def _runs(self, layout: BlockLayout) -> Iterator[tuple[int, int]]:
        """Ranges of new tokens that are computed together: a block, or several small ones.

        Tokens that see everything before them are not in a range with tokens that do not.
        """
        start, end = self.prefix.length, self.prefix.length + self.tokens
        lows = layout.first(np.arange(start, end))
        cuts = [start, *(np.flatnonzero(np.diff(lows)) + start + 1).tolist(), end]
        begin = start
        for cut, after in zip(cuts[1:], [*cuts[2:], None], strict=True):
            joins = (
                after is not None
                and after - begin <= BLOCK_RUN
                and (lows[begin - start] == 0) == (lows[cut - start] == 0)
            )
            if not joins:
                yield begin, cut
                begin = cut

    # -- windows --------------------------------------------------------------------------------

    def _sliding(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int) -> Tensor:
        held = concatenated(self.prefix.tail(layer), LayerKeys(key, value))
        key, value, before = held.key, held.value, held.tokens - self.tokens
        outs, at_once = [], self.view.layout is None and has_windows(query)
        if at_once:
            outs.append(attend(query, key, value, scale, causal=True, window=window).out)
        for start in range(0, 0 if at_once else self.tokens, SLIDING_BLOCK):
            end = min(start + SLIDING_BLOCK, self.tokens)
            low = max(0, before + start - (window - 1))
            high = before + end
            block = query[:, :, start:end]
            if self.view.layout is None:
                mask = self._in_window(before + start - low, high - low, window, block, key)
            else:
                low, mask = self._blocks_in_window(start, end, low, before, window, block, key)
            part = attend(block, key[:, :, low:high], value[:, :, low:high], scale, mask=mask)
            outs.append(part.out)
        self._store_window(layer, held, window)
        return torch.cat(outs, 2)

    def _store_window(self, layer: int, held: LayerKeys, window: int) -> None:
        """Keep the last keys and values, which later tokens see."""
        keep = max(0, held.tokens - (window - 1))
        self.prefix.replace_tail(layer, held.key[:, :, keep:].clone(), held.value[:, :, keep:].clone())

    def _in_window(self, ahead: int, keys: int, window: int, query: Tensor, key: Tensor) -> Mask:
        """The window's mask for query tokens, the first of which is at position ``ahead`` of the keys."""
        shape = (ahead, query.shape[2], keys, window)
        lows = np.arange(ahead, ahead + query.shape[2]) - (window - 1)
        return self._masks.get(shape, query, key, partial(_visible_keys, lows, ahead, range(keys)))

    def _blocks_in_window(
        self, start: int, end: int, low: int, before: int, window: int, query: Tensor, key: Tensor
    ) -> tuple[int, Mask]:
        """The first key that is seen in both a window and blocks, and the mask from there on.

        ``start`` and ``end`` count new tokens. ``low`` and the result count stored and new ones.
        """
        layout = self.view.layout
        assert layout is not None
        first, last = self.prefix.length + start, self.prefix.length + end
        offset = self.prefix.length - before  # the position of the first stored key
        lows = layout.first(np.arange(first, last))
        if layout.sink_end <= low + offset or not lows[0]:
            low = max(low, int(lows[0]) - offset)
        near, keys = np.arange(first, last) - (window - 1), range(low + offset, last)
        seen = partial(_visible_keys, lows, first, keys, near, layout.sink_end)
        return low, self._masks.get(("window", start, low, window), query, key, seen)

    # -- means of chunks ------------------------------------------------------------------------

    def _chunked(self, layer: int, query: Tensor, new: LayerKeys, scale: float, span: ReceptiveSpan) -> Tensor:
        """A window that starts at the beginning of a chunk, and means of the chunks before it."""
        chunk, length = span.chunk or 1, self.prefix.length
        keys, far = self._store_chunks(layer, new, span)
        base = length + self.tokens - keys.tokens  # the position of the first key
        means, outs = self.prefix.means(layer), []
        for start in range(0, self.tokens, SLIDING_BLOCK):
            end = min(start + SLIDING_BLOCK, self.tokens)
            block, lows = query[:, :, start:end], far[start:end]
            low, high = int(lows[0]) - base, length + end - base
            seen = partial(_visible_keys, lows, length + start, range(int(lows[0]), length + end))
            mask = self._masks.get(("near", span, start, end), block, keys.key, seen)
            parts = [attend(block, *keys.part(low, high), scale, mask=mask)]
            sure, some = int(lows[0]) // chunk, int(lows[-1]) // chunk
            if means is not None and sure:
                parts.append(_with_chunk_weight(attend(block, *means.part(0, sure), scale), chunk))
            if means is not None and some > sure:
                gone = partial(np.less, np.arange(sure, some), lows[:, None] // chunk)
                mask = self._masks.get(("means", span, start), block, keys.key, gone)
                part = attend(block, *means.part(sure, some), scale, mask=mask)
                parts.append(_with_chunk_weight(part, chunk))
            outs.append(merge(parts))
        return torch.cat(outs, 2)

    def _store_chunks(self, layer: int, new: LayerKeys, span: ReceptiveSpan) -> tuple[LayerKeys, np.ndarray]:
        """Store means of the chunks that leave the window, and the keys and values of the last tokens.

        Returns the keys that the new tokens see beside means, and the first token in the window of
        each new token and of the next one.
        """
        chunk, length = span.chunk or 1, self.prefix.length
        keys = concatenated(self.prefix.tail(layer), new)
        far = span.first(np.arange(length, length + self.tokens + 1))
        keep = int(far[-1]) - (length + self.tokens - keys.tokens)
        if count := keep // chunk:
            self.prefix.append_means(layer, chunk_means(keys, chunk, count))
        self.prefix.replace_tail(layer, keys.key[:, :, keep:].clone(), keys.value[:, :, keep:].clone())
        return keys, far


@dataclass(frozen=True)
class PrefixReading:
    """Which stretches of a prefix each row of a pack reads."""

    stretches: Ranges
    """Disjoint ranges of tokens of the prefix, ascending."""
    read: np.ndarray
    """``(rows, stretches)`` bool."""

    @classmethod
    def of(cls, ranges: Sequence[Ranges], demonstrations: int, prefix: int) -> PrefixReading:
        """Split the prefix into stretches. ``ranges`` are those that each row reads of the
        ``demonstrations`` tokens of demonstrations. All rows read the rest of the prefix.
        """
        boundaries = {place for row in ranges for pair in row for place in pair}
        bounds = np.array(sorted({0, demonstrations, prefix} | boundaries))
        read = np.zeros((len(ranges), len(bounds) - 1), dtype=bool)
        for row, pairs in zip(read, ranges, strict=True):
            for first, last in (*pairs, (demonstrations, prefix)):
                row[np.searchsorted(bounds, first) : np.searchsorted(bounds, last)] = True
        # adjacent ranges that the same rows read become one stretch; ranges that no row reads are dropped
        new = np.append(True, (read[:, 1:] != read[:, :-1]).any(0))
        starts = np.flatnonzero(new)
        ends = np.append(starts[1:], len(new))
        is_read_by_some = read[:, starts].any(0)
        firsts, lasts = bounds[starts[is_read_by_some]].tolist(), bounds[ends[is_read_by_some]].tolist()
        return cls(tuple(zip(firsts, lasts, strict=True)), read[:, starts[is_read_by_some]])

    def keys(self, first: int, last: int) -> np.ndarray:
        """Which of the prefix's tokens ``[first, last)`` each row reads: ``(rows, tokens)``."""
        is_read = np.zeros((len(self.read), last), dtype=bool)
        for (start, end), rows in zip(self.stretches, self.read.T, strict=True):
            is_read[:, start:end] = rows[:, None]
        return is_read[:, first:]


@dataclass(eq=False)
class Pack:
    """Compute concatenated new tokens of some of a pack's queries.

    Token ``n`` belongs to row ``rows[n]``, is stored in that row's slot ``slots[n]``, has position
    ``prefix.length + offsets[n]`` and sees the slots ``visible[n]`` of its row. All tensors are on
    the model's device: ``rows``, ``slots``, ``offsets`` ``(tokens,)`` int64, ``visible`` ``(tokens,
    slots in use)`` bool, ``slot_offsets`` ``(pack rows, slots in use)`` the offset of the token in
    each slot. With ``causal``, the tokens are the rows' first tokens in order, and see those before
    them. With a ``reading``, a row sees only the stretches of the prefix that it reads. ``ends``
    are the tokens whose last hidden states are read, ``(ends,)`` int64; None for all.
    """

    prefix: Prefix
    keys: PackKeys
    rows: Tensor
    slots: Tensor
    offsets: Tensor
    visible: Tensor
    slot_offsets: Tensor
    view: View = View()
    causal: bool = False
    reading: PrefixReading | None = None
    ends: Tensor | None = None

    def __post_init__(self) -> None:
        self.live, place = torch.unique(self.rows, return_inverse=True)
        # tokens of a row are adjacent: their rank in the row is the distance to its first token
        index = torch.arange(len(self.rows), device=self.rows.device)
        first = torch.full((len(self.live),), len(self.rows), device=self.rows.device)
        first = first.scatter_reduce(0, place, index, "amin")
        self._place, self._rank = place, index - first[place]
        self._width = int(self._rank.max()) + 1
        self._masks = Masks()
        self._fars: dict[ReceptiveSpan, tuple[Tensor, int]] = {}
        self._readers = self._readers_of(self.reading) if self.reading else []

    def _readers_of(self, reading: PrefixReading) -> list[tuple[int, int, Tensor | None]]:
        """Each stretch that a token of this step reads, and its readers; None for all tokens."""
        rows = self.rows.cpu().numpy()
        readers_of_stretches: list[tuple[int, int, Tensor | None]] = []
        for (start, end), read in zip(reading.stretches, reading.read.T[:, rows], strict=True):
            if read.all():
                readers_of_stretches.append((start, end, None))
            elif read.any():
                readers = torch.from_numpy(np.flatnonzero(read)).to(self.rows.device)
                readers_of_stretches.append((start, end, readers))
        return readers_of_stretches

    def layer(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """One layer's attention: ``(1, heads, tokens, head_dim)`` for query and result."""
        held = self._held(layer, key, value)
        span = self.view.span(layer, window)
        if span.chunk is not None:
            return merge(self._chunked(layer, held, query, scale, span))
        parts = [self._own(held, query, scale, span.window)]
        if self.prefix.length and span.window is None:
            if self.reading is not None:
                return self._read_stretches(layer, parts[0], query, scale)
            parts += attend_past(query, *self.prefix.full(layer), scale)
        elif (tail := self.prefix.tail(layer)) is not None and tail.tokens:
            mask = self._tail_mask(tail.tokens, span.window or 0, query, key)
            parts.append(attend(query, tail.key, tail.value, scale, mask=mask))
        return merge(parts)

    def _held(self, layer: int, key: Tensor, value: Tensor) -> LayerKeys:
        """A layer's keys and values of the pack, including the new ones."""
        held = self.keys.layer(layer, key, self.visible.shape[1])
        held.key[self.rows, :, self.slots] = key[0].transpose(0, 1)
        held.value[self.rows, :, self.slots] = value[0].transpose(0, 1)
        return held

    @property
    def whole(self) -> bool:
        """Whether the last hidden states of all its tokens are read."""
        return self.ends is None

    def store(self, layer: int, key: Tensor, value: Tensor, window: int | None) -> None:  # noqa: ARG002
        """Store a layer's keys and values."""
        self._held(layer, key, value)

    def at_ends(self) -> Pack:
        """The same step for the tokens that are read only, with the same attention."""
        rows, slots, offsets, visible = (x[self.ends] for x in (self.rows, self.slots, self.offsets, self.visible))
        part = replace(self, rows=rows, slots=slots, offsets=offsets, visible=visible, causal=False, ends=None)
        part._fars = {span: (far[self.ends], last) for span, (far, last) in self._fars.items()}
        return part

    def _read_stretches(self, layer: int, own: PartialAttention, query: Tensor, scale: float) -> Tensor:
        """Attention to the stretches of the prefix that each token reads, one stretch at a time."""
        held, parts = self.prefix.whole(layer), [own]
        for start, end, readers in self._readers:
            if readers is None:
                parts.append(attend(query, *held.part(start, end), scale))
        total = TokenParts(query, parts, scale)
        for start, end, readers in self._readers:
            if readers is not None:
                total.add(*held.part(start, end), readers)
        return total.result()

    def _chunked(
        self, layer: int, held: LayerKeys, query: Tensor, scale: float, span: ReceptiveSpan
    ) -> list[PartialAttention]:
        """Attention to a query's own tokens, to the prefix's last ones, and to means of chunks."""
        parts = [self._own(held, query, scale, None)]
        tail, means, chunk = self.prefix.tail(layer), self.prefix.means(layer), span.chunk or 1
        if tail is None or not tail.tokens:
            return parts
        far, last = self._far(span)
        base = self.prefix.length - tail.tokens
        leaving = max(0, last - base) // chunk  # chunks that leave the window in this pack
        keys = torch.arange(base, self.prefix.length, device=far.device)
        name = ("near", span)
        mask = self._masks.get(name, query, tail.key, lambda: keys >= far[:, None])
        parts.append(attend(query, tail.key, tail.value, scale, mask=mask))
        if means is not None:
            parts.append(_with_chunk_weight(attend(query, means.key, means.value, scale), chunk))
        if leaving:
            left_means = chunk_means(tail, chunk, leaving)
            ends = base + (torch.arange(leaving, device=far.device) + 1) * chunk
            name = ("gone", span)
            mask = self._masks.get(name, query, tail.key, lambda: ends <= far[:, None])
            parts.append(_with_chunk_weight(attend(query, left_means.key, left_means.value, scale, mask=mask), chunk))
        return parts

    def _far(self, span: ReceptiveSpan) -> tuple[Tensor, int]:
        """The first token in each new token's window, ``(tokens,)``, and the last of these.

        Computed on the host, once for all layers of a step: reading it from the device would wait
        for all earlier layers.
        """
        if span not in self._fars:
            far = span.first((self.offsets + self.prefix.length).cpu().numpy())
            assert far.max() <= self.prefix.length, "a query's own tokens leave its window"
            self._fars[span] = torch.from_numpy(far).to(self.offsets.device), int(far.max())
        return self._fars[span]

    def _own(self, held: LayerKeys, query: Tensor, scale: float, window: int | None) -> PartialAttention:
        """Attention of each row's tokens to their row's keys, as a padded batch."""
        used = self.visible.shape[1]
        heads, width = query.shape[1], query.shape[3]
        padded = query.new_zeros(len(self.live), self._width, heads, width)
        padded[self._place, self._rank] = query[0].transpose(0, 1)
        key, value = held.key[:, :, :used], held.value[:, :, :used]
        if len(self.live) < self.keys.rows:
            key, value = key[self.live], value[self.live]
        if window is not None and self.causal and self._width <= window:
            window = None
        if self.causal and on_cuda(query) and (window is None or has_windows(query)):
            # slots after a row's last token are padding, which no token of the row sees
            part = attend(padded.transpose(1, 2), key, value, scale, causal=True, window=window)
        else:
            mask = self._own_mask(window, query, key)
            part = attend(padded.transpose(1, 2), key, value, scale, mask=mask)
        out = part.out.transpose(1, 2)[self._place, self._rank]
        lse = part.lse.transpose(1, 2)[self._place, self._rank]
        return PartialAttention(out.transpose(0, 1)[None], lse.transpose(0, 1)[None])

    def _own_mask(self, window: int | None, query: Tensor, key: Tensor) -> Mask:
        """Which tokens see which keys within a row. Padding sees nothing."""

        def own() -> Tensor:
            seen = self.visible
            if window is not None:
                distance = self.offsets[:, None] - self.slot_offsets[self.rows]
                seen = seen & (distance < window)
            padded = seen.new_zeros(len(self.live), self._width, seen.shape[1])
            padded[self._place, self._rank] = seen
            return padded

        return self._masks.get(("own", window), query, key, own)

    def _tail_mask(self, tail_tokens: int, window: int, query: Tensor, key: Tensor) -> Mask:
        """Which of the prefix's last ``tail_tokens`` tokens are in each token's window."""

        def near() -> Tensor:
            # key j is tail_tokens - j tokens before the first own token
            back = torch.arange(tail_tokens, 0, -1, device=self.offsets.device)
            seen = self.offsets[:, None] + back < window
            if self.reading is not None:
                read = self.reading.keys(self.prefix.length - tail_tokens, self.prefix.length)
                seen &= torch.from_numpy(read).to(seen.device)[self.rows]
            return seen

        return self._masks.get(("tail", window), query, key, near)


Step = Extend | Pack


def causal_rows(lengths: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and slots of concatenated texts: two ``(sum of lengths,)`` tensors."""
    counts = torch.tensor(lengths)
    rows = torch.repeat_interleave(torch.arange(len(lengths)), counts)
    starts = torch.cumsum(counts, 0) - counts
    slots = torch.arange(int(counts.sum())) - starts[rows]
    return rows.to(device), slots.to(device)
