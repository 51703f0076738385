"""The emulated card refuses and returns what a card would, as far as PyTorch's own code says."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from support.emulated_cuda import Card, CardTensor

aten = torch.ops.aten


@pytest.fixture
def card() -> Iterator[Card]:
    emulated = Card()
    with emulated.present():
        yield emulated


def half(card: Card, *shape: int) -> torch.Tensor:
    return card.upload(torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16())


def test_what_is_made_on_the_card_is_on_it_and_nothing_else_is(card: Card) -> None:
    made = [
        torch.zeros(2, device="cuda"),
        torch.tensor([1, 2], device=torch.device("cuda")),
        torch.as_tensor([1, 2], device="cuda:0"),
        torch.ones(2).cuda(),
        torch.ones(2).to("cuda"),
        torch.nn.Linear(2, 2).to("cuda").weight,
    ]
    made += [made[0].new_zeros(3), torch.zeros_like(made[0]), made[0] + 1, made[0][:1]]
    assert {str(x.device) for x in made} == {"cuda:0"}
    assert all(isinstance(x, CardTensor) for x in made)
    assert torch.zeros(2).device.type == made[0].cpu().device.type == "cpu"
    assert torch.zeros(2, device="meta").is_meta
    assert made[1].cpu().tolist() == [1, 2]


def test_the_card_goes_when_it_is_not_present_any_more() -> None:
    with Card().present():
        held = torch.ones(2, device="cuda")
    assert held.sum().item() == 2
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            torch.ones(2, device="cuda")


def test_tensors_of_two_devices_do_not_meet_but_single_numbers_and_indices_do(card: Card) -> None:
    there, here = torch.ones(3, device="cuda"), torch.ones(3)
    for mixed in (
        lambda: there + here,
        lambda: torch.cat([there, here]),
        lambda: there @ here,
        lambda: there.add_(here),
        lambda: here.add_(there[0]),
        lambda: torch.stack([there[0], here[0]]),
        lambda: there.gather(0, torch.zeros(1, dtype=torch.long)),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            mixed()
    with pytest.raises(RuntimeError, match="indices should be either on cpu"):
        here[torch.zeros(1, dtype=torch.long, device="cuda")]
    assert (there + torch.tensor(1.0)).tolist() == [2, 2, 2]
    assert there[torch.tensor([0, 1])].tolist() == there[[0, 1]].tolist() == [1, 1]
    there[torch.tensor([0])] = 5.0
    there[1:] = here[1:] * 7  # a copy between devices
    assert there.tolist() == [5, 7, 7]


def test_views_share_their_values_and_parameters_are_trained(card: Card) -> None:
    there = torch.zeros(2, 3, device="cuda")
    there[1, 1:].add_(2)
    there.view(6)[0] = 4
    assert there.tolist() == [[4, 0, 0], [0, 2, 2]]
    layer = torch.nn.Linear(3, 1).to("cuda")
    layer(there).sum().backward()
    assert layer.weight.grad.tolist() == [[4, 2, 2]]


def test_the_host_must_fetch_values_and_its_waits_are_counted(card: Card) -> None:
    there = torch.ones(3, device="cuda")
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        there.numpy()
    card.forget()
    there.sum()
    there[1:], there * 2
    assert card.downloads == 0
    for wait in (
        there.cpu,
        there.tolist,
        there.sum().item,
        lambda: float(there[0]),
        lambda: bool(there[0] > 0),
        lambda: there[there > 0],
        there.nonzero,
        lambda: torch.unique(there),
        lambda: torch.repeat_interleave(there, there.long()),
    ):
        card.forget()
        wait()
        assert card.downloads == 1
    torch.cuda.synchronize()
    assert card.synchronisations == 1
    card.forget()
    there[there > 0] = 3.0  # a fill: no place is counted
    torch.tensor([1], device="cuda")
    assert (card.downloads, card.uploads) == (0, 1)


def test_bytes_are_counted_until_the_last_view_goes_and_are_limited(card: Card) -> None:
    before = torch.cuda.memory_allocated()
    there = torch.zeros(1000, device="cuda")
    view = there[10:]
    assert torch.cuda.memory_allocated() == before + 4000
    del there
    assert torch.cuda.memory_allocated() == before + 4000
    del view
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= before + 4000
    card.capacity = before + 3000
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        torch.zeros(1000, device="cuda")
    card.capacity, card.refuse = 2**30, lambda name, _: name == "mul"
    there = torch.ones(3, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        there * 2
    assert torch.cuda.memory_allocated() == before + 12


def test_whole_numbers_are_not_multiplied_as_matrices(card: Card) -> None:
    there = torch.ones(2, 2, dtype=torch.long, device="cuda")
    with pytest.raises(RuntimeError, match="not implemented for"):
        there @ there


KERNELS = {
    "flash": lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v),
    "flash, causal": lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True),
    "efficient": lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, True),
    "cudnn": lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True),
    "flash, low": lambda q, k, v: aten._flash_attention_forward(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, None, 9, 9, 0.0, False, False
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_fused_attention_returns_the_shapes_and_strides_that_pytorch_declares(card: Card, name: str) -> None:
    """Against PyTorch's own declarations (``torch/_meta_registrations.py``)."""
    tensors = [half(card, 2, 3, 9, 16) for _ in range(3)]
    found = KERNELS[name](*tensors)
    wanted = KERNELS[name](*(torch.empty_like(x.on_host, device="meta") for x in tensors))
    for mine, theirs in zip(found[:2], wanted[:2], strict=True):
        assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)


