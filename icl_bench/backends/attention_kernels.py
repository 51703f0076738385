"""Attention in parts: a shared prefix once for all, each query's own tokens apart.

Softmax attention over a set of keys can be computed over its parts and put together exactly, given
each part's log-sum-exp (Dao et al. 2022, FlashAttention, section 3.1; Juravsky et al. 2024,
Hydragen, section 3). So the keys of the demonstrations are neither copied per query nor
concatenated with the query's own, and their part needs no mask.

Query heads that share a key head are folded into one longer query, so that grouped keys and values
are never repeated either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """Attention over some of the keys.

    ``out`` is ``(batch, heads, tokens, head_dim)``, ``lse`` ``(batch, heads, tokens)`` in float32:
    the log of the sum of the exponentiated scores, -inf where no key of the part is seen.
    """

    out: Tensor
    lse: Tensor


class Mask(NamedTuple):
    """Who sees whom, made ready for the kernels once and used in many layers.

    ``bias`` is ``(batch or 1, 1, groups * tokens, keys)``: 0 where seen, -inf elsewhere; ``blind``
    is ``(batch or 1, 1, tokens)`` bool, true for tokens that see no key, or None if there is none.
    """

    bias: Tensor
    blind: Tensor | None


def mask_of(seen: Tensor, groups: int, dtype: torch.dtype) -> Mask:
    """Make a mask of ``seen``, ``(batch or 1, tokens, keys)`` bool, for so many query heads per
    key head.
    """
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    bias.masked_fill_(~seen, -math.inf)
    blind = ~seen.any(-1).unsqueeze(1)
    return Mask(bias.repeat(1, groups, 1).unsqueeze(1), blind if bool(blind.any()) else None)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    *,
    mask: Mask | None = None,
    causal: bool = False,
) -> Part:
    """Attention of ``query`` to ``key``/``value``, with its log-sum-exp.

    ``query`` is ``(batch, heads, tokens, head_dim)``; ``key`` and ``value`` are
    ``(batch, key_heads, keys, head_dim)`` with ``heads`` a multiple of ``key_heads``; ``causal``
    is for equal numbers of tokens and keys, without a mask.
    """
    batch, heads, tokens, width = query.shape
    key_heads, groups = key.shape[1], heads // key.shape[1]
    if causal:
        key, value = (_repeated(x, groups) for x in (key, value))
        return _kernel(query, key, value, scale, None, causal=True)
    folded = query.reshape(batch, key_heads, groups * tokens, width)
    part = _kernel(folded, key, value, scale, mask and mask.bias, causal=False)
    part = Part(part.out.reshape(query.shape), part.lse.reshape(batch, heads, tokens))
    if mask is None or mask.blind is None:
        return part
    # rows that see no key have weight 0 (kernels differ in what they return for them)
    return Part(
        part.out.masked_fill(mask.blind.unsqueeze(-1), 0.0),
        part.lse.masked_fill(mask.blind, -math.inf),
    )


def merge(parts: Sequence[Part]) -> Tensor:
    """Put parts over disjoint keys together: ``(batch, heads, tokens, head_dim)``."""
    if len(parts) == 1:
        return parts[0].out
    lse = torch.stack([part.lse for part in parts])
    weights = torch.softmax(lse, dim=0).unsqueeze(-1)
    total = sum((w * part.out for w, part in zip(weights, parts, strict=True)), torch.tensor(0.0))
    return total.to(parts[0].out.dtype)


def _repeated(x: Tensor, groups: int) -> Tensor:
    """Key heads repeated for their query heads; a view where there is one key head."""
    batch, heads, keys, width = x.shape
    wide = x.unsqueeze(2).expand(batch, heads, groups, keys, width)
    return wide.reshape(batch, heads * groups, keys, width)


def _kernel(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, *, causal: bool
) -> Part:
    """The device's fused kernel where it returns a log-sum-exp, else plain matrix products.

    The public ``scaled_dot_product_attention`` runs the same kernels but keeps their log-sum-exp
    to itself.
    """
    if query.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=bias, scale=scale
        )
        return Part(out, lse)
    half = query.dtype in (torch.float16, torch.bfloat16)
    if query.device.type == "cuda" and half and bias is None and query.shape[-1] % 8 == 0:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, False, scale=scale
        )[:2]
        return Part(out, lse)
    return plain(query, key, value, scale, bias, causal=causal)


def plain(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, *, causal: bool
) -> Part:
    """Attention by matrix products in float32: the reference for every kernel."""
    scores = query.float() @ key.float().transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + bias
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return Part((weights @ value.float()).to(query.dtype), lse)
