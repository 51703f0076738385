"""Which kernels compute attention on CUDA, and how they are asked, without a card.

Tensors stay on the CPU and are taken for CUDA's. The kernels are stand-ins that refuse what CUDA's
refuse (PyTorch's aten/src/ATen/native/transformers/cuda/attention.cu).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import packed_logits, plain_logits, plain_model
from torch import Tensor

from icl_bench.backends.transformers import attention_kernels, attention_steps
from icl_bench.backends.transformers.attention_kernels import Mask, attend, has_windows, plain_attention, runs
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.backends.transformers.loaded_model import LoadedModel
from icl_bench.models.attention_patterns import Pattern
from icl_bench.prompts.encoding import PromptSet

HALF, FLOAT = torch.bfloat16, torch.float32


@dataclass
class Card:
    """Stands in for ``torch.ops.aten`` on a card, and notes what it is asked for."""

    ampere: bool = True
    calls: list[str] = field(default_factory=list)
    largest_bias: int = 0

    def _scaled_dot_product_flash_attention(
        self, query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, debug: bool, *, scale: float
    ) -> tuple[Tensor, ...]:
        assert query.shape[2] == key.shape[2] or not causal
        return self._flash(query, key, value, scale, causal, None)

    def _flash_attention_forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        seq_q: None,
        seq_k: None,
        tokens: int,
        keys: int,
        dropout: float,
        causal: bool,
        debug: bool,
        *,
        scale: float,
        window_size_left: int,
        window_size_right: int,
    ) -> tuple[Tensor, ...]:
        assert (query.shape[1], key.shape[1]) == (tokens, keys)
        assert window_size_right == 0
        rows = (x.transpose(1, 2) for x in (query, key, value))
        out, lse, *_ = self._flash(*rows, scale, causal, window_size_left + 1)
        return out.transpose(1, 2), lse

    def _flash(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, window: int | None
    ) -> tuple[Tensor, ...]:
        if not self.ampere:
            raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
        assert query.dtype in attention_kernels.HALF
        assert query.shape[-1] <= 256
        assert query.shape[1] % key.shape[1] == 0
        self.calls.append("flash")
        return _computed(query, key, value, scale, None, causal, window)

    def _scaled_dot_product_efficient_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        lse: bool,
        dropout: float,
        causal: bool,
        *,
        scale: float,
    ) -> tuple[Tensor, ...]:
        if query.dtype == HALF and not self.ampere:
            raise RuntimeError("cutlassF: no kernel found to launch!")
        assert query.shape[:2] == key.shape[:2]
        assert lse
        if bias is not None:
            assert bias.shape == (*query.shape[:3], key.shape[2])
            assert bias.dtype == query.dtype
            assert bias.stride(-1) == 1
            assert all(bias.stride(i) % 8 == 0 for i in range(3) if bias.shape[i] > 1)
            self.largest_bias = max(self.largest_bias, bias.untyped_storage().nbytes())
        assert not (causal and query.shape[2] != key.shape[2])
        self.calls.append("efficient")
        out, found = _computed(query, key, value, scale, bias, causal, None)
        padded = -(-found.shape[2] // 32) * 32
        return out, torch.nn.functional.pad(found, (0, padded - found.shape[2]), value=math.nan)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not for CUDA")


def _computed(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, causal: bool, window: int | None
) -> tuple[Tensor, Tensor]:
    """Plain products; with more keys than tokens the last token stands at the last key."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    tokens, keys = query.shape[2], key.shape[2]
    if causal or window is not None:
        place = torch.arange(tokens)[:, None] + keys - tokens
        ahead = place - torch.arange(keys)[None]
        hidden = (ahead < 0) | (ahead >= (window or keys))
        bias = torch.zeros(tokens, keys).masked_fill(hidden, -math.inf)
    return tuple(plain_attention(query, key, value, scale, bias, causal=False))  # type: ignore[return-value]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    card = Card()
    for module in (attention_kernels, attention_steps):
        monkeypatch.setattr(module, "on_cuda", lambda _: True)
    monkeypatch.setattr(attention_kernels, "aten", card)
    runs.cache_clear()
    yield card
    runs.cache_clear()