@pytest.mark.parametrize("name", KERNELS)
def test_fused_attention_is_softmax_attention(card: Card, name: str) -> None:
    q, k, v = (half(card, 2, 3, 9, 16) for _ in range(3))
    out, lse = KERNELS[name](q, k, v)[:2]
    out = out.transpose(1, 2) if name == "flash, low" else out
    lse = lse[..., 0] if name == "cudnn" else lse[:, :, :9]
    q, k, v = (x.cpu().float() for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) / 4
    if "causal" in name:
        scores = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf)
    torch.testing.assert_close(lse.cpu(), scores.logsumexp(-1), atol=1e-5, rtol=1e-5)
    wanted = scores.softmax(-1) @ v
    torch.testing.assert_close(out.cpu().float(), wanted, atol=2e-2, rtol=2e-2)


def test_flash_attention_has_windows_and_texts_of_different_lengths(card: Card) -> None:
    q = half(card, 1, 7, 2, 8)
    starts = torch.tensor([0, 3, 7], dtype=torch.int32, device="cuda")
    options = {"window_size_left": 1, "window_size_right": 0}
    packed, sums, *_ = aten._flash_attention_forward(
        q[0], q[0], q[0], starts, starts, 4, 4, 0.0, False, False, **options
    )
    assert sums.shape == (2, 7)
    for start, end in ((0, 3), (3, 7)):
        part = q[:, start:end]
        alone, lse, *_ = aten._flash_attention_forward(part, part, part, None, None, 4, 4, 0.0, False, False, **options)
        assert torch.equal(packed[start:end].cpu(), alone[0].cpu())
        assert torch.equal(sums[:, start:end].cpu(), lse[0].cpu())
    assert alone[0, 0].tolist() == q[0, 3].tolist()  # sees itself alone


def test_kernels_refuse_what_a_cards_kernels_refuse(card: Card) -> None:
    flash, efficient = KERNELS["flash"], aten._scaled_dot_product_efficient_attention
    single = torch.ones(1, 2, 3, 8, device="cuda")
    for tensor, reason in (
        (single, "only support fp16 and bf16"),
        (half(card, 1, 2, 3, 12), "multiple of 8"),
        (half(card, 1, 2, 3, 264), "at most 256"),
    ):
        with pytest.raises(RuntimeError, match=reason):
            flash(tensor, tensor, tensor)
    narrow = half(card, 1, 2, 3, 8)
    with pytest.raises(NotImplementedError, match="'CUDA' backend"):
        aten._scaled_dot_product_flash_attention_for_cpu(single, single, single)
    for bias, reason in (
        (torch.zeros(1, 2, 3, 3, device="cuda"), "dtype"),
        (torch.zeros(1, 1, 3, 3, device="cuda").bfloat16(), "bias must be"),
        (torch.zeros(1, 2, 3, 3, device="cuda").bfloat16(), "aligned"),
    ):
        with pytest.raises(RuntimeError, match=reason):
            efficient(narrow, narrow, narrow, bias, True)
    padded = torch.zeros(1, 2, 3, 8, device="cuda").bfloat16()[..., :3]
    assert efficient(narrow, narrow, narrow, padded, True)[1].shape == (1, 2, 32)
    card.capability = (7, 5)
    with pytest.raises(RuntimeError, match="Ampere GPUs or newer"):
        flash(narrow, narrow, narrow)
    with pytest.raises(RuntimeError, match="no kernel found"):
        efficient(narrow, narrow, narrow, None, True)
    assert efficient(*[narrow.half()] * 3, None, True)[0].dtype == torch.float16
