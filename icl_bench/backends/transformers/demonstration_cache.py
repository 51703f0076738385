"""Demonstrations that are computed once and reused in many prompts.

If a demonstration sees only itself and a sink that all prompts begin with, its keys and values do
not depend on the prompt, except for the rotation of keys. So they are computed once after the sink,
cached, and rotated by the distance to their position (a key with the rotary embedding of position p,
rotated by d, has that of position p + d: Su et al. 2021, section 3.2).
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
"""The limit of cached keys and values for later prompts. The demonstrations of the current batch of
prompts are cached in addition, up to the same limit (one prompt may need more)."""


@dataclass
class DemonstrationCache:
    """A least-recently-used cache of demonstrations' keys and values, computed at position ``base``."""

    base: int
    limit_bytes: int = LIMIT_BYTES
    nbytes: int = 0
    _held: OrderedDict[Ids, Mapping[int, LayerKeys]] = field(default_factory=OrderedDict)

    def __contains__(self, ids: Ids) -> bool:
        return ids in self._held

    def get(self, ids: Ids) -> Mapping[int, LayerKeys]:
        """One demonstration's layers. Marks it as used."""
        self._held.move_to_end(ids)
        return self._held[ids]

    def put(self, ids: Ids, layers: Mapping[int, LayerKeys]) -> None:
        """Add a demonstration."""
        self._held[ids] = layers
        self.nbytes += _nbytes(layers)

    def trim(self, needed: Collection[Ids] = ()) -> None:
        """Drop demonstrations over the limit, but none of ``needed``."""
        for ids in list(self._held):
            if self.nbytes <= self.limit_bytes or len(self._held) <= 1:
                return
            if ids not in needed:
                self.nbytes -= _nbytes(self._held.pop(ids))


def _nbytes(layers: Mapping[int, LayerKeys]) -> int:
    return sum(x.nbytes for held in layers.values() for x in (held.key, held.value))


class RotaryShift:
    """Rotates keys by a distance, by a model's rotary embedding."""

    def __init__(self, core: Any) -> None:
        self._rotary = core.rotary_emb
        kinds = getattr(core.config, "layer_types", None) or []
        self._kinds: list[str] = kinds if hasattr(self._rotary, "layer_types") else []

    def angles(self, distances: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Cosines and sines, ``(tokens, head_dim)`` each, of distances ``(tokens,)``, by kind."""
        like = torch.zeros(1, device=distances.device)
        angles = {}
        for kind in dict.fromkeys(self._kinds or [""]):
            # forward() bypasses hooks on the module
            cos, sin = self._rotary.forward(like, distances[None], *([kind] if kind else []))
            name = f"{kind}_attention_scaling" if kind else "attention_scaling"
            scaling = getattr(self._rotary, name, 1.0)
            angles[kind] = (cos[0] / scaling, sin[0] / scaling)
        return angles

    def kind(self, layer: int) -> str:
        """The kind of angles that a layer uses."""
        return self._kinds[layer] if self._kinds else ""


def rotated(key: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Keys ``(1, heads, tokens, head_dim)`` rotated further, computed in float32."""
    wide = key.float()
    first, second = wide.chunk(2, -1)
    return (wide * cos + torch.cat((-second, first), -1) * sin).to(key.dtype)


def assembled(
    head: Prefix,
    demonstrations: Sequence[Mapping[int, LayerKeys]],
    base: int,
    spans: Sequence[ReceptiveSpan],
    shift: RotaryShift,
) -> Prefix:
    """A prefix of the head, followed by demonstrations that were computed at ``base``."""
    device = next(iter(demonstrations[0].values())).key.device
    sizes = [next(iter(layers.values())).tokens for layers in demonstrations]
    length = head.length + sum(sizes)
    places = head.length + torch.cumsum(torch.tensor([0, *sizes]), 0)[:-1]
    distances = torch.repeat_interleave(places - base, torch.tensor(sizes)).to(device)
    angles = shift.angles(distances)
    result = Prefix()
    result.reserve(length)
    for layer, span in enumerate(spans):
        key = torch.cat([layers[layer].key for layers in demonstrations], 2)
        value = torch.cat([layers[layer].value for layers in demonstrations], 2)
        key = rotated(key, *angles[shift.kind(layer)])
        start = None
        if head.length:  # without BOS and sink, nothing precedes the demonstrations
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
