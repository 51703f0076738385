"""The kernels that the backend takes, against attention written out in float32."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from icl_bench.backends.transformers.attention_kernels import attend

from .findings import Finding, Options, at_most

HEADS = ((32, 32, 128), (28, 4, 128), (8, 4, 256))
"""Query heads, key heads, width."""
LENGTHS = ((1, 20_000), (25, 20_000), (1024, 9_000), (4096, 4096))
SMALL = ((1, 70), (9, 40), (33, 33))
OUT = {"bfloat16": 2e-2, "float16": 3e-3, "float32": 1e-4}
LSE = 1e-3


def kernels(options: Options) -> Iterator[Finding]:
    """Largest differences for each number format and shape."""
    kinds = ("float32",) if not options.on_card else ("bfloat16", "float16")
    for dtype in kinds:
        for heads, key_heads, width in HEADS:
            out = lse = 0.0
            for tokens, keys in SMALL if options.small else LENGTHS:
                for causal in (False, True) if tokens == keys else (False,):
                    for strided in (False, True):
                        query = _tensor(options, dtype, heads, tokens, width, strided)
                        pair = [_tensor(options, dtype, key_heads, keys, width, strided) for _ in range(2)]
                        found = _differences(query, *pair, causal=causal)
                        out, lse = max(out, found[0]), max(lse, found[1])
            name = f"{dtype}, heads {heads}/{key_heads}, width {width}"
            yield at_most("kernels", f"{name}: values", out, OUT[dtype])
            yield at_most("kernels", f"{name}: log-sum-exp", lse, LSE)
    yield from _cudnn(options)


def _cudnn(options: Options) -> Iterator[Finding]:
    """Whether cuDNN's attention would pay: its seconds beside flash's.

    It makes a plan for each number of keys, and a prefix has another one at every chunk.
    """
    flash, other = SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION
    if not options.on_card:
        flash = other = SDPBackend.MATH
    tokens, keys = (16, 200) if options.small else (1024, 32_768)
    query = _tensor(options, "bfloat16", 32, tokens, 128, False)
    key, value = (_tensor(options, "bfloat16", 32, keys, 128, False) for _ in range(2))

    def over(count: int) -> Tensor:
        return scaled_dot_product_attention(query, key[:, :, :count], value[:, :, :count])

    known, new = [], []
    try:
        for kind in (flash, other):
            with sdpa_kernel(kind):
                known.append(options.seconds(lambda: over(keys)))
                counts = iter(range(keys - 24, 0, -24))
                new.append(options.seconds(lambda: over(next(counts))))  # noqa: B023
    except RuntimeError as error:  # before Ampere there is neither
        said = str(error).splitlines()[0][:200]
        yield Finding("kernels", "cuDNN's attention beside flash's", note=f"left out: {said}")
        return
    for name, (one, two) in (("known", known), ("new", new)):
        what = f"cuDNN's seconds of flash's, {name} number of keys"
        yield Finding("kernels", what, two / one, timed=True)


def _tensor(options: Options, dtype: str, heads: int, tokens: int, width: int, strided: bool) -> Tensor:
    """``(1, heads, tokens, width)``; strided as projections and a half-filled cache leave it."""
    room = (1, 2 * tokens, heads, width) if strided else (1, heads, tokens, width)
    made = torch.randn(room, device=options.device).to(getattr(torch, dtype))
    return made.transpose(1, 2)[:, :, :tokens] if strided else made


def _differences(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[float, float]:
    """Largest differences of values and of log-sum-exps, a head at a time."""
    scale = query.shape[-1] ** -0.5
    part = attend(query, key, value, scale, causal=causal)
    groups, out, lse = query.shape[1] // key.shape[1], 0.0, 0.0
    for head in range(query.shape[1]):
        keys, values = key[0, head // groups].float(), value[0, head // groups].float()
        scores = query[0, head].float() @ keys.T * scale
        if causal:
            future = torch.ones_like(scores, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        wanted = scores.softmax(-1) @ values
        out = max(out, float((part.out[0, head].float() - wanted).abs().max()))
        lse = max(lse, float((part.lse[0, head] - scores.logsumexp(-1)).abs().max()))
    return out, lse
