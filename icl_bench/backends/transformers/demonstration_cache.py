"""Demonstrations that are computed once and put into many prompts.

Where a demonstration sees nothing but itself and a sink that all prompts begin with, its keys and
values do not depend on the prompt; only the keys' rotation does. So they are computed behind the
sink, kept, and rotated by the distance to their place (a key that rotary embeddings have rotated
for position p, rotated by d more, is one for position p + d: Su et al. 2021, section 3.2).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from icl_bench.backends.transformers.kv_cache import LayerKeys, Prefix
from icl_bench.models.attention_patterns import ReceptiveSpan
from icl_bench.prompts.encoding import Ids

LIMIT_BYTES = 4 * 2**30
"""Keys and values of demonstrations that are kept for later prompts. While a batch of prompts is
answered, what it shows is kept besides, up to the same limit (one prompt may show more)."""


@dataclass
class DemonstrationCache:
    """Keys and values of demonstrations, each computed at position ``base``; the least recently
    used go first when the limit is reached.
    """

    base: int
    limit_bytes: int = LIMIT_BYTES
    nbytes: int = 0
    _held: OrderedDict[Ids, Mapping[int, LayerKeys]] = field(default_factory=OrderedDict)

    def __contains__(self, ids: Ids) -> bool:
        return ids in self._held

    def get(self, ids: Ids) -> Mapping[int, LayerKeys]:
        """One demonstration's layers; it counts as used."""
        self._held.move_to_end(ids)
        return self._held[ids]

    def put(self, ids: Ids, layers: Mapping[int, LayerKeys]) -> None:
        """Keep one more."""
        self._held[ids] = layers
        self.nbytes += _nbytes(layers)

    def trim(self, needed: Collection[Ids] = ()) -> None:
        """Drop what is over the limit, but nothing that is still needed."""
        for ids in list(self._held):
            if self.nbytes <= self.limit_bytes or len(self._held) <= 1:
                return
            if ids not in needed:
                self.nbytes -= _nbytes(self._held.pop(ids))


def _nbytes(layers: Mapping[int, LayerKeys]) -> int:
    return sum(x.nbytes for held in layers.values() for x in (held.key, held.value))


class RotaryShift:
    """Rotates keys by a distance, as a model's rotary embedding does."""

    def __init__(self, core: Any) -> None:
        self._rotary = core.rotary_emb
        kinds = getattr(core.config, "layer_types", None) or []
        self._kinds: list[str] = kinds if hasattr(self._rotary, "layer_types") else []

    def angles(self, distances: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Cosines and sines, ``(tokens, head_dim)`` each, of distances ``(tokens,)``, by kind."""
        like = torch.zeros(1, device=distances.device)
        found = {}
        for kind in dict.fromkeys(self._kinds or [""]):
            # without what follows a call of it within the model: its results as they are
            cos, sin = self._rotary.forward(like, distances[None], *([kind] if kind else []))
            name = f"{kind}_attention_scaling" if kind else "attention_scaling"
            scaling = getattr(self._rotary, name, 1.0)
            found[kind] = (cos[0] / scaling, sin[0] / scaling)
        return found

    def kind(self, layer: int) -> str:
        """Which of the angles a layer takes."""
        return self._kinds[layer] if self._kinds else ""


def rotated(key: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Keys ``(1, heads, tokens, head_dim)`` rotated further, computed in float32."""
    wide = key.float()
    first, second = wide.chunk(2, -1)
    return (wide * cos + torch.cat((-second, first), -1) * sin).to(key.dtype)


def assembled(
    head: Prefix,
    shown: Sequence[Mapping[int, LayerKeys]],
    base: int,
    spans: Sequence[ReceptiveSpan],
    shift: RotaryShift,
) -> Prefix:
    """A prefix of the head and, behind it, demonstrations that were computed at ``base``."""
    device = next(iter(shown[0].values())).key.device
    sizes = [next(iter(layers.values())).tokens for layers in shown]
    length = head.length + sum(sizes)
    places = head.length + torch.cumsum(torch.tensor([0, *sizes]), 0)[:-1]
    distances = torch.repeat_interleave(places - base, torch.tensor(sizes)).to(device)
    angles = shift.angles(distances)
    result = Prefix()
    result.reserve(length)
    for layer, span in enumerate(spans):
        key = torch.cat([layers[layer].key for layers in shown], 2)
        value = torch.cat([layers[layer].value for layers in shown], 2)
        key = rotated(key, *angles[shift.kind(layer)])
        start = head.tail(layer) if span.window else LayerKeys(*head.full(layer))
        if start is not None:
            key, value = torch.cat([start.key, key], 2), torch.cat([start.value, value], 2)
        if span.window is None:
            result.append_full(layer, key, value)
        else:
            keep = max(0, key.shape[2] - (span.window - 1))
            result.replace_tail(layer, key[:, :, keep:], value[:, :, keep:])
    result.length = length
    return result
