"""Attention in parts, put together, equals plain softmax attention over all keys."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from icl_bench.backends.transformers.attention_kernels import Mask, attend, merge, plain_attention

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]
shapes = pytest.mark.parametrize(("heads", "key_heads"), [(1, 1), (4, 4), (4, 2), (6, 1)])


def random_tensors(*sizes: tuple[int, ...], device: str = "cpu") -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(size, generator=generator).to(device) for size in sizes]


def softmax_attention(query: Tensor, key: Tensor, value: Tensor, scale: float, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Written as in a textbook, in float64, one query head at a time; blind rows give 0, -inf."""
    batch, heads, tokens, _ = query.shape
    groups = heads // key.shape[1]
    out, lse = torch.zeros_like(query).double(), torch.full((batch, heads, tokens), -math.inf)
    for b in range(batch):
        for h in range(heads):
            for t in range(tokens):
                keys = seen[min(b, len(seen) - 1), t].nonzero().flatten()
                if len(keys):
                    scores = key[b, h // groups, keys].double() @ query[b, h, t].double() * scale
                    lse[b, h, t] = torch.logsumexp(scores, 0)
                    out[b, h, t] = torch.softmax(scores, 0) @ value[b, h // groups, keys].double()
    return out.float(), lse


@pytest.mark.parametrize("device", DEVICES)
@shapes
def test_attention_without_a_mask_is_softmax_attention(heads, key_heads, device):
    query, key, value = random_tensors((2, heads, 5, 8), (2, key_heads, 7, 8), (2, key_heads, 7, 8), device=device)
    part = attend(query, key, value, 0.3)
    seen = torch.ones(1, 5, 7, dtype=torch.bool)
    out, lse = softmax_attention(query.cpu(), key.cpu(), value.cpu(), 0.3, seen)
    torch.testing.assert_close(part.out.cpu(), out, **CLOSE)
    torch.testing.assert_close(part.lse.cpu(), lse, **CLOSE)


@pytest.mark.parametrize("device", DEVICES)
@shapes
def test_causal_attention_sees_no_later_key(heads, key_heads, device):
    query, key, value = random_tensors((2, heads, 9, 8), (2, key_heads, 9, 8), (2, key_heads, 9, 8), device=device)
    part = attend(query, key, value, 0.3, causal=True)
    seen = torch.ones(9, 9, dtype=torch.bool).tril()[None]
    out, lse = softmax_attention(query.cpu(), key.cpu(), value.cpu(), 0.3, seen)
    torch.testing.assert_close(part.out.cpu(), out, **CLOSE)
    torch.testing.assert_close(part.lse.cpu(), lse, **CLOSE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("masks", [1, 3], ids=["one mask for all", "a mask each"])
@shapes
def test_a_mask_hides_keys_and_rows_that_see_none_weigh_nothing(heads, key_heads, masks, device):
    query, key, value = random_tensors((3, heads, 5, 8), (3, key_heads, 7, 8), (3, key_heads, 7, 8), device=device)
    seen = torch.rand(masks, 5, 7, generator=torch.Generator().manual_seed(1)) < 0.4
    seen[:, 2] = False
    mask = Mask(seen.to(device), heads // key_heads, torch.float32)
    part = attend(query, key, value, 0.3, mask=mask)
    out, lse = softmax_attention(query.cpu(), key.cpu(), value.cpu(), 0.3, seen)
    assert (part.lse[:, :, 2] == -math.inf).all()
    torch.testing.assert_close(part.out.cpu(), out, **CLOSE)
    torch.testing.assert_close(part.lse.cpu(), lse, **CLOSE)


def test_a_mask_under_which_all_see_something_has_no_blind_rows():
    assert Mask(torch.ones(1, 2, 3, dtype=torch.bool), 2, torch.float32).blind is None


@pytest.mark.parametrize("device", DEVICES)
@shapes
@pytest.mark.parametrize("cuts", [(4,), (1, 4, 9), ()])
def test_parts_over_disjoint_keys_merge_to_attention_over_all(heads, key_heads, cuts, device):
    query, key, value = random_tensors((2, heads, 5, 8), (2, key_heads, 11, 8), (2, key_heads, 11, 8), device=device)
    seen = torch.rand(2, 5, 11, generator=torch.Generator().manual_seed(2)) < 0.3
    seen[:, :, 10] = True  # each sees something, but not in every part
    seen[:, 3, :10] = False
    parts = []
    for start, end in zip((0, *cuts), (*cuts, 11), strict=True):
        mask = Mask(seen[:, :, start:end].to(device), heads // key_heads, torch.float32)
        parts.append(attend(query, key[:, :, start:end], value[:, :, start:end], 0.3, mask=mask))
    out, _ = softmax_attention(query.cpu(), key.cpu(), value.cpu(), 0.3, seen)
    torch.testing.assert_close(merge(parts).cpu(), out, **CLOSE)


def test_scores_far_apart_merge_without_overflow():
    query, key, value = random_tensors((1, 1, 3, 8), (1, 1, 6, 8), (1, 1, 6, 8))
    parts = [
        attend(query, key[:, :, :3] * 200, value[:, :, :3], 1.0),
        attend(query, key[:, :, 3:] * 200, value[:, :, 3:], 1.0),
    ]
    seen = torch.ones(1, 3, 6, dtype=torch.bool)
    out, _ = softmax_attention(query, key * 200, value, 1.0, seen)
    torch.testing.assert_close(merge(parts), out, atol=1e-4, rtol=1e-4)


@shapes
def test_the_fused_kernel_and_plain_products_agree(heads, key_heads):
    query, key, value = random_tensors((2, heads, 9, 8), (2, heads, 9, 8), (2, heads, 9, 8))
    fused = attend(query, key, value, 0.3, causal=True)
    products = plain_attention(query, key, value, 0.3, None, causal=True)
    torch.testing.assert_close(fused.out, products.out, **CLOSE)
    torch.testing.assert_close(fused.lse, products.lse, **CLOSE)


def test_half_precision_is_kept_and_its_log_sum_exp_is_single_precision():
    query, key, value = random_tensors((1, 4, 3, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    parts = [attend(*(x.bfloat16() for x in (query, key, value)), 0.3)] * 2
    assert parts[0].lse.dtype == torch.float32
    merged = merge(parts)
    assert merged.dtype == torch.bfloat16
    expected, _ = softmax_attention(query, key, value, 0.3, torch.ones(1, 3, 6, dtype=torch.bool))
    torch.testing.assert_close(merged.float(), expected, atol=0.03, rtol=0.03)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("width", [64, 128, 256])
def test_the_cuda_kernel_gives_the_same_log_sum_exp_as_plain_products(causal, width):
    tensors = random_tensors((1, 4, 65, width), (1, 4, 65, width), (1, 4, 65, width), device="cuda")
    query, key, value = (x.bfloat16() for x in tensors)
    fused = attend(query, key, value, width**-0.5, causal=causal)
    products = plain_attention(query, key, value, width**-0.5, None, causal=causal)
    torch.testing.assert_close(fused.lse, products.lse, atol=0.02, rtol=0.02)
    torch.testing.assert_close(fused.out, products.out, atol=0.02, rtol=0.02)
