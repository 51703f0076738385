"""Attention in parts: a shared prefix once for all, each query's own tokens apart.

Softmax attention over a set of keys can be computed over its parts and put together exactly, given
each part's log-sum-exp (Dao et al. 2022, FlashAttention, section 3.1; Juravsky et al. 2024,
Hydragen, section 3). So the keys of the demonstrations are neither copied per query nor
concatenated with the query's own, and their part needs no mask.

Query heads that share a key head are folded into one longer query, so that grouped keys and values
are never repeated either.

On CUDA a part is computed by the first kernel that runs there: flash (half precision, no mask but
causal ones and windows), the memory-efficient one (any mask, as a bias), plain products. On a CPU
it is PyTorch's kernel, but where oneDNN's products are faster (``attention_products``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from icl_bench.backends.transformers import attention_products
from icl_bench.backends.transformers.device_memory import out_of_memory

aten: Any = torch.ops.aten
"""Kernels with their log-sum-exp, which the public ``scaled_dot_product_attention`` keeps to
itself."""

Fused = Literal["flash", "efficient"]

HALF = (torch.float16, torch.bfloat16)

WIDEST_FLASH = 256
"""Widest head of the flash kernel."""

ALIGNED = 16
"""Keys to which rows of a bias are padded: the efficient kernel reads 16 bytes at once, and
PyTorch itself pads to so many."""


class Part(NamedTuple):
    """Attention over some of the keys.

    ``out`` is ``(batch, heads, tokens, head_dim)``, ``lse`` ``(batch, heads, tokens)`` in float32:
    the log of the sum of the exponentiated scores, -inf where no key of the part is seen.
    """

    out: Tensor
    lse: Tensor


@dataclass(frozen=True)
class Mask:
    """Who sees whom, made ready for a kernel once and used in many layers.

    ``seen`` is ``(batch or 1, tokens, keys)`` bool, for ``groups`` query heads per key head.
    """

    seen: Tensor
    groups: int
    dtype: torch.dtype

    @cached_property
    def bias(self) -> Tensor:
        """``(batch or 1, 1, groups * tokens, keys)``: 0 where seen, -inf elsewhere."""
        rows, tokens, keys = self.seen.shape
        room = -(-keys // ALIGNED) * ALIGNED if on_cuda(self.seen) else keys
        bias = torch.zeros(rows, tokens, room, dtype=self.dtype, device=self.seen.device)
        bias[..., :keys].masked_fill_(~self.seen, -math.inf)
        return bias.repeat(1, self.groups, 1)[..., :keys].unsqueeze(1)

    @cached_property
    def factors(self) -> Tensor:
        """Of a batch of one ``(keys, tokens)``: 1 where seen, 0 elsewhere."""
        return self.seen[0].t().to(self.dtype, memory_format=torch.contiguous_format)

    @cached_property
    def blind(self) -> Tensor | None:
        """``(batch or 1, 1, tokens)`` bool, true for tokens that see no key; None without any."""
        blind = ~self.seen.any(-1).unsqueeze(1)
        return blind if bool(blind.any()) else None


@lru_cache(maxsize=4)
def causal_mask(tokens: int, dtype: torch.dtype) -> Mask:
    """Each token sees itself and those before it; on the CPU."""
    return Mask(torch.ones(1, tokens, tokens, dtype=torch.bool).tril(), 1, dtype)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    *,
    mask: Mask | None = None,
    causal: bool = False,
    window: int | None = None,
) -> Part:
    """Attention of ``query`` to ``key``/``value``, with its log-sum-exp.

    ``query`` is ``(batch, heads, tokens, head_dim)``; ``key`` and ``value`` are
    ``(batch, key_heads, keys, head_dim)`` with ``heads`` a multiple of ``key_heads``; ``causal``
    is for equal numbers of tokens and keys, without a mask. With a ``window``, where
    :func:`has_windows` allows it, a token sees so many keys, itself included, and there may be
    more keys than tokens: the last token stands at the last key.
    """
    batch, heads, tokens, width = query.shape
    key_heads, groups = key.shape[1], heads // key.shape[1]
    part = None
    if window is None and attention_products.suits(query, key):
        part = _by_products(query, key, value, scale, mask, causal=causal)
    if causal and part is None:
        key, value = (_repeated(x, groups) for x in (key, value))
        if window is not None:
            return _flash(query, key, value, scale, None, causal=True, window=window)
        return _kernel(query, key, value, scale, None, causal=True)
    if part is None:
        folded = query.reshape(batch, key_heads, groups * tokens, width)
        part = _kernel(folded, key, value, scale, None if mask is None else mask.bias, causal=False)
        part = Part(part.out.reshape(query.shape), part.lse.reshape(batch, heads, tokens))
    if mask is None or mask.blind is None:
        return part
    # rows that see no key have weight 0 (kernels differ in what they return for them)
    return Part(part.out.masked_fill(mask.blind.unsqueeze(-1), 0.0), part.lse.masked_fill(mask.blind, -math.inf))


def merge(parts: Sequence[Part]) -> Tensor:
    """Put parts over disjoint keys together: ``(batch, heads, tokens, head_dim)``."""
    if len(parts) == 1:
        return parts[0].out
    lse = torch.stack([part.lse for part in parts])
    weights = torch.softmax(lse, dim=0).unsqueeze(-1)
    total = sum((w * part.out for w, part in zip(weights, parts, strict=True)), torch.tensor(0.0))
    return total.to(parts[0].out.dtype)


class TokenParts:
    """Attention of tokens of which each sees parts of its own, put together as they come.

    Held by token, ``(tokens, heads, head_dim)`` and ``(tokens, heads)`` in float32, so that what
    some tokens see is found and put back in whole rows.
    """

    def __init__(self, query: Tensor, parts: Sequence[Part], scale: float) -> None:
        """Begin with parts that all tokens of ``query``, ``(1, heads, tokens, head_dim)``, have;
        the first has no token that sees no key.
        """
        lse = torch.stack([part.lse for part in parts]).logsumexp(0)
        weighed = (torch.exp(part.lse - lse).unsqueeze(-1) * part.out for part in parts)
        self._query, self._scale, self._dtype = by_token(query), scale, parts[0].out.dtype
        self._out, self._lse = by_token(sum(weighed, torch.tensor(0.0))), by_token(lse)

    def add(self, key: Tensor, value: Tensor, tokens: Tensor) -> None:
        """Further keys, ``(1, key_heads, keys, head_dim)``, which some of the tokens see."""
        asked = self._query.index_select(0, tokens)
        out, new = attend(asked.transpose(0, 1)[None], key, value, self._scale)
        new, before = by_token(new), self._lse.index_select(0, tokens)
        lse = torch.logaddexp(before, new)
        held = self._out.index_select(0, tokens) * torch.exp(before - lse).unsqueeze(-1)
        held += torch.exp(new - lse).unsqueeze(-1) * out[0].transpose(0, 1)
        self._out.index_copy_(0, tokens, held)
        self._lse.index_copy_(0, tokens, lse)

    def result(self) -> Tensor:
        """What all tokens see: ``(1, heads, tokens, head_dim)``."""
        return self._out.transpose(0, 1)[None].to(self._dtype)


def by_token(x: Tensor) -> Tensor:
    """``(1, heads, tokens, ...)`` as ``(tokens, heads, ...)``, copied."""
    return x[0].transpose(0, 1).contiguous()


def _repeated(x: Tensor, groups: int) -> Tensor:
    """Key heads repeated for their query heads; a view where there is one key head."""
    batch, heads, keys, width = x.shape
    wide = x.unsqueeze(2).expand(batch, heads, groups, keys, width)
    return wide.reshape(batch, heads * groups, keys, width)


def _by_products(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Mask | None, *, causal: bool
) -> Part | None:
    """Attention by oneDNN's products, where it can be computed so."""
    if causal:
        if query.shape[2] > attention_products.KEYS:
            return None
        mask = causal_mask(query.shape[2], query.dtype)
    factors, blind = (mask.factors, mask.blind) if mask is not None else (None, None)
    blind = None if blind is None else blind[0, 0]
    found = attention_products.attend(query, key, value, scale, factors, blind)
    return None if found is None else Part(*found)


