"""How long a plan would take: floating-point operations over a quickly measured rate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from icl_bench.plan import CellPlan

EFFICIENCY = 0.6
"""Share of a plain matrix product's rate that a whole model reaches (measured: 0.5 to 0.7)."""


@dataclass(frozen=True)
class Shape:
    """What of a model decides its cost."""

    parameters: int
    """In matrices that every token passes: without embeddings."""
    heads_width: int
    """Query heads times their width."""
    windows: tuple[int | None, ...]
    """Per layer the tokens that attention reaches back; None for all."""

    def flops(self, tokens: int, before: float) -> float:
        """Operations for tokens that each see ``before`` earlier ones (on average).

        Two per parameter and token; four per seen key and head width (scores and values).
        """
        seen = sum(min(before, window or before) for window in self.windows)
        return tokens * (2.0 * self.parameters + 4.0 * self.heads_width * seen)


def shape_of(source: str) -> Shape:
    """Read a model's shape from its config, without its weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text: Any = config.get_text_config()
    embeddings = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    parameters = sum(p.numel() for p in model.parameters() if id(p) not in embeddings)
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    window = getattr(text, "sliding_window", None)
    windows = tuple(window if kind == "sliding_attention" else None for kind in kinds)
    return Shape(parameters, width * text.num_attention_heads, windows)


def device_rate(device: str, dtype: str, seconds: float = 0.2) -> float:
    """Operations a second of a plain matrix product on a device."""
    import torch

    kind = getattr(torch, dtype)
    size = 1024 if device == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))

    def multiply() -> None:
        torch.matmul(a, b)
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    multiply()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        multiply()
        count += 1
    return count * 2.0 * size**3 / (time.perf_counter() - start)


def seconds(shape: Shape, rate: float, cells: Sequence[CellPlan]) -> list[float]:
    """Estimated seconds of each cell, given what its group has cached: ``(cells,)``."""
    result = []
    for cell in cells:
        if cell.problem:
            result.append(0.0)
            continue
        rows = cell.queries
        own = cell.prompt_tokens - cell.prefix_tokens * rows
        extends = max(0, cell.new_tokens - own)
        work = shape.flops(extends, cell.prefix_tokens - extends / 2)
        work += shape.flops(own, cell.prefix_tokens + own / rows / 2)
        work += shape.flops(rows * cell.answer_tokens // 2, cell.longest_prompt)
        result.append(work / (rate * EFFICIENCY))
    return result
