"""Attention as two matrix products of oneDNN's, for a CPU that multiplies bfloat16.

PyTorch's attention kernel multiplies bfloat16 through MKL unless the processor has AMX, at a
quarter of the rate of oneDNN's products where there is AVX-512 with bfloat16 alone. But oneDNN
rounds a product to bfloat16, which is too coarse for scores. What it can do is to apply an
activation before it rounds, and one of these is nearly the exponential that softmax needs:

    logistic(s - m) = exp(s - m) / (1 + exp(s - m))

where ``s - m`` is far below 0: at -7 it is 0.1% too small, less than bfloat16's own rounding, at
-20 exact in float32. Softmax does not depend on ``m``, so that of a row is set about
:data:`BELOW` above its greatest score, which a few keys tell well enough. Weights of keys are then
tiny, but bfloat16 has float32's exponents. Where ``m`` was chosen badly the sum of a row's weights
says so, and nothing is returned.

So weights are rounded once, and no other pass over them is made than one for their sum and one for
a mask.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

mkldnn: Any = torch.ops.mkldnn
"""oneDNN's products, as the compiler of PyTorch uses them."""

ROWS, KEYS = 2048, 2048
"""Queries (of all heads that share a key head) and keys of a product: 8 MiB of weights."""

SAMPLED = 16
"""Keys whose scores tell where a row's greatest ones are."""

BELOW = 30.0
"""How far below 0 the greatest of the sampled scores is put, in nats."""

HIGHEST, LOWEST = math.exp(-7.0), math.exp(-68.0)
"""Sums of a row's weights between which they are exact to bfloat16's rounding: above, the logistic
function bends; below, keys of less than a hundred-millionth of the sum are lost, as exp(-87) is the
least weight there is."""

FEWEST = 32
"""Rows and keys below which PyTorch's kernel is as fast."""

PARTIAL = 8
"""Sums of which a row's is added up in float32, as each of them is rounded to bfloat16."""


@cache
def pays() -> bool:
    """Whether this processor's products of bfloat16 are faster than PyTorch's attention kernel."""
    return (
        torch.backends.mkldnn.is_available()
        and torch.cpu._is_avx512_bf16_supported()
        and not torch.cpu._is_amx_tile_supported()
    )


def suits(query: Tensor, key: Tensor) -> bool:
    """Whether attention of ``(batch, heads, tokens, width)`` to ``(batch, key_heads, keys, width)``
    is computed here.
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

    ``seen`` is ``(keys, tokens)``, 1 where a token sees a key and else 0, in bfloat16; ``blind``
    are those that see none, ``(tokens,)`` bool, whose results mean nothing. Returns the result,
    ``(1, heads, tokens, width)``, and its log-sum-exp in float32, ``(1, heads, tokens)``; None
    where scores lie too far apart to be computed so.
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
            those = slice(start, min(tokens, start + at_once))
            rows = _scaled(grouped[head, :, those].reshape(-1, width), scale, exact=exact)
            offsets = -(rows @ sampled).amax(1) - BELOW
            total, weight = _weighed(rows, keys, values, offsets, None if seen is None else seen[:, those])
            good = (weight > LOWEST) & (weight < HIGHEST)
            if blind is not None:
                good |= blind[those].repeat(groups)
            if not bool(good.all()):
                return None
            torch.div(total.view(groups, -1, width), weight.view(groups, -1, 1), out=out[head, :, those])
            lse[head, :, those] = (weight.log_() - offsets).view(groups, -1)
    return out.view(query.shape), lse.view(1, heads, tokens)


def _scaled(rows: Tensor, scale: float, *, exact: bool) -> Tensor:
    """``rows`` times ``scale``; where that is no power of two, what rounding takes stands behind,
    for the same keys again: ``(rows, 2 * width)``.
    """
    if exact:
        return rows * scale
    wide = rows.float().mul_(scale)
    rounded = wide.to(rows.dtype)
    return torch.cat([rounded, wide.sub_(rounded).to(rows.dtype)], 1)


def _weighed(rows: Tensor, keys: Tensor, values: Tensor, offsets: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums of weighed values, ``(rows, width)``, and of weights, ``(rows,)``, both in float32.

    ``seen`` is ``(keys, tokens)`` for rows that are the tokens of several heads.
    """
    packed = mkldnn._reorder_linear_weight(rows, min(len(keys), KEYS))
    total, weight = torch.zeros(len(rows), values.shape[1]), torch.zeros(len(rows))
    for start in range(0, len(keys), KEYS):
        those = slice(start, start + KEYS)
        weights = mkldnn._linear_pointwise(keys[those], packed, offsets, "sigmoid", [], "")
        if seen is not None:
            weights.view(len(weights), -1, seen.shape[1]).mul_(seen[those].unsqueeze(1))
        total += weights.t() @ values[those]
        weight += _summed(weights)
    return total, weight


def _summed(weights: Tensor) -> Tensor:
    """Sums over the first dimension in float32, nearly: a sum of a 16-bit tensor is rounded."""
    even = len(weights) // PARTIAL * PARTIAL
    partial = weights[:even].view(PARTIAL, -1, weights.shape[1]).sum(1)
    total = partial.sum(0, dtype=torch.float32)
    if even < len(weights):
        total += weights[even:].sum(0, dtype=torch.float32)
    return total
