"""What a training step computes under a pattern is what a dense pass under its mask does, with gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import tiny_config
from torch import Tensor

from icl_bench.models.attention_patterns import FULL, BlockLayout, Pattern, ReceptiveSpan
from icl_bench.models.config import layer_windows
from icl_bench.training import sparse_attention
from icl_bench.training.sparse_attention import Sparsity, use_sparse_attention


def dense(
    span: ReceptiveSpan, layout: BlockLayout | None, query: Tensor, key: Tensor, value: Tensor, scale: float
) -> Tensor:
    """Token by token, as the patterns are described."""
    groups, tokens = query.shape[1] // key.shape[1], query.shape[2]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    chunks = list(range(0, tokens - span.chunk + 1, span.chunk)) if span.chunk else []
    keys, values = (
        torch.cat([x, *(x[:, :, begin : begin + (span.chunk or 0)].mean(2, keepdim=True) for begin in chunks)], 2)
        for x in (key, value)
    )
    bias = torch.full((tokens, tokens + len(chunks)), -math.inf)
    for at in range(tokens):
        first = 0
        if span.window is not None:
            first = max(at - span.window + 1, 0)
            if span.chunk:
                first = first // span.chunk * span.chunk
                bias[at, tokens : tokens + first // span.chunk] = math.log(span.chunk)
        seen = [
            of
            for of in range(first, at + 1)
            if layout is None or at >= len(layout.starts) or of < layout.sink_end or of >= layout.starts[at]
        ]
        bias[at, seen] = 0.0
    return (query @ keys.transpose(-1, -2) * scale + bias).softmax(-1) @ values


def held_to_dense(pattern: Pattern, tokens: int, ends: Sequence[int], window: int | None = None) -> None:
    torch.manual_seed(tokens)
    shapes = [(2, 4, tokens, 8), (2, 2, tokens, 8), (2, 2, tokens, 8)]
    mine = [torch.randn(shape, requires_grad=True) for shape in shapes]
    theirs = [x.detach().clone().requires_grad_() for x in mine]
    sparsity = Sparsity.of(pattern, [window, None, None], ends)
    for layer in range(3):
        got = sparsity.attend(layer, *mine, 0.3)
        expected = dense(sparsity.spans[layer], sparsity.layout, *theirs, 0.3)
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
        weights = torch.randn(got.shape)
        (got * weights).sum().backward()
        (expected * weights).sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("tokens", [1, 5, 128, 129, 300])
@pytest.mark.parametrize(
    "pattern", ["full", "grouped:2,7", "grouped:2,200", "approx:10,4", "approx:130,16", "approx:1,1"]
)
def test_windows_and_chunks_are_those_of_a_dense_pass(pattern: str, tokens: int):
    held_to_dense(Pattern.parse(pattern), tokens, ())


@pytest.mark.parametrize("tokens", [60, 300])
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize(
    "pattern", ["block:1,sink=1,local=0", "block:2", "block:3,sink=0,local=1", "block:1,sink=2,local=2"]
)
def test_blocks_of_demonstrations_are_those_of_a_dense_pass(pattern: str, tokens: int, window: int | None):
    """Behind the demonstrations stands the query, which sees all."""
    ends = list(range(6, tokens - 10, 6))
    held_to_dense(Pattern.parse(pattern), tokens, ends, window)


@given(
    st.integers(1, 200),
    st.one_of(
        st.builds("grouped:{},{}".format, st.integers(1, 3), st.integers(1, 150)),
        st.builds("approx:{},{}".format, st.integers(1, 150), st.integers(1, 40)),
        st.builds("block:{},sink={},local={}".format, st.integers(1, 4), st.integers(0, 3), st.integers(0, 3)),
    ),
    st.lists(st.integers(1, 30), min_size=1, max_size=12),
)
@settings(max_examples=40)
def test_any_pattern_is_that_of_a_dense_pass(tokens: int, pattern: str, lengths: list[int]):
    ends = [end for end in torch.tensor(lengths).cumsum(0).tolist() if end <= tokens]
    read = Pattern.parse(pattern)
    held_to_dense(read, tokens, ends if read.blocks else ())


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "gemma3_text"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_model_under_full_attention_is_the_model_as_it_is(family: str, checkpointing: bool):
    """Its loss, and the gradients of all weights."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    config = tiny_config(family, 60)
    plain = AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()
    sparse = AutoModelForCausalLM.from_config(copy.deepcopy(config)).train()
    sparse.load_state_dict(plain.state_dict())
    use_sparse_attention(sparse)
    if checkpointing:
        sparse.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.randint(5, 60, (2, 40))
    sparsity = Sparsity.of(FULL, layer_windows(config))
    for network, more in ((plain, {}), (sparse, {"sparsity": sparsity})):
        network(ids, labels=ids, use_cache=False, **more).loss.backward()
    for (name, one), other in zip(plain.named_parameters(), sparse.parameters(), strict=True):
        assert one.grad is not None, name
        torch.testing.assert_close(other.grad, one.grad, atol=1e-5, rtol=1e-3, msg=name)


@torch.no_grad()
@pytest.mark.parametrize(("pattern", "ends"), [("grouped:2,9", ()), ("block:2,sink=1,local=1", range(6, 40, 6))])
def test_flex_attention_sees_the_same_in_sequences_of_any_length(
    pattern: str, ends: Sequence[int], monkeypatch: pytest.MonkeyPatch
):
    """What CUDA computes, here without compiling: a CPU has its values, not its gradients."""
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(sparse_attention, "_flex_attention", lambda: flex_attention)
    sparsity = Sparsity.of(Pattern.parse(pattern), [None, None], ends)
    for tokens in (60, 44, 60):
        query, key, value = (torch.randn(1, heads, tokens, 16) for heads in (4, 2, 2))
        found = sparsity._flex(sparsity.spans[1], query, key, value, 0.3)
        expected = dense(sparsity.spans[1], sparsity.layout, query, key, value, 0.3)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
