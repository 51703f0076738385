"""Attention by oneDNN's products of bfloat16 is softmax attention, or is left to another kernel."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from icl_bench.backends.transformers import attention_kernels, attention_products
from icl_bench.backends.transformers.attention_kernels import Mask, PartialAttention, plain_attention
from icl_bench.backends.transformers.attention_products import KEYS, ROWS

pytestmark = pytest.mark.skipif(
    not attention_products.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no products of bfloat16 here"
)


def drawn(heads: int, key_heads: int, tokens: int, keys: int, width: int, *, spread: float = 1.0) -> list[Tensor]:
    """A query, keys and values; scores have about this standard deviation."""
    random = torch.Generator().manual_seed(heads + 7 * tokens + 11 * keys)
    sizes = (heads, tokens), (key_heads, keys), (key_heads, keys)
    query, key, value = (torch.randn(1, *size, width, generator=random) for size in sizes)
    return [x.bfloat16() for x in (query * spread, key, value)]


def expected(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None) -> PartialAttention:
    """Plain softmax attention in float32, key heads repeated."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.float().repeat_interleave(groups, 1) for x in (key, value))
    bias = None
    if seen is not None:
        bias = torch.zeros(seen.shape).masked_fill_(~seen, -math.inf)[None, None]
    return plain_attention(query.float(), key, value, query.shape[-1] ** -0.5, bias, causal=False)


def close(found: PartialAttention, wanted: PartialAttention, rows: Tensor | slice = slice(None)) -> None:
    """Within what roundings of weights, of products and of the result come to."""
    size = wanted.out[:, :, rows].square().mean().sqrt()
    apart = (found.out.float() - wanted.out)[:, :, rows]
    assert apart.square().mean().sqrt() < 0.006 * size
    assert (apart.abs() <= 0.03 * size + 0.015 * wanted.out[:, :, rows].abs()).all()
    assert (found.lse - wanted.lse)[:, :, rows].abs().max() < 0.015


@given(
    heads=st.sampled_from([(1, 1), (4, 1), (6, 2), (3, 3)]),
    tokens=st.integers(1, 70),
    keys=st.integers(1, 130),
    width=st.sampled_from([16, 64, 80, 256]),
    spread=st.sampled_from([0.1, 1.0, 4.0]),
)
@settings(max_examples=60)
def test_it_is_softmax_attention(heads, tokens, keys, width, spread):
    query, key, value = drawn(*heads, tokens, keys, width, spread=spread)
    found = attention_products.attend(query, key, value, width**-0.5)
    assert found is not None
    close(PartialAttention(*found), expected(query, key, value, None))


