"""Attention in parts: the shared prefix once for all queries, and each query's own tokens.

Softmax attention over a set of keys can be computed over parts of it and merged exactly, from each part's log-sum-exp
(Dao et al. 2022, FlashAttention, section 3.1; Juravsky et al. 2024, Hydragen, section 3). So the keys of the
demonstrations are neither copied for each query nor concatenated with the query's own, and their part does not need a
mask.

Query heads that share a key head are folded into one longer query, so grouped keys and values are
not repeated either.

On CUDA, a part is computed by the first kernel that is available: flash (half precision; only causal masks and
windows), the memory-efficient one (any mask, as a bias), or plain products. On Hopper, whole chunks of a prefix read
earlier keys by cuDNN's kernel (:func:`attend_past`). On a CPU, PyTorch's kernel is used, unless oneDNN's products are
faster (``attention_products``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from icl_bench.backends.transformers import attention_products
from icl_bench.models.memory import out_of_memory

aten: Any = torch.ops.aten
"""Kernels that return the log-sum-exp, unlike the public ``scaled_dot_product_attention``."""

Fused = Literal["flash", "efficient", "cudnn"]

HALF = (torch.float16, torch.bfloat16)

WIDEST_FLASH = 256
"""Widest head of the flash kernel."""

HOPPER = 9
"""The generation of GPUs on which cuDNN's attention is much faster than flash. On others it is slower or
equal (https://github.com/huggingface/transformers/pull/48163)."""

WORTH_A_PLAN = 5e11
"""Minimum operations of a call for cuDNN. It builds a plan for each new shape, which takes some 40 ms, and saves half
of flash's time: 0.7 ms for this number of operations on an H100, in each layer.
"""

PLAN_TOKENS, PLAN_KEYS = 1024, 4096
"""cuDNN calls are padded to multiples of this number of tokens, and to this number of keys times a power of two, so
that there are few shapes.
"""

ALIGNED = 16
"""Rows of a bias are padded to a multiple of this number of keys: the efficient kernel reads 16
bytes at once, and PyTorch pads to the same number."""


class PartialAttention(NamedTuple):
    """Attention over some of the keys.

    ``out`` is ``(batch, heads, tokens, head_dim)``, ``lse`` ``(batch, heads, tokens)`` in float32:
    the log of the sum of the exponentiated scores, -inf for tokens that see no key of the part.
    """

    out: Tensor
    lse: Tensor


@dataclass(frozen=True)
class Mask:
    """Which token sees which key, prepared for a kernel once and used in many layers.

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
        """``(keys, tokens)`` for a batch of one: 1 where seen, 0 elsewhere."""
        return self.seen[0].t().to(self.dtype, memory_format=torch.contiguous_format)

    @cached_property
    def blind(self) -> Tensor | None:
        """``(batch or 1, 1, tokens)`` bool, true for tokens that see no key; None without any."""
        blind = ~self.seen.any(-1).unsqueeze(1)
        return blind if bool(blind.any()) else None


@lru_cache(maxsize=4)
def causal_mask(tokens: int, dtype: torch.dtype) -> Mask:
    """The mask on the CPU in which each token sees itself and the tokens before it."""
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
) -> PartialAttention:
    """Attention of ``query`` to ``key``/``value``, with its log-sum-exp.

    ``query`` is ``(batch, heads, tokens, head_dim)``; ``key`` and ``value`` are
    ``(batch, key_heads, keys, head_dim)`` with ``heads`` a multiple of ``key_heads``. ``causal``
    needs equal numbers of tokens and keys, and no mask. With a ``window`` (if :func:`has_windows`),
    a token sees this number of keys, including itself. Then there may be more keys than tokens: the
    last token is at the last key.
    """
    batch, heads, tokens, _ = query.shape
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
        part = _kernel(_folded(query, key_heads), key, value, scale, None if mask is None else mask.bias, causal=False)
        part = PartialAttention(part.out.reshape(query.shape), part.lse.reshape(batch, heads, tokens))
    if mask is None or mask.blind is None:
        return part
    # rows that see no key have weight 0 (kernels differ in what they return for them)
    return PartialAttention(
        part.out.masked_fill(mask.blind.unsqueeze(-1), 0.0), part.lse.masked_fill(mask.blind, -math.inf)
    )


def attend_past(query: Tensor, key: Tensor, value: Tensor, scale: float) -> list[PartialAttention]:
    """Attention of new tokens to all earlier keys, in parts that remain to be merged.

    Shapes as in :func:`attend`, for a batch of one.
    """
    _, heads, tokens, width = query.shape
    keys, start = key.shape[2], 0
    parts: list[PartialAttention] = []
    worth = 4.0 * heads * tokens * keys * width >= WORTH_A_PLAN
    if worth and keys >= PLAN_KEYS and on_cuda(query) and runs("cudnn", query.device, query.dtype, width):
        folded = _folded(_padded(query), key.shape[1])
        size = PLAN_KEYS << (keys // PLAN_KEYS).bit_length() - 1
        while size >= PLAN_KEYS:
            if start + size <= keys:
                # [0][None]: strides that do not depend on the buffer's capacity
                keys_of, values_of = (x[0, :, start : start + size][None] for x in (key, value))
                part = _cudnn(folded, keys_of, values_of, scale, None, causal=False)
                out, lse = (x.reshape(1, heads, -1, *x.shape[3:])[:, :, :tokens] for x in part)
                parts.append(PartialAttention(out, lse))
                start += size
            size //= 2
    if start < keys:
        parts.append(attend(query, key[:, :, start:], value[:, :, start:], scale))
    return parts


def _padded(query: Tensor) -> Tensor:
    """A query with zeros for tokens up to the next multiple of :data:`PLAN_TOKENS`."""
    more = -query.shape[2] % PLAN_TOKENS
    return torch.nn.functional.pad(query, (0, 0, 0, more)) if more else query


def _folded(query: Tensor, key_heads: int) -> Tensor:
    """Query heads that share a key head, as one longer query."""
    batch, heads, tokens, width = query.shape
    return query.reshape(batch, key_heads, heads // key_heads * tokens, width)


def merge(parts: Sequence[PartialAttention]) -> Tensor:
    """Merge parts over disjoint keys: ``(batch, heads, tokens, head_dim)``."""
    if len(parts) == 1:
        return parts[0].out
    lse = torch.stack([part.lse for part in parts])
    weights = torch.softmax(lse, dim=0).unsqueeze(-1)
    total = sum((w * part.out for w, part in zip(weights, parts, strict=True)), torch.tensor(0.0))
    return total.to(parts[0].out.dtype)


class TokenParts:
    """Attention of tokens that see different parts, merged one part at a time.

    Stored by token, ``(tokens, heads, head_dim)`` and ``(tokens, heads)`` in float32, so that the
    state of some tokens is read and written in whole rows.
    """

    def __init__(self, query: Tensor, parts: Sequence[PartialAttention], scale: float) -> None:
        """Start with parts that all tokens of ``query``, ``(1, heads, tokens, head_dim)``, see. In
        the first part, every token must see a key.
        """
        lse = torch.stack([part.lse for part in parts]).logsumexp(0)
        weighed = (torch.exp(part.lse - lse).unsqueeze(-1) * part.out for part in parts)
        self._query, self._scale, self._dtype = by_token(query), scale, parts[0].out.dtype
        self._out, self._lse = by_token(sum(weighed, torch.tensor(0.0))), by_token(lse)

    def add(self, key: Tensor, value: Tensor, tokens: Tensor) -> None:
        """Add keys, ``(1, key_heads, keys, head_dim)``, that some of the tokens see."""
        query = self._query.index_select(0, tokens)
        out, new = attend(query.transpose(0, 1)[None], key, value, self._scale)
        new, before = by_token(new), self._lse.index_select(0, tokens)
        lse = torch.logaddexp(before, new)
        held = self._out.index_select(0, tokens) * torch.exp(before - lse).unsqueeze(-1)
        held += torch.exp(new - lse).unsqueeze(-1) * out[0].transpose(0, 1)
        self._out.index_copy_(0, tokens, held)
        self._lse.index_copy_(0, tokens, lse)

    def result(self) -> Tensor:
        """The merged attention of all tokens: ``(1, heads, tokens, head_dim)``."""
        return self._out.transpose(0, 1)[None].to(self._dtype)


def by_token(x: Tensor) -> Tensor:
    """``(1, heads, tokens, ...)`` as ``(tokens, heads, ...)``, copied."""
    return x[0].transpose(0, 1).contiguous()


def _repeated(x: Tensor, groups: int) -> Tensor:
    """Key heads repeated for their query heads; a view if there is one key head."""
    batch, heads, keys, width = x.shape
    wide = x.unsqueeze(2).expand(batch, heads, groups, keys, width)
    return wide.reshape(batch, heads * groups, keys, width)


def _by_products(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Mask | None, *, causal: bool
) -> PartialAttention | None:
    """Attention by oneDNN's products, or None if they do not support it."""
    if causal:
        if query.shape[2] > attention_products.KEYS:
            return None
        mask = causal_mask(query.shape[2], query.dtype)
    factors, blind = (mask.factors, mask.blind) if mask is not None else (None, None)
    blind = None if blind is None else blind[0, 0]
    result = attention_products.attend(query, key, value, scale, factors, blind)
    return None if result is None else PartialAttention(*result)


def _kernel(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, *, causal: bool
) -> PartialAttention:
    """Attention by the device's fused kernel if it returns a log-sum-exp, else by matrix products."""
    if on_cuda(query):
        kernel = plain_attention
        if runs("efficient", query.device, query.dtype, query.shape[-1]):
            kernel = _efficient
        if bias is None and runs("flash", query.device, query.dtype, query.shape[-1]):
            kernel = _flash
        return kernel(query, key, value, scale, bias, causal=causal)
    if query.device.type == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=bias, scale=scale
        )
        return PartialAttention(out, lse)
    return plain_attention(query, key, value, scale, bias, causal=causal)


