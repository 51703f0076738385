"""What of a model decides its cost, and the floating-point operations that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """What of a model decides its cost."""

    parameters: int
    """In matrices that every token passes: without embeddings."""
    heads_width: int
    """Query heads times their width."""
    windows: tuple[int | None, ...]
    """Per layer the tokens that attention reaches back; None for all."""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Shape:
        """Read what :meth:`as_json` gave."""
        return cls(stored["parameters"], stored["heads_width"], tuple(stored["windows"]))

    def as_json(self) -> dict[str, Any]:
        """Plain values, to store beside predictions."""
        return {**asdict(self), "windows": list(self.windows)}

    def flops(self, tokens: float, before: float) -> float:
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
