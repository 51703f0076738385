"""Computes a model of a 16-bit format in float32 for a few tokens, without a second copy of its weights.

Rounding in 16 bits changes logits by as much as some errors of attention do. So a model is compared
with its own forward pass in float32. Weights are converted exactly, one block of layers at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

COLUMNS = 4096
"""The number of vocabulary tokens whose logits are computed. A float32 copy of the whole head would be large."""

_NARROW = (torch.bfloat16, torch.float16)


@contextmanager
def in_float32(network: Any) -> Iterator[None]:
    """A context in which a causal language model computes in float32, with logits of the first tokens only.

    A layer's weights are in float32 while it computes. All changes are undone afterwards.
    """
    undo: list[Callable[[], object]] = []
    for module in _blocks(network.get_decoder()):
        if isinstance(module, nn.Embedding):
            undo.append(module.register_forward_hook(lambda _m, _a, out: out.float()).remove)
            continue
        widened: list[tuple[Tensor, Tensor]] = []

        def widen(one: nn.Module, _: Any, widened: list[tuple[Tensor, Tensor]] = widened) -> None:
            for tensor in (*one.parameters(), *one.buffers()):
                if tensor.dtype in _NARROW:
                    widened.append((tensor, tensor.data))
                    tensor.data = tensor.data.float()

        def restore(*_: Any, widened: list[tuple[Tensor, Tensor]] = widened) -> None:
            while widened:
                tensor, data = widened.pop()
                tensor.data = data

        undo.append(module.register_forward_pre_hook(widen).remove)
        undo.append(module.register_forward_hook(restore, always_call=True).remove)
    head = network.get_output_embeddings()
    full_forward, head.forward = head.forward, lambda hidden: _first_logits(head, hidden)
    undo.append(lambda: setattr(head, "forward", full_forward))
    try:
        yield
    finally:
        for step in undo:
            step()


def _blocks(core: nn.Module) -> Iterator[nn.Module]:
    """The parts of a decoder that are converted separately."""
    for child in core.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield child


def _first_logits(head: Any, hidden: Tensor) -> Tensor:
    weight, bias = head.weight[:COLUMNS].float(), getattr(head, "bias", None)
    return functional.linear(hidden.float(), weight, None if bias is None else bias[:COLUMNS].float())