def on_cuda(x: Tensor) -> bool:
    """Whether a tensor is on a GPU."""
    return x.device.type == "cuda"


def has_windows(query: Tensor) -> bool:
    """Whether :func:`attend` supports a window for this query."""
    return on_cuda(query) and runs("flash", query.device, query.dtype, query.shape[-1])


@cache
def runs(kernel: Fused, device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether a kernel computes heads of this width correctly on this device.

    It is compared with plain products on a few tokens, because this depends on the GPU (flash, and
    bfloat16 in the efficient kernel, need Ampere or newer) and on the build of PyTorch.
    """
    if width % 8 or (kernel == "flash" and (dtype not in HALF or width > WIDEST_FLASH)):
        return False
    if kernel == "cudnn" and (dtype not in HALF or torch.cuda.get_device_capability(device)[0] != HOPPER):
        return False
    random = torch.Generator().manual_seed(0)
    drawn = (torch.randn(1, 2, ALIGNED, width, generator=random) for _ in range(3))
    query, key, value = (x.to(device, dtype) for x in drawn)
    bias = None
    if kernel == "efficient":
        visible = torch.rand(1, ALIGNED, ALIGNED, generator=random) < 0.5
        visible[:, :, 0] = True
        bias = Mask(visible.to(device), 1, dtype).bias
    arguments = (query, key, value, width**-0.5, bias)
    try:
        result = KERNELS[kernel](*arguments, causal=bias is None)
        expected = plain_attention(*arguments, causal=bias is None)
        difference = max(float((a - b).abs().max()) for a, b in zip(result, expected, strict=True))
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        return False
    return difference <= (0.05 if dtype in HALF else 1e-3)


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    bias: Tensor | None,  # noqa: ARG001 - not supported
    *,
    causal: bool,
    window: int | None = None,
) -> PartialAttention:
    """FlashAttention (Dao 2023). With a window, the last token is at the last key."""
    if window is None:
        out, lse = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, False, scale=scale)[:2]
        return PartialAttention(out, lse)
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
    return PartialAttention(out.transpose(1, 2), lse)


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, *, causal: bool
) -> PartialAttention:
    """The memory-efficient kernel (Rabe and Staats 2021), on all GPUs, for heads of any width.

    ``bias`` has the query's dtype, and rows padded to :data:`ALIGNED`. The kernel pads its
    log-sum-exp to a multiple of 32 tokens.
    """
    batch, heads, tokens, _ = query.shape
    if bias is not None:
        bias = bias.expand(batch, heads, tokens, key.shape[2])
    out, lse = aten._scaled_dot_product_efficient_attention(query, key, value, bias, True, 0.0, causal, scale=scale)[:2]
    return PartialAttention(out, lse[:, :, :tokens])


def _cudnn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    bias: Tensor | None,  # noqa: ARG001 - not supported
    *,
    causal: bool,
) -> PartialAttention:
    """Attention by cuDNN's kernel, which returns its log-sum-exp as ``(batch, heads, tokens, 1)``."""
    out, lse = aten._scaled_dot_product_cudnn_attention(query, key, value, None, True, 0.0, causal, scale=scale)[:2]
    return PartialAttention(out, lse.reshape(query.shape[:3]))


KERNELS: dict[Fused, Callable[..., PartialAttention]] = {"flash": _flash, "efficient": _efficient, "cudnn": _cudnn}


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, *, causal: bool
) -> PartialAttention:
    """Attention by matrix products in float32: the reference for every kernel."""
    scores = query.float() @ key.float().transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + bias
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return PartialAttention((weights @ value.float()).to(query.dtype), lse)
