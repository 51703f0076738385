"""The last layer, computed for those tokens alone whose hidden states are read.

All that later tokens read of a decoder's last layer are its keys and values. So of a prefix nothing
else of it is computed, and of a query what its last token sees: with a third of Gemma 3 270M's full
layers in the last one, that is up to a third of what a long prefix takes to read.

The library's layer makes queries, keys and values and hands them to the attention function. It is
called with a step that takes keys and values and ends it there, and then again, whole, for the
tokens that are read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from icl_bench.backends.transformers.attention_steps import Extend, Step


class _KeysTakenError(Exception):
    """A layer has handed over its keys and values, and is asked for no more."""


class _KeysAlone:
    """A step that takes a layer's keys and values and ends it."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def layer(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        self._step.store(layer, query, key, value, scale, window)
        raise _KeysTakenError


def shorten(layer: nn.Module) -> Callable[[], None]:
    """Have a decoder's last layer compute what a step asks for.

    It then returns ``(1, tokens that are read, hidden)``. Returns what takes that back.
    """
    whole = layer.forward

    def forward(hidden_states: Tensor, *more: Any, **named: Any) -> Any:
        step: Step | None = named.get("step")
        if step is None or step.whole or more:
            return whole(hidden_states, *more, **named)
        with suppress(_KeysTakenError):
            whole(hidden_states, **{**named, "step": _KeysAlone(step)})
        if isinstance(step, Extend):
            return hidden_states[:, :0]
        ends, tokens = step.ends, hidden_states.shape[1]
        own = {name: _of(value, ends, tokens) for name, value in named.items()}
        return whole(hidden_states[:, ends], **{**own, "step": step.at_ends()})

    def restore() -> None:
        layer.forward = whole

    layer.forward = forward
    return restore


def _of(value: Any, places: Tensor | None, tokens: int) -> Any:
    """What some tokens have of an argument that holds something of each: ``(1, tokens, ...)``."""
    if isinstance(value, tuple):
        return tuple(_of(part, places, tokens) for part in value)
    if isinstance(value, Tensor) and value.ndim > 1 and value.shape[:2] == (1, tokens):
        return value[:, places]
    return value
