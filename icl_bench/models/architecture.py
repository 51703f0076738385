"""What of a model decides its cost, and the floating-point operations that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import FULL, Pattern

if TYPE_CHECKING:
    from icl_bench.models.registry import Model


@dataclass(frozen=True)
class Architecture:
    """What of a model decides its cost."""

    parameters: int
    """In matrices that every token passes: without embeddings."""
    heads_width: int
    """Query heads times their width."""
    windows: tuple[int | None, ...]
    """Per layer the tokens that attention reaches back; None for all."""
    key_width: int = 0
    """Key heads times their width; 0 where a file of an earlier version does not say."""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Architecture:
        """Read what :meth:`as_json` gave."""
        return cls(**{**stored, "windows": tuple(stored["windows"])})

    def as_json(self) -> dict[str, Any]:
        """Plain values, to store beside predictions."""
        return {**asdict(self), "windows": list(self.windows)}

    def flops(self, tokens: float, before: float) -> float:
        """Operations for tokens that each see ``before`` earlier ones (on average).

        Two per parameter and token; four per seen key and head width (scores and values).
        """
        seen = sum(min(before, window or before) for window in self.windows)
        return tokens * (2.0 * self.parameters + 4.0 * self.heads_width * seen)


def shape_of(source: str) -> Architecture:
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
    key_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return Architecture(
        parameters, width * text.num_attention_heads, layer_windows(text), width * key_heads
    )


FAMILIES: Mapping[str, str] = {
    "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "gemma3_text": "Gemma 3",
    "gemma3": "Gemma 3",
}  # fmt: skip
"""Families that attention patterns are tested for, by the name in a model's config."""


def family_of(source: str) -> str:
    """A model's family, as its config names it."""
    from transformers import AutoConfig

    return str(AutoConfig.from_pretrained(source).get_text_config().model_type)


def check_family(pattern: Pattern, model: Model) -> None:
    """Raise ``UserError`` where a model cannot be read by a pattern."""
    if pattern == FULL:
        return
    if (family := family_of(model.source)) not in FAMILIES:
        raise UserError(
            f"--attention {pattern}: {model.name} is of the family {family}; patterns are for "
            f"{', '.join(dict.fromkeys(FAMILIES.values()))}"
        )


def layer_windows(config: Any) -> tuple[int | None, ...]:
    """Each layer's own window in tokens, of a text model's config; None where it sees all."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return (window,) * int(config.num_hidden_layers)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
