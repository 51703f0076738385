"""Keys and values of the shared prefix and of a pack of queries, and who sees whom.

One model call is a *step*: it either extends the prefix (``Extend``) or computes tokens of several
queries that each see the prefix and themselves but none of the others (``Pack``). A step is handed
through the model to the attention function, which asks it for every layer's result.

A layer with a sliding window of W tokens keeps only the last W - 1 keys of the prefix: no later
token sees further back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from icl_bench.backends.attention import Mask, Part, attend, mask_of, merge

SLIDING_BLOCK = 128
"""Queries of a sliding layer that are computed together: each block sees W - 1 + 128 keys."""


@dataclass
class _LayerKeys:
    """One layer's prefix: a buffer with room to grow, or the sliding window's last tokens."""

    key: Tensor
    value: Tensor


@dataclass(frozen=True)
class Mark:
    """A state of the prefix to which it can be rewound."""

    length: int
    tails: dict[int, _LayerKeys]


class Prefix:
    """Keys and values of the tokens that all queries share.

    A full layer holds ``(1, key_heads, capacity, head_dim)`` and is written in place; a sliding
    layer holds ``(1, key_heads, <= window - 1, head_dim)`` and is replaced, so that marking a state
    copies nothing.
    """

    def __init__(self) -> None:
        self.length = 0
        self.capacity = 0
        self._full: dict[int, _LayerKeys] = {}
        self._tails: dict[int, _LayerKeys] = {}

    @property
    def layers(self) -> tuple[int, int]:
        """How many full and how many sliding layers have keys here."""
        return len(self._full), len(self._tails)

    def reserve(self, tokens: int) -> None:
        """Make room for so many tokens, so that extending does not copy."""
        self.capacity = max(self.capacity, tokens)

    def mark(self) -> Mark:
        """Remember this state; later tokens may be added and dropped again by ``rewind``."""
        return Mark(self.length, dict(self._tails))

    def rewind(self, mark: Mark) -> None:
        """Go back to a marked state of this prefix."""
        self.length, self._tails = mark.length, dict(mark.tails)

    def nbytes(self) -> int:
        """Bytes held by keys and values."""
        held = [*self._full.values(), *self._tails.values()]
        return sum(x.nbytes for layer in held for x in (layer.key, layer.value))

    def full(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a full layer's tokens so far, as views."""
        held = self._full[layer]
        return held.key[:, :, : self.length], held.value[:, :, : self.length]

    def tail(self, layer: int) -> _LayerKeys | None:
        """The last tokens of a sliding layer."""
        return self._tails.get(layer)

    def append_full(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write new tokens behind a full layer's; ``length`` moves when the step is over."""
        end = self.length + key.shape[2]
        held = self._full.get(layer)
        if held is None or held.key.shape[2] < end:
            size = max(end, self.capacity)
            held = _LayerKeys(
                _grown(held.key if held else None, key, size, self.length),
                _grown(held.value if held else None, value, size, self.length),
            )
            self._full[layer] = held
        held.key[:, :, self.length : end] = key
        held.value[:, :, self.length : end] = value

    def replace_tail(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Set the last tokens of a sliding layer."""
        self._tails[layer] = _LayerKeys(key, value)


def _grown(old: Tensor | None, new: Tensor, size: int, used: int) -> Tensor:
    batch, heads, _, width = new.shape
    grown = new.new_empty(batch, heads, size, width)
    if old is not None:
        grown[:, :, :used] = old[:, :, :used]
    return grown


def _banded(ahead: int, queries: int, keys: int, window: int) -> Tensor:
    """Causal visibility in a window, the first query at key ``ahead``: ``(1, queries, keys)``."""
    query = torch.arange(ahead, ahead + queries)[:, None]
    key = torch.arange(keys)[None]
    return ((key <= query) & (key > query - window))[None]


@dataclass
class Extend:
    """Add ``tokens`` tokens to the prefix."""

    prefix: Prefix
    tokens: int
    _masks: dict[tuple[int, ...], Mask] = field(default_factory=dict)

    def layer(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """One layer's attention: ``(1, heads, tokens, head_dim)`` for query and result."""
        if window is not None:
            return self._sliding(layer, query, key, value, scale, window)
        parts = [attend(query, key, value, scale, causal=True)]
        if self.prefix.length:
            parts.append(attend(query, *self.prefix.full(layer), scale))
        self.prefix.append_full(layer, key, value)
        return merge(parts)

    def _sliding(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int
    ) -> Tensor:
        tail = self.prefix.tail(layer)
        before = 0 if tail is None else tail.key.shape[2]
        if tail is not None:
            key, value = torch.cat([tail.key, key], 2), torch.cat([tail.value, value], 2)
        outs = []
        for start in range(0, self.tokens, SLIDING_BLOCK):
            end = min(start + SLIDING_BLOCK, self.tokens)
            low = max(0, before + start - (window - 1))
            high = before + end
            block = query[:, :, start:end]
            mask = self._mask(before + start - low, high - low, window, block, key)
            part = attend(block, key[:, :, low:high], value[:, :, low:high], scale, mask=mask)
            outs.append(part.out)
        keep = max(0, key.shape[2] - (window - 1))
        self.prefix.replace_tail(layer, key[:, :, keep:].clone(), value[:, :, keep:].clone())
        return torch.cat(outs, 2)

    def _mask(self, ahead: int, keys: int, window: int, query: Tensor, key: Tensor) -> Mask:
        """The window's mask for queries whose first stands ``ahead`` keys into the keys."""
        queries, groups = query.shape[2], query.shape[1] // key.shape[1]
        shape = (ahead, queries, keys, window, groups)
        if shape not in self._masks:
            seen = _banded(ahead, queries, keys, window).to(query.device)
            self._masks[shape] = mask_of(seen, groups, query.dtype)
        return self._masks[shape]

    def done(self) -> None:
        """All layers were computed: the new tokens belong to the prefix."""
        self.prefix.length += self.tokens


class PackKeys:
    """Keys and values of a pack's own tokens: ``(rows, key_heads, slots, head_dim)`` a layer."""

    def __init__(self, rows: int, slots: int) -> None:
        self.rows, self.slots = rows, slots
        self._held: dict[int, _LayerKeys] = {}

    def layer(self, layer: int, like: Tensor) -> _LayerKeys:
        """The layer's buffers, made on first use."""
        if layer not in self._held:
            shape = (self.rows, like.shape[1], self.slots, like.shape[3])
            # zeros: slots that no token has filled are masked, but 0 * nan would still be nan
            self._held[layer] = _LayerKeys(like.new_zeros(shape), like.new_zeros(shape))
        return self._held[layer]


class Pack:
    """Compute new tokens of some of a pack's queries, laid out one behind the other.

    Token ``n`` belongs to row ``rows[n]``, is stored in that row's slot ``slots[n]``, stands at
    position ``prefix.length + offsets[n]`` and sees the slots ``visible[n]`` of its own row. All
    tensors live on the model's device: ``rows``, ``slots``, ``offsets`` ``(tokens,)`` int64,
    ``visible`` ``(tokens, slots in use)`` bool, ``slot_offsets`` ``(pack rows, slots in use)``
    the offset of the token in each slot.
    """

    def __init__(
        self,
        prefix: Prefix,
        keys: PackKeys,
        rows: Tensor,
        slots: Tensor,
        offsets: Tensor,
        visible: Tensor,
        slot_offsets: Tensor,
    ) -> None:
        self.prefix, self.keys = prefix, keys
        self.rows, self.slots, self.offsets = rows, slots, offsets
        self.visible, self.slot_offsets = visible, slot_offsets
        self.live, place = torch.unique(rows, return_inverse=True)
        # tokens of a row are neighbours: their rank inside the row is their distance to its first
        index = torch.arange(len(rows), device=rows.device)
        first = torch.full((len(self.live),), len(rows), device=rows.device)
        first = first.scatter_reduce(0, place, index, "amin")
        self._place, self._rank = place, index - first[place]
        self._width = int(self._rank.max()) + 1
        self._masks: dict[tuple[str, int | None, int], Mask] = {}

    def layer(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """One layer's attention: ``(1, heads, tokens, head_dim)`` for query and result."""
        held = self.keys.layer(layer, key)
        held.key[self.rows, :, self.slots] = key[0].transpose(0, 1)
        held.value[self.rows, :, self.slots] = value[0].transpose(0, 1)
        parts = [self._own(held, query, scale, window)]
        if self.prefix.length and window is None:
            parts.append(attend(query, *self.prefix.full(layer), scale))
        elif self.prefix.length and (tail := self.prefix.tail(layer)) is not None:
            mask = self._tail_mask(tail.key.shape[2], window or 0, query, key)
            parts.append(attend(query, tail.key, tail.value, scale, mask=mask))
        return merge(parts)

    def _own(self, held: _LayerKeys, query: Tensor, scale: float, window: int | None) -> Part:
        """Each row's tokens and their own row's keys, as a padded batch."""
        used = self.visible.shape[1]
        heads, width = query.shape[1], query.shape[3]
        padded = query.new_zeros(len(self.live), self._width, heads, width)
        padded[self._place, self._rank] = query[0].transpose(0, 1)
        key, value = held.key[:, :, :used], held.value[:, :, :used]
        if len(self.live) < self.keys.rows:
            key, value = key[self.live], value[self.live]
        mask = self._own_mask(window, query, key)
        part = attend(padded.transpose(1, 2), key, value, scale, mask=mask)
        out = part.out.transpose(1, 2)[self._place, self._rank]
        lse = part.lse.transpose(1, 2)[self._place, self._rank]
        return Part(out.transpose(0, 1)[None], lse.transpose(0, 1)[None])

    def _own_mask(self, window: int | None, query: Tensor, key: Tensor) -> Mask:
        """Who sees whom within a row; padding sees nothing."""
        groups = query.shape[1] // key.shape[1]
        if ("own", window, groups) not in self._masks:
            seen = self.visible
            if window is not None:
                distance = self.offsets[:, None] - self.slot_offsets[self.rows]
                seen = seen & (distance < window)
            padded = seen.new_zeros(len(self.live), self._width, seen.shape[1])
            padded[self._place, self._rank] = seen
            self._masks["own", window, groups] = mask_of(padded, groups, query.dtype)
        return self._masks["own", window, groups]

    def _tail_mask(self, kept: int, window: int, query: Tensor, key: Tensor) -> Mask:
        """Which of the prefix's last ``kept`` tokens each token's window reaches."""
        groups = query.shape[1] // key.shape[1]
        if ("tail", window, groups) not in self._masks:
            # the key in place j stands kept - j tokens before the first own token
            back = torch.arange(kept, 0, -1, device=self.offsets.device)
            seen = (self.offsets[:, None] + back[None] < window)[None]
            self._masks["tail", window, groups] = mask_of(seen, groups, query.dtype)
        return self._masks["tail", window, groups]


Step = Extend | Pack


def causal_rows(lengths: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and slots of texts laid one behind the other: two ``(sum of lengths,)`` tensors."""
    counts = torch.tensor(lengths)
    rows = torch.repeat_interleave(torch.arange(len(lengths)), counts)
    starts = torch.cumsum(counts, 0) - counts
    slots = torch.arange(int(counts.sum())) - starts[rows]
    return rows.to(device), slots.to(device)
