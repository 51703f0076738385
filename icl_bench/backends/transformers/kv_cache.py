"""Keys and values of the shared prefix and of a pack of queries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class LayerKeys:
    """One layer's keys and values: ``(rows, key_heads, tokens, head_dim)`` each.

    In a prefix, they are a buffer with room to grow, the last tokens, or means of chunks.
    """

    key: Tensor
    value: Tensor

    @property
    def tokens(self) -> int:
        """The number of keys, including free room."""
        return int(self.key.shape[2])

    def part(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of some of the tokens, as views."""
        return self.key[:, :, start:end], self.value[:, :, start:end]


@dataclass(frozen=True)
class Mark:
    """A state of the prefix to which it can be rewound."""

    length: int
    tails: dict[int, LayerKeys]
    means: dict[int, LayerKeys]


class Prefix:
    """Keys and values of the tokens that all queries share.

    A full layer has a buffer ``(1, key_heads, capacity, head_dim)`` that is written in place. A
    sliding layer has ``(1, key_heads, <= window - 1, head_dim)``, which is replaced, like the means
    of chunks, so that :meth:`mark` does not copy.
    """

    def __init__(self) -> None:
        self.length = 0
        self.capacity = 0
        self._full: dict[int, LayerKeys] = {}
        self._tails: dict[int, LayerKeys] = {}
        self._means: dict[int, LayerKeys] = {}

    @property
    def layers(self) -> tuple[int, int]:
        """The numbers of full and of sliding layers that have keys."""
        return len(self._full), len(self._tails)

    def reserve(self, tokens: int) -> None:
        """Reserve capacity for this number of tokens, so that extending does not copy."""
        self.capacity = max(self.capacity, tokens)

    def mark(self) -> Mark:
        """Save this state. ``rewind`` drops tokens that were added later."""
        return Mark(self.length, dict(self._tails), dict(self._means))

    def rewind(self, mark: Mark) -> None:
        """Go back to a marked state of this prefix."""
        self.length, self._tails = mark.length, dict(mark.tails)
        self._means = dict(mark.means)

    def nbytes(self) -> int:
        """Bytes of keys and values, without reserved room."""
        parts = [held.part(0, self.length) for held in self._full.values()]
        parts += [(h.key, h.value) for h in (*self._tails.values(), *self._means.values())]
        return sum(x.nbytes for part in parts for x in part)

    def full(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a full layer's tokens so far, as views."""
        return self._full[layer].part(0, self.length)

    def whole(self, layer: int) -> LayerKeys:
        """A full layer's buffer, including the tokens after ``length``."""
        return self._full[layer]

    def tail(self, layer: int) -> LayerKeys | None:
        """The last tokens of a sliding layer."""
        return self._tails.get(layer)

    def append_full(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Append new tokens to a full layer. ``length`` is changed after the step."""
        end = self.length + key.shape[2]
        held = self._full.get(layer)
        if held is None or held.tokens < end:
            size = max(end, self.capacity)
            room = LayerKeys(*(_empty_like(x, size) for x in (key, value)))
            if held is not None:
                room.key[:, :, : self.length], room.value[:, :, : self.length] = held.part(0, self.length)
            self._full[layer] = held = room
        held.key[:, :, self.length : end] = key
        held.value[:, :, self.length : end] = value

    def replace_tail(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Set the last tokens of a sliding layer."""
        self._tails[layer] = LayerKeys(key, value)

    def means(self, layer: int) -> LayerKeys | None:
        """Means of the chunks before a layer's tail, in their order."""
        return self._means.get(layer)

    def append_means(self, layer: int, new: LayerKeys) -> None:
        """Add the means of further chunks."""
        self._means[layer] = concatenated(self._means.get(layer), new)


def _empty_like(x: Tensor, tokens: int) -> Tensor:
    """Empty buffers for this number of tokens. On a GPU, a token's heads are adjacent, as its kernels prefer, and
    strides do not depend on ``tokens``; on a CPU, a head's tokens are.
    """
    rows, heads, _, width = x.shape
    if x.device.type == "cuda":
        return x.new_empty(rows, tokens, heads, width).transpose(1, 2)
    return x.new_empty(rows, heads, tokens, width)


def concatenated(first: LayerKeys | None, then: LayerKeys) -> LayerKeys:
    """Keys and values of some tokens and of the following ones."""
    if first is None:
        return then
    return LayerKeys(torch.cat([first.key, then.key], 2), torch.cat([first.value, then.value], 2))


def chunk_means(keys: LayerKeys, chunk: int, count: int) -> LayerKeys:
    """Means of the first ``count`` chunks of some keys and values."""

    def mean(x: Tensor) -> Tensor:
        rows, heads, _, width = x.shape
        part = x[:, :, : count * chunk].reshape(rows, heads, count, chunk, width)
        return part.float().mean(3).to(x.dtype)

    return LayerKeys(mean(keys.key), mean(keys.value))


GROWTH = 16
"""The smallest number of slots by which a pack's rows grow. Most answers have fewer tokens."""


class PackKeys:
    """Keys and values of a pack's own tokens: ``(rows, key_heads, slots, head_dim)`` for each layer.

    Room for an answer is added during generation: the largest possible answer (the longest label in
    bytes, or the token limit) is many times longer than most.
    """

    def __init__(self, rows: int, slots: int = 0) -> None:
        """``slots`` is the initial number of slots of a row."""
        self.rows, self._slots = rows, slots
        self._held: dict[int, LayerKeys] = {}

    def layer(self, layer: int, like: Tensor, used: int) -> LayerKeys:
        """The layer's buffers, with room for the first ``used`` slots of each row."""
        held = self._held.get(layer)
        if held is None or held.tokens < used:
            size = max(used, self._slots if held is None else held.tokens + GROWTH)
            shape = (self.rows, like.shape[1], size, like.shape[3])
            # zeros: unused slots are masked, but 0 * nan would still be nan
            room = LayerKeys(like.new_zeros(shape), like.new_zeros(shape))
            if held is not None:
                room.key[:, :, : held.tokens] = held.key
                room.value[:, :, : held.tokens] = held.value
            self._held[layer] = held = room
        return held

    def of_rows(self, rows: Tensor) -> PackKeys:
        """Copies of some rows, in this order; a row may be taken several times."""
        part = PackKeys(len(rows))
        part._held = {layer: LayerKeys(held.key[rows], held.value[rows]) for layer, held in self._held.items()}
        return part

    def row(self, row: int, tokens: int) -> dict[int, LayerKeys]:
        """Copies of one row's first tokens in every layer, ``(1, key_heads, tokens, head_dim)``."""
        return {
            layer: LayerKeys(*(x[row : row + 1].clone() for x in held.part(0, tokens)))
            for layer, held in self._held.items()
        }