def drawn(*sizes: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


@pytest.mark.parametrize(
    ("dtype", "width", "ampere", "masked", "kernel"),
    [
        (HALF, 128, True, False, ["flash"]),
        (HALF, 256, True, False, ["flash"]),
        (HALF, 128, True, True, ["efficient"]),
        (HALF, 264, True, False, ["efficient"]),
        (HALF, 512, True, True, ["efficient"]),
        (torch.float16, 128, False, False, ["efficient"]),
        (torch.float16, 128, False, True, ["efficient"]),
        (HALF, 128, False, False, []),
        (HALF, 20, True, False, []),
        (FLOAT, 64, True, False, ["efficient"]),
        (FLOAT, 64, True, True, ["efficient"]),
        (FLOAT, 20, True, True, []),
    ],
)
def test_the_first_kernel_that_the_card_has_is_taken(
    dtype: torch.dtype, width: int, ampere: bool, masked: bool, kernel: list[str], card: Card
):
    """No name: plain products."""
    card.ampere = ampere
    query, key, value = drawn((2, 4, 33, width), (2, 2, 41, width), (2, 2, 41, width), dtype=dtype)
    seen = torch.rand(1, 33, 41, generator=torch.Generator().manual_seed(1)) < 0.4
    seen[:, 2] = False
    mask = Mask(seen, 2, dtype) if masked else None
    for kernel_of in ("flash", "efficient"):
        runs(kernel_of, query.device, dtype, width)
    card.calls.clear()
    part = attend(query, key, value, 0.1, mask=mask)
    assert card.calls == kernel
    every = (x.repeat_interleave(2, 1) for x in (key, value))
    bias = torch.zeros(seen.shape).masked_fill(~seen, -math.inf)[:, None] if masked else None
    out, lse = plain_attention(query, *every, 0.1, bias, causal=False)
    out, lse = out.nan_to_num(), lse.nan_to_num(neginf=-math.inf)
    assert (part.out.shape, part.lse.shape) == (query.shape, query.shape[:3])
    torch.testing.assert_close(part.out, out)
    torch.testing.assert_close(part.lse, lse)


def test_a_kernel_that_computes_something_else_is_not_taken(card: Card, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Card, "_flash", lambda _, query, *__: (query, query[..., 0].float()))
    (query,) = drawn((1, 1, 3, 64), dtype=HALF)
    assert not has_windows(query)
    assert runs("efficient", query.device, HALF, 64)


def test_lack_of_memory_is_not_taken_for_a_missing_kernel(card: Card, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Card, "_flash", full)
    with pytest.raises(torch.OutOfMemoryError):
        runs("flash", torch.device("cpu"), HALF, 64)
    monkeypatch.undo()


@pytest.mark.parametrize(("tokens", "keys", "window"), [(5, 5, 3), (5, 11, 7), (1, 7, 7), (9, 9, 99)])
def test_a_window_ends_at_the_last_key(tokens: int, keys: int, window: int, card: Card):
    query, key, value = drawn((1, 4, tokens, 16), (1, 2, keys, 16), (1, 2, keys, 16), dtype=HALF)
    part = attend(query, key, value, 0.3, causal=True, window=window)
    assert set(card.calls) == {"flash"}
    token = torch.arange(tokens)[:, None] + keys - tokens
    place = torch.arange(keys)[None]
    seen = (place <= token) & (place > token - window)
    bias = torch.zeros(seen.shape).masked_fill(~seen, -math.inf)
    every = (x.repeat_interleave(2, 1) for x in (key, value))
    out, lse = plain_attention(query, *every, 0.3, bias, causal=False)
    torch.testing.assert_close(part.out, out)
    torch.testing.assert_close(part.lse, lse)


# -- whole models -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(folders: dict[str, Path], tokenizer: Any) -> Callable[[str], tuple[LoadedModel, Any]]:
    """A loaded model whose attention is ours, and the library's own."""

    def made(kind: str) -> tuple[LoadedModel, Any]:
        model = LoadedModel.load(folders[kind], tokenizer, None, "float32", "cpu")
        model.take_over()
        return model, plain_model(folders[kind])

    return made


def prompts() -> PromptSet:
    ids = torch.randint(0, 400, (80,), generator=torch.Generator().manual_seed(2)).tolist()
    return PromptSet(tuple(ids[:40]), (tuple(ids[40:43]), tuple(ids[43:60]), tuple(ids[60:61])))


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "gemma3_text"])
def test_a_model_computed_by_the_cards_kernels_has_the_logits_of_its_own_forward_pass(
    kind: str, flash: bool, card: Card, models: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """With flash in float32 here, for the sake of the comparison."""
    model, own = models(kind)
    if flash:
        monkeypatch.setattr(attention_kernels, "HALF", (FLOAT,))
    backend = TransformersBackend(model, chunk_tokens=16)
    got = packed_logits(backend, prompts())
    wanted = torch.cat([plain_logits(own, prompts().ids(i), 1) for i in range(3)])
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
    assert ("flash" in card.calls) == flash


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_queries_are_read_without_a_mask_but_for_the_end_of_a_window(
    kind: str, card: Card, models: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(attention_kernels, "HALF", (FLOAT,))
    model, _ = models(kind)
    runs("efficient", torch.device("cpu"), FLOAT, 8)
    card.calls.clear()
    packed_logits(TransformersBackend(model, chunk_tokens=16), prompts())
    masked = card.calls.count("efficient")
    layers = model.config.num_hidden_layers
    assert masked == (0 if kind == "llama" else layers)  # what a query sees of a sliding tail


@pytest.mark.parametrize("pattern", ["approx:40,4", "block:5", "grouped:2,30"])
def test_patterns_computed_by_the_cards_kernels_are_those_of_the_cpu(
    pattern: str, card: Card, models: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    model, _ = models("llama")
    asked = PromptSet(*(prompts().prefix, prompts().suffixes), ends=(tuple(range(4, 41, 4)),))
    got = packed_logits(TransformersBackend(model, chunk_tokens=16), asked, Pattern.parse(pattern))
    monkeypatch.undo()
    wanted = packed_logits(TransformersBackend(model, chunk_tokens=16), asked, Pattern.parse(pattern))
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
