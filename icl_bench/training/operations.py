"""Operations of training steps, counted like those of prompts (:mod:`icl_bench.sweep.compute_cost`).

In the backward pass, a product takes the same operations for the gradient of its input, and again for the gradient of
its weights if they are trained. Attention has no weights and takes twice its forward operations. Computed padding is
counted, optimizers are not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from icl_bench.models.architecture import Architecture
from icl_bench.models.attention_patterns import BlockLayout, ReceptiveSpan, keys_seen

if TYPE_CHECKING:
    from torch import Tensor

_OF_FIRST_INPUT = re.compile(r"\.layers\.0\.self_attn\.(?!o_proj)\w+\.lora_A\.")
"""Names of the adapters' weights that multiply the first layer's input."""


@dataclass(frozen=True)
class Adapters:
    """Parameters of low-rank adapters (LoRA), which every token passes through."""

    parameters: int
    first: int
    """Parameters that multiply the first layer's input, which needs no gradient."""

    @classmethod
    def of(cls, weights: Iterable[tuple[str, Tensor]]) -> Adapters:
        """Count adapters among a model's named parameters."""
        sizes = {name: p.numel() for name, p in weights if "lora_" in name}
        return cls(sum(sizes.values()), sum(n for name, n in sizes.items() if _OF_FIRST_INPUT.search(name)))

    def forward(self, tokens: float) -> float:
        """Operations of a forward pass."""
        return 2.0 * self.parameters * tokens

    def step(self, tokens: float) -> float:
        """Operations of a forward and a backward pass."""
        return 2.0 * (3 * self.parameters - self.first) * tokens


def keys_of_layers(spans: Sequence[ReceptiveSpan], layout: BlockLayout | None, tokens: int) -> int:
    """Pairs of a token and a key that it sees, in all layers, of a sequence of ``tokens``."""
    return sum(count * keys_seen(span, layout, 0, tokens) for span, count in Counter(spans).items())


@cache
def keys_of_row(spans: tuple[ReceptiveSpan, ...], tokens: int, width: int) -> int:
    """Pairs of a token and a key that it sees, in all layers, of ``tokens`` padded on the right to ``width``.

    Padding sees the row's tokens, but not itself.
    """
    return keys_of_layers(spans, None, width) - keys_of_layers(spans, None, width - tokens)


def batch_of(spans: tuple[ReceptiveSpan, ...], lengths: Sequence[int]) -> tuple[int, int]:
    """Tokens and pairs of a batch of rows padded on the right."""
    width = max(lengths)
    return len(lengths) * width, sum(keys_of_row(spans, length, width) for length in lengths)


def forward_flops(shape: Architecture, tokens: float, keys: float) -> float:
    """Operations of all layers for ``tokens`` that see ``keys`` in all layers together."""
    return 2.0 * shape.parameters * tokens + 4.0 * shape.heads_width * keys


def step_flops(shape: Architecture, tokens: float, keys: float, *, frozen: bool, input_learns: bool = True) -> float:
    """Operations of all layers, forward and backward.

    ``input_learns`` is whether anything before the first layer is trained. If not, and with ``frozen`` weights, the
    first layer's projections need no gradient.
    """
    products, attention = 2.0 * shape.parameters * tokens, 4.0 * shape.heads_width * keys
    if not frozen:
        return 3 * (products + attention)
    unneeded = 0.0 if input_learns else 2.0 * shape.projection_parameters * tokens
    return 2 * products - unneeded + 3 * attention