@pytest.mark.parametrize("tokens", [5, ROWS // 4 + 3])
@pytest.mark.parametrize("keys", [KEYS - 1, KEYS, 2 * KEYS + 37])
def test_rows_and_keys_of_several_products_are_put_together(tokens, keys):
    query, key, value = drawn(4, 1, tokens, keys, 64, spread=2.0)
    found = attention_products.attend(query, key, value, 0.125)
    assert found is not None
    close(PartialAttention(*found), expected(query, key, value, None))


@given(
    heads=st.sampled_from([(4, 1), (4, 2), (2, 2)]),
    tokens=st.integers(2, 60),
    keys=st.integers(2, 90),
    share=st.sampled_from([0.05, 0.5, 0.95]),
)
@settings(max_examples=40)
def test_a_mask_hides_keys(heads, tokens, keys, share):
    query, key, value = drawn(*heads, tokens, keys, 32)
    seen = torch.rand(tokens, keys, generator=torch.Generator().manual_seed(keys)) < share
    seen[0], seen[-1] = True, False  # one sees all, one nothing
    mask = Mask(seen[None], heads[0] // heads[1], torch.bfloat16)
    assert mask.blind is not None
    found = attention_products.attend(query, key, value, 32**-0.5, mask.factors, mask.blind[0, 0])
    assert found is not None
    close(PartialAttention(*found), expected(query, key, value, seen), seen.any(1))


def test_a_mask_of_several_products_hides_what_it_hides():
    tokens, keys = ROWS // 4 + 60, KEYS + 90
    query, key, value = drawn(4, 1, tokens, keys, 32)
    seen = torch.rand(tokens, keys, generator=torch.Generator().manual_seed(3)) < 0.3
    found = attention_products.attend(query, key, value, 32**-0.5, Mask(seen[None], 4, torch.bfloat16).factors)
    assert found is not None
    close(PartialAttention(*found), expected(query, key, value, seen))


def test_sums_of_weights_are_not_rounded_to_bfloat16():
    query, key, value = drawn(4, 1, 100, KEYS - 3, 64)
    found = attention_products.attend(query, key, value, 0.125)
    assert found is not None
    apart = found[1] - expected(query, key, value, None).lse
    assert apart.square().mean().sqrt() < 0.0007  # rounding a sum takes 0.0011 and more


@pytest.mark.parametrize("spread", [1.0, 4.0])
@pytest.mark.parametrize("width", [64, 128, 256])
def test_it_is_hardly_less_exact_than_the_kernel_whose_place_it_takes(width, spread):
    query, key, value = drawn(4, 1, 200, 900, width, spread=spread)
    wanted = expected(query, key, value, None).out

    def error(out: Tensor) -> float:
        return float((out.float() - wanted).square().mean().sqrt())

    found = attention_products.attend(query, key, value, width**-0.5)
    assert found is not None
    wide = (x.expand(-1, 4, -1, -1) for x in (key, value))
    other = torch.nn.functional.scaled_dot_product_attention(query, *wide)
    assert error(found[0]) < 2 * error(other)


@pytest.fixture
def chosen(monkeypatch):
    """Attention as on a processor where products are faster."""
    monkeypatch.setattr(attention_products, "pays", lambda: True)
    asked: list[bool] = []
    attend = attention_products.attend

    def noted(*arguments):
        found = attend(*arguments)
        asked.append(found is not None)
        return found

    monkeypatch.setattr(attention_products, "attend", noted)
    return asked


@pytest.mark.parametrize("where", [1, 78, 99])
def test_a_score_far_above_those_that_were_sampled_is_left_to_the_other_kernel(chosen, where):
    query, key, value = drawn(2, 1, 40, 100, 64)
    query[..., 0], key[..., 0] = 20.0, 0.0
    key[:, :, where, 0] = 30.0  # times 20 and 0.125: 75 nats above all others
    part = attention_kernels.attend(query, key, value, 0.125)
    assert chosen == [False]
    close(part, expected(query, key, value, None))
    torch.testing.assert_close(part.out.float(), value[:, :, [where]].expand(1, 2, 40, 64).float())


def test_a_row_that_sees_only_keys_far_below_the_sampled_ones_is_left_to_the_other_kernel(chosen):
    query, key, value = drawn(2, 1, 40, 100, 64)
    query[..., 0], key[..., 0] = 20.0, 20.0
    key[:, :, 50:, 0] = 0.0
    seen = torch.ones(40, 100, dtype=torch.bool)
    seen[3, :50] = False
    part = attention_kernels.attend(query, key, value, 0.125, mask=Mask(seen[None], 2, torch.bfloat16))
    assert chosen == [False]
    close(part, expected(query, key, value, seen))


def test_what_is_no_number_stays_none(chosen):
    query, key, value = drawn(2, 1, 40, 100, 64)
    query[0, 1, 7, 3] = math.nan
    part = attention_kernels.attend(query, key, value, 0.125)
    assert chosen == [False]
    assert part.out[0, 1, 7].isnan().all()
    assert part.out.isnan().any(-1).sum() == 1


@pytest.mark.parametrize("tokens", [40, 300])
def test_causal_attention_is_computed_so(chosen, tokens):
    query, key, value = drawn(4, 2, tokens, tokens, 64)
    part = attention_kernels.attend(query, key, value, 0.125, causal=True)
    assert chosen == [True]
    close(part, expected(query, key, value, torch.ones(tokens, tokens, dtype=torch.bool).tril()))


def test_long_causal_attention_whose_half_is_seen_is_left_to_the_other_kernel(chosen):
    query, key, value = drawn(1, 1, KEYS + 1, KEYS + 1, 16)
    part = attention_kernels.attend(query, key, value, 0.25, causal=True)
    assert chosen == []
    torch.testing.assert_close(part.out[:, :, 0], value[:, :, 0])


def test_tokens_that_see_nothing_weigh_nothing(chosen):
    query, key, value = drawn(4, 2, 40, 60, 64)
    seen = torch.ones(1, 40, 60, dtype=torch.bool)
    seen[:, 11] = False
    part = attention_kernels.attend(query, key, value, 0.125, mask=Mask(seen, 2, torch.bfloat16))
    assert chosen == [True]
    assert (part.out[:, :, 11] == 0).all()
    assert (part.lse[:, :, 11] == -math.inf).all()
    assert part.out.isfinite().all()


@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, v: (q.float(), k.float(), v.float()),
        lambda q, k, v: tuple(x.expand(2, -1, -1, -1) for x in (q, k, v)),
        lambda q, k, v: (q[:, :, :7], k, v),
        lambda q, k, v: (q, k[:, :, :31], v[:, :, :31]),
    ],
    ids=["another format", "a batch", "few queries", "few keys"],
)
def test_all_else_is_left_to_the_other_kernel(chosen, change):
    query, key, value = change(*drawn(4, 1, 40, 60, 64))
    attention_kernels.attend(query, key, value, 0.125)
    assert chosen == []


def test_processors_with_amx_and_those_without_bfloat16_keep_the_other_kernel(monkeypatch):
    for bfloat16, amx, pays in ((True, False, True), (True, True, False), (False, False, False)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda b=bfloat16: b)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda a=amx: a)
        attention_products.pays.cache_clear()
        assert attention_products.pays() is pays
    monkeypatch.undo()
    attention_products.pays.cache_clear()
