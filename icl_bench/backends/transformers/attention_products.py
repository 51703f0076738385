"""Attention as two matrix products of oneDNN, for a CPU that multiplies bfloat16.

PyTorch's attention kernel multiplies bfloat16 through MKL unless the processor has AMX. With AVX-512
bfloat16 only, this has a quarter of the speed of oneDNN's products. But oneDNN rounds a product to
bfloat16, which is too coarse for scores. It can apply an activation before it rounds, and one
activation is nearly the exponential that softmax needs:

    logistic(s - m) = exp(s - m) / (1 + exp(s - m))

if ``s - m`` is far below 0: at -7 it is 0.1% too small, less than bfloat16's rounding, and at -20 it
is exact in float32. Softmax does not depend on ``m``, so a row's ``m`` is set about :data:`BELOW`
above its greatest score, which a few keys estimate well enough. Weights of keys are then tiny, but
bfloat16 has the exponents of float32. If ``m`` is a bad estimate, the sum of a row's weights shows
it, and nothing is returned.

So weights are rounded once, and only two further passes are needed: for their sum and for a mask.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

mkldnn: Any = torch.ops.mkldnn
"""oneDNN's products, which PyTorch's compiler uses."""

ROWS, KEYS = 2048, 2048
"""Queries (of all heads that share a key head) and keys of a product: 8 MiB of weights."""

SAMPLED = 16
"""Keys whose scores estimate a row's greatest score."""

BELOW = 30.0
"""The greatest sampled score is shifted to this much below 0, in nats."""

HIGHEST, LOWEST = math.exp(-7.0), math.exp(-68.0)
"""The range of a row's sum of weights in which weights are exact to bfloat16's rounding. Above it,
the logistic function differs from the exponential. Below it, keys with less than a
hundred-millionth of the sum are lost, because exp(-87) is the smallest weight."""

FEWEST = 32
"""Rows and keys below which PyTorch's kernel is as fast."""

PARTIAL = 8
"""The number of partial sums, each rounded to bfloat16, that are added in float32."""


@cache
def pays() -> bool:
    """Whether this processor's products of bfloat16 are faster than PyTorch's attention kernel."""
    return (
        torch.backends.mkldnn.is_available()
        and torch.cpu._is_avx512_bf16_supported()
        and not torch.cpu._is_amx_tile_supported()
    )


def suits(query: Tensor, key: Tensor) -> bool:
    """Whether :func:`attend` is faster for attention of ``(batch, heads, tokens, width)`` to
    ``(batch, key_heads, keys, width)``.
    """
    rows = query.shape[1] // key.shape[1] * query.shape[2]
    return (
        query.dtype == torch.bfloat16
        and query.device.type == "cpu"
        and len(query) == 1
        and min(rows, key.shape[2]) >= FEWEST
        and pays()
    )


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, seen: Tensor | None = None, blind: Tensor | None = None
) -> tuple[Tensor, Tensor] | None:
    """Attention of ``(1, heads, tokens, width)`` to ``(1, key_heads, keys, width)`` in bfloat16.

    ``seen`` is ``(keys, tokens)`` in bfloat16: 1 if a token sees a key, else 0. ``blind`` are the
    tokens that see no key, ``(tokens,)`` bool; their results are meaningless. Returns the result,
    ``(1, heads, tokens, width)``, and its log-sum-exp in float32, ``(1, heads, tokens)``; or None
    if the range of scores is too large.
    """
    _, heads, tokens, width = query.shape
    key_heads = key.shape[1]
    groups = heads // key_heads
    grouped = query[0].unflatten(0, (key_heads, groups))
    out = torch.empty_like(grouped)
    lse = grouped.new_empty(key_heads, groups, tokens, dtype=torch.float32)
    at_once = max(1, ROWS // groups)
    exact = math.frexp(scale)[0] == 0.5
    for head in range(key_heads):
        keys, values = key[0, head], value[0, head]
        if not exact:
            keys = keys.repeat(1, 2)
        sampled = keys[:: -(-len(keys) // SAMPLED)].t()
        for start in range(0, tokens, at_once):
            tokens_slice = slice(start, min(tokens, start + at_once))
            rows = _scaled(grouped[head, :, tokens_slice].reshape(-1, width), scale, exact=exact)
            offsets = -(rows @ sampled).amax(1) - BELOW
            total, weight = _weighted_sums(rows, keys, values, offsets, None if seen is None else seen[:, tokens_slice])
            good = (weight > LOWEST) & (weight < HIGHEST)
            if blind is not None:
                good |= blind[tokens_slice].repeat(groups)
            if not bool(good.all()):
                return None
            torch.div(total.view(groups, -1, width), weight.view(groups, -1, 1), out=out[head, :, tokens_slice])
            lse[head, :, tokens_slice] = (weight.log_() - offsets).view(groups, -1)
    return out.view(query.shape), lse.view(1, heads, tokens)


def _scaled(rows: Tensor, scale: float, *, exact: bool) -> Tensor:
    """``rows`` times ``scale``. If ``scale`` is not a power of two, the rounding error is appended and multiplied by
    the same keys: ``(rows, 2 * width)``.
    """
    if exact:
        return rows * scale
    wide = rows.float().mul_(scale)
    rounded = wide.to(rows.dtype)
    return torch.cat([rounded, wide.sub_(rounded).to(rows.dtype)], 1)


def _weighted_sums(
    rows: Tensor, keys: Tensor, values: Tensor, offsets: Tensor, seen: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Sums of weighted values, ``(rows, width)``, and of weights, ``(rows,)``, both in float32.

    ``seen`` is ``(keys, tokens)``; rows are the tokens of several heads.
    """
    packed = mkldnn._reorder_linear_weight(rows, min(len(keys), KEYS))
    total, weight = torch.zeros(len(rows), values.shape[1]), torch.zeros(len(rows))
    for start in range(0, len(keys), KEYS):
        keys_slice = slice(start, start + KEYS)
        weights = mkldnn._linear_pointwise(keys[keys_slice], packed, offsets, "sigmoid", [], "")
        if seen is not None:
            weights.view(len(weights), -1, seen.shape[1]).mul_(seen[keys_slice].unsqueeze(1))
        total += weights.t() @ values[keys_slice]
        weight += _summed(weights)
    return total, weight


def _summed(weights: Tensor) -> Tensor:
    """Sums over the first dimension, nearly in float32: PyTorch rounds a sum of a 16-bit tensor."""
    even = len(weights) // PARTIAL * PARTIAL
    partial = weights[:even].view(PARTIAL, -1, weights.shape[1]).sum(1)
    total = partial.sum(0, dtype=torch.float32)
    if even < len(weights):
        total += weights[even:].sum(0, dtype=torch.float32)
    return total