def _kernel(query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, *, causal: bool) -> Part:
    """The device's fused kernel where it returns a log-sum-exp, else plain matrix products."""
    if on_cuda(query):
        chosen = plain
        if runs("efficient", query.device, query.dtype, query.shape[-1]):
            chosen = _efficient
        if bias is None and runs("flash", query.device, query.dtype, query.shape[-1]):
            chosen = _flash
        return chosen(query, key, value, scale, bias, causal=causal)
    if query.device.type == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=bias, scale=scale
        )
        return Part(out, lse)
    return plain(query, key, value, scale, bias, causal=causal)


def on_cuda(x: Tensor) -> bool:
    """Whether a tensor lives on a GPU."""
    return x.device.type == "cuda"


def has_windows(query: Tensor) -> bool:
    """Whether :func:`attend` takes a window for such a query."""
    return on_cuda(query) and runs("flash", query.device, query.dtype, query.shape[-1])


@cache
def runs(kernel: Fused, device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether a kernel computes heads of this width on this device, and as plain products do.

    It is tried on a few tokens: that depends on the card (flash, and bfloat16 in the efficient
    kernel, need Ampere or newer) and on how PyTorch was built.
    """
    if width % 8 or (kernel == "flash" and (dtype not in HALF or width > WIDEST_FLASH)):
        return False
    random = torch.Generator().manual_seed(0)
    drawn = (torch.randn(1, 2, ALIGNED, width, generator=random) for _ in range(3))
    query, key, value = (x.to(device, dtype) for x in drawn)
    bias = None
    if kernel == "efficient":
        seen = torch.rand(1, ALIGNED, ALIGNED, generator=random) < 0.5
        seen[:, :, 0] = True
        bias = Mask(seen.to(device), 1, dtype).bias
    asked = (query, key, value, width**-0.5, bias)
    try:
        found = (_flash if kernel == "flash" else _efficient)(*asked, causal=bias is None)
        expected = plain(*asked, causal=bias is None)
        apart = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        return False
    return apart <= (0.05 if dtype in HALF else 1e-3)


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    bias: Tensor | None,  # noqa: ARG001 - it takes none
    *,
    causal: bool,
    window: int | None = None,
) -> Part:
    """FlashAttention (Dao 2023); with a window, the last token stands at the last key."""
    if window is None:
        out, lse = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, False, scale=scale)[:2]
        return Part(out, lse)
    tokens, keys = query.shape[2], key.shape[2]
    out, lse = aten._flash_attention_forward(
        *(x.transpose(1, 2) for x in (query, key, value)),
        None,
        None,
        tokens,
        keys,
        0.0,
        causal,
        False,
        scale=scale,
        window_size_left=window - 1,
        window_size_right=0,
    )[:2]
    return Part(out.transpose(1, 2), lse)


def _efficient(query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, *, causal: bool) -> Part:
    """The memory-efficient kernel (Rabe and Staats 2021), on all cards; heads may be of any width.

    ``bias`` is of the query's dtype, its rows :data:`ALIGNED`. The kernel pads its log-sum-exp to
    a multiple of 32 tokens.
    """
    batch, heads, tokens, _ = query.shape
    if bias is not None:
        bias = bias.expand(batch, heads, tokens, key.shape[2])
    out, lse = aten._scaled_dot_product_efficient_attention(query, key, value, bias, True, 0.0, causal, scale=scale)[:2]
    return Part(out, lse[:, :, :tokens])


def plain(query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, *, causal: bool) -> Part:
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
