"""Computes the last layer only for tokens whose hidden states are read.

Later tokens need only the keys and values of a decoder's last layer. So nothing else of it is
computed for a prefix, and for a query only its last token. The last layer is one of three full
layers of Gemma 3 270M, so this saves up to a third of the time of a long prefix.

The library's layer computes queries, keys and values and calls the attention function. It is first
called with a step that stores keys and values and stops the layer there, and then again, completely,
for the tokens that are read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from icl_bench.backends.transformers.attention_steps import Extend, Step


class _KeysTakenError(Exception):
    """Stops a layer after its keys and values are stored."""


class _KeysAlone:
    """A step that stores a layer's keys and values and stops the layer."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def layer(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        del query, scale
        self._step.store(layer, key, value, window)
        raise _KeysTakenError


def shorten(layer: nn.Module) -> Callable[[], None]:
    """Make a decoder's last layer compute only the tokens that a step reads.

    The layer then returns ``(1, tokens that are read, hidden)``. Returns a function that undoes this.
    """
    full_forward = layer.forward

    def forward(hidden_states: Tensor, *more: Any, **named: Any) -> Any:
        step: Step | None = named.get("step")
        if step is None or step.whole or more:
            return full_forward(hidden_states, *more, **named)
        with suppress(_KeysTakenError):
            full_forward(hidden_states, **{**named, "step": _KeysAlone(step)})
        if isinstance(step, Extend):
            return hidden_states[:, :0]
        ends, tokens = step.ends, hidden_states.shape[1]
        selected = {name: _of_tokens(value, ends, tokens) for name, value in named.items()}
        return full_forward(hidden_states[:, ends], **{**selected, "step": step.at_ends()})

    def restore() -> None:
        layer.forward = full_forward

    layer.forward = forward
    return restore


def _of_tokens(value: Any, places: Tensor | None, tokens: int) -> Any:
    """Select some tokens of an argument that has an entry for each token: ``(1, tokens, ...)``."""
    if isinstance(value, tuple):
        return tuple(_of_tokens(part, places, tokens) for part in value)
    if isinstance(value, Tensor) and value.ndim > 1 and value.shape[:2] == (1, tokens):
        return value[:, places]
    return value
