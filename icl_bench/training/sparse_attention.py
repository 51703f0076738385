"""Attention of a training step that computes only what a pattern attends to, with gradients.

Training reads whole sequences without prefix or cache. A sequence is cut into parts of
:data:`PART_TOKENS` tokens, and each part's queries are multiplied with the keys that some of them attend
to (Song et al. 2023, Zebra, equations 8 to 10; Bertsch et al. 2025, section 5). On CUDA, FlexAttention
computes windows and blocks with a block mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import FULL, BlockLayout, Pattern, ReceptiveSpan
from icl_bench.models.config import layer_windows
from icl_bench.models.trained import own_pattern

ATTENTION_NAME = "icl_bench_training"
"""Its name in transformers' registry of attention functions."""

SPARSITY_ATTRIBUTE = "_icl_bench_sparsity"
"""Attribute of layers with the sparsity to use if the forward pass receives none."""

PART_TOKENS = 128
"""Tokens computed together: more tokens mean fewer calls, but more masked products."""


@dataclass(frozen=True)
class Sparsity:
    """Which tokens attend to which in a batch of sequences of equal length."""

    spans: tuple[ReceptiveSpan, ...]
    """The span of each layer."""
    layout: BlockLayout | None = None
    """The blocks of demonstrations, the same in all sequences of the batch."""
    _seen: dict[tuple[object, ...], Any] = field(default_factory=dict, compare=False)
    """Masks, shared by layers with the same span."""

    @classmethod
    def of(cls, pattern: Pattern, windows: Sequence[int | None], ends: Sequence[int] = ()) -> Sparsity:
        """The sparsity of a pattern in a model with these windows; ``ends`` are the ends of demonstrations."""
        return cls(pattern.spans(windows), pattern.layout(ends) if ends else None)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """A layer's attention: ``(rows, heads, tokens, head_dim)`` for query and result.

        ``key`` and ``value`` are ``(rows, key_heads, tokens, head_dim)``; ``heads`` is a multiple
        of ``key_heads``.
        """
        span, tokens = self.spans[layer], query.shape[2]
        lows = self._lows(span, tokens)
        if not lows.any():
            return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
        if span.chunk is None and query.device.type == "cuda":
            return self._flex(span, query, key, value, scale)
        return self._in_parts(span, lows, query, key, value, scale)

    def _lows(self, span: ReceptiveSpan, tokens: int) -> np.ndarray:
        """The first token that each token attends to, apart from the sink: ``(tokens,)``."""
        places = np.arange(tokens)
        far = span.first(places)
        return far if self.layout is None else np.maximum(far, self.layout.first(places))

    def _in_parts(
        self, span: ReceptiveSpan, lows: np.ndarray, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        tokens, chunk = query.shape[2], span.chunk
        sink = 0 if self.layout is None else self.layout.sink_end
        far = span.first(np.arange(tokens))
        means = None
        if chunk is not None and (count := int(far[-1]) // chunk):
            means = [x[:, :, : count * chunk].unflatten(2, (count, chunk)).mean(3) for x in (key, value)]
        outs = []
        for start in range(0, tokens, PART_TOKENS):
            end = min(start + PART_TOKENS, tokens)
            low = int(lows[start:end].min())
            # the sink is separate if there is a gap between it and the near tokens
            kept = min(sink, low) if far[start:end].min() < sink else 0
            gone = 0 if chunk is None or means is None else int(far[end - 1]) // chunk
            name = (span, start, end)
            if name not in self._seen:
                self._seen[name] = self._bias(lows, far, (start, end, low), kept, sink, gone, chunk)
            bias = self._seen[name].to(query.device, query.dtype)
            near: list[Tensor] = []
            for x, mean in zip((key, value), means or (None, None), strict=True):
                pieces = [x[:, :, :kept], x[:, :, low:end]]
                if mean is not None:
                    pieces.insert(0, mean[:, :, :gone])
                near.append(torch.cat(pieces, 2))
            outs.append(
                scaled_dot_product_attention(
                    query[:, :, start:end], near[0], near[1], attn_mask=bias, scale=scale, enable_gqa=True
                )
            )
        return torch.cat(outs, 2)

    @staticmethod
    def _bias(
        lows: np.ndarray,
        far: np.ndarray,
        part: tuple[int, int, int],
        kept: int,
        sink: int,
        gone: int,
        chunk: int | None,
    ) -> Tensor:
        """Bias of a part's scores: ``(tokens, keys)``, -inf for masked keys.

        The keys are means of chunks, the sink's keys, and keys from the part's first one on.
        """
        start, end, low = part
        token = np.arange(start, end)[:, None]
        mean, first, near = (np.arange(a, b)[None] for a, b in ((0, gone), (0, kept), (low, end)))
        mine, window = lows[start:end, None], far[start:end, None]
        seen_mean = (mean + 1) * (chunk or 1) <= window
        seen_first = (first < sink) & (first >= window)
        seen_near = (near <= token) & (near >= window) & ((near >= mine) | (near < sink))
        bias = np.full((end - start, gone + kept + end - low), -math.inf, np.float32)
        bias[:, :gone][seen_mean] = math.log(chunk or 1)
        bias[:, gone : gone + kept][seen_first] = 0.0
        bias[:, gone + kept :][seen_near] = 0.0
        return torch.from_numpy(bias)

    def _flex(self, span: ReceptiveSpan, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention by FlexAttention (He et al. 2024), which skips blocks of masked keys."""
        from torch.nn.attention.flex_attention import create_block_mask

        tokens, device = query.shape[2], query.device
        name = ("flex", span, tokens, device)
        if name not in self._seen:
            lows = torch.from_numpy(self._lows(span, tokens)).to(device)
            far = torch.from_numpy(span.first(np.arange(tokens))).to(device)
            sink = 0 if self.layout is None else self.layout.sink_end

            def seen(row: Tensor, head: Tensor, at: Tensor, of: Tensor) -> Tensor:
                del row, head
                return (of <= at) & (of >= far[at]) & ((of >= lows[at]) | (of < sink))

            self._seen[name] = create_block_mask(seen, None, None, tokens, tokens, device=device)
        out: Tensor = _flex_attention()(query, key, value, block_mask=self._seen[name], scale=scale, enable_gqa=True)
        return out


@cache
def _flex_attention() -> Any:
    """FlexAttention, compiled once, because uncompiled it computes all products."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - sparsity replaces it
    scaling: float | None = None,
    sparsity: Sparsity | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function of every layer during training with a pattern."""
    sparsity = sparsity or getattr(module, SPARSITY_ATTRIBUTE, None)
    if sparsity is None:
        raise UserError("this model does not pass options to its attention layers")
    for name in ("softcap", "s_aux"):
        if options.get(name) is not None:
            raise UserError(f"this model's attention uses {name!r}, which is not supported")
    if module.training and options.get("dropout"):
        raise UserError("this model's attention dropout is not supported")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    out = sparsity.attend(module.layer_idx, query, key, value, scale)
    return out.transpose(1, 2), None


def use_sparse_attention(network: Any, sparsity: Sparsity | None = None) -> None:
    """Make a network's layers use the ``sparsity`` of its forward pass, else this one."""
    from transformers import AttentionInterface

    for module in network.modules():
        if sparsity is not None and hasattr(module, "layer_idx"):
            setattr(module, SPARSITY_ATTRIBUTE, sparsity)
    AttentionInterface.register(ATTENTION_NAME, attention)
    network.set_attn_implementation(ATTENTION_NAME)


def as_adapted(network: Any, source: str) -> Any:
    """The network with the pattern that its checkpoint was adapted to, if it was.

    Rows padded on the right need no mask, because no token attends to later ones.
    """
    pattern = own_pattern(source)
    if pattern != FULL:
        use_sparse_attention(network, Sparsity.of(pattern, layer_windows(network.config.get_text_config())))
    return network
