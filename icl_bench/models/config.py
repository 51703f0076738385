"""Reads a checkpoint's config.json, with the same result as transformers.

transformers fills missing fields with defaults of the model's family. This module reads the four
families that attention patterns are tested with, if the file has every field whose default matters.
Otherwise transformers reads the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icl_bench.text_files import json_file

_REQUIRED: Mapping[str, frozenset[str]] = {
    "llama": frozenset(),
    "mistral": frozenset({"num_key_value_heads", "sliding_window"}),
    "qwen2": frozenset({"num_key_value_heads", "use_sliding_window"}),
    "gemma3_text": frozenset({"num_key_value_heads", "sliding_window", "layer_types", "head_dim"}),
}
"""Family -> fields that must be present: this module does not know their default."""

_NULL: Mapping[str, frozenset[str]] = {
    "llama": frozenset({"num_key_value_heads", "head_dim", "sliding_window"}),
    "mistral": frozenset({"sliding_window", "head_dim"}),
    "qwen2": frozenset({"sliding_window", "layer_types"}),
    "gemma3_text": frozenset({"sliding_window"}),
}
"""Family -> fields that may be null."""

_OPTIONAL = (
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "use_sliding_window",
    "layer_types",
    "max_window_layers",
)

_ALWAYS = frozenset({"hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings"})

_OTHER_READINGS = frozenset({"quantization_config", "text_config", "auto_map", "use_bidirectional_attention"})
"""Fields that change the meaning of others, or which class reads them."""


@dataclass(frozen=True)
class ModelConfig:
    """The fields of a text model's config that the program uses."""

    family: str
    """``model_type``, such as ``llama``."""
    context_tokens: int | None
    """The trained context window; None if the config has none."""
    heads_width: int
    """Query heads times their width. The mean, if layers differ."""
    key_width: int
    """Key heads times their width. The mean, if layers differ."""
    windows: tuple[int | None, ...]
    """The attention window of each layer in tokens; None for full attention."""
    layer_widths: tuple[tuple[int, int], ...] = ()
    """``heads_width`` and ``key_width`` of each layer; empty if all layers have the same."""


def read_config(source: str, revision: str | None = None) -> ModelConfig:
    """Read the config of a folder or hub id. Raises any exception of transformers."""
    stated = _complete_config(Path(source) / "config.json")
    return _from_config(stated) if stated is not None else _from_transformers(source, revision)


def states_everything(source: str) -> bool:
    """Whether a checkpoint's config.json can be read without transformers."""
    return _complete_config(Path(source) / "config.json") is not None


def _complete_config(file: Path) -> dict[str, Any] | None:
    """The file's fields if no default matters; else None."""
    try:
        config = json_file(file)
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict) or config.get("model_type") not in _REQUIRED:
        return None
    family = config["model_type"]
    required = _ALWAYS | _REQUIRED[family]
    if not required <= config.keys() or any(config.get(name) for name in _OTHER_READINGS):
        return None
    null = {name for name in _OPTIONAL if name in config and config[name] is None}
    # a default would determine which layers have a window
    windows_by_default = config.get("use_sliding_window") and not config.get("layer_types")
    if not null <= _NULL[family] or windows_by_default:
        return None
    if family in {"llama", "mistral"} and "layer_types" in config:  # not a field of these families
        return None
    numbers = [config[name] for name in _ALWAYS]
    numbers += [config[n] for n in ("num_key_value_heads", "head_dim") if config.get(n) is not None]
    if config.get("sliding_window") is not None:
        numbers.append(config["sliding_window"])
    kinds = config.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) != config["num_hidden_layers"]):
        return None
    valid = all(type(number) is int and number > 0 for number in numbers)
    if not valid or config["hidden_size"] % config["num_attention_heads"]:
        return None
    return config


def _from_config(stated: Mapping[str, Any]) -> ModelConfig:
    heads = stated["num_attention_heads"]
    width = stated.get("head_dim") or stated["hidden_size"] // heads
    window = stated.get("sliding_window")
    if stated["model_type"] == "qwen2" and not stated["use_sliding_window"]:
        window = None
    return ModelConfig(
        stated["model_type"],
        stated["max_position_embeddings"],
        heads * width,
        (stated.get("num_key_value_heads") or heads) * width,
        _layer_windows(window, stated.get("layer_types"), stated["num_hidden_layers"]),
    )


def _from_transformers(source: str, revision: str | None) -> ModelConfig:
    from transformers import AutoConfig

    whole: Any = AutoConfig.from_pretrained(source, revision=revision or "main", trust_remote_code=False)
    config = whole.get_text_config()
    context_tokens = getattr(config, "max_position_embeddings", None)
    widths = layer_widths(config)
    heads_width, key_width = (round(sum(each) / len(widths)) for each in zip(*widths, strict=True))
    return ModelConfig(
        str(config.model_type),
        context_tokens if isinstance(context_tokens, int) else None,
        heads_width,
        key_width,
        layer_windows(config) if hasattr(config, "num_hidden_layers") else (),
        widths if len(set(widths)) > 1 else (),
    )


def layer_widths(config: Any) -> tuple[tuple[int, int], ...]:
    """Each layer's query heads times their width, and key heads times theirs, from a text model's config.

    One entry if the config has the same values for all layers.
    """
    differ = getattr(config, "is_heterogeneous", False)
    return tuple(_widths(layer) for layer in (config.per_layer_config if differ else [config]))


def _widths(config: Any) -> tuple[int, int]:
    heads = getattr(config, "num_attention_heads", None) or 1
    hidden = getattr(config, "hidden_size", None) or 0
    width = getattr(config, "head_dim", None) or hidden // heads
    return heads * width, (getattr(config, "num_key_value_heads", None) or heads) * width


FULL_LAYERS = frozenset({"full_attention", "attention"})
"""Kinds of layers in ``layer_types`` whose tokens see all earlier ones."""

SLIDING = "sliding_attention"
"""The kind of layers in ``layer_types`` whose tokens see a window."""


def layer_windows(config: Any) -> tuple[int | None, ...]:
    """Each layer's attention window in tokens, from a text model's config; None for all tokens."""
    window = getattr(config, "sliding_window", None)
    return _layer_windows(window, getattr(config, "layer_types", None), int(config.num_hidden_layers))


def _layer_windows(window: int | None, kinds: Any, layers: int) -> tuple[int | None, ...]:
    window = window or None  # families that turn windows off use null, false or 0
    if window is not None and (type(window) is not int or window < 1):
        raise ValueError(f"sliding_window is {window!r}, not a number of tokens")
    if kinds is None:
        return (window,) * layers
    return tuple(window if kind == SLIDING else None for kind in kinds)
