"""What a checkpoint's config.json says of a model, as transformers reads it.

transformers fills what a file leaves out with each family's own defaults. The four families that
attention patterns are tested for are read here, without transformers, as long as the file itself
says all that a default would decide; everything else is asked of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_REQUIRED: Mapping[str, frozenset[str]] = {
    "llama": frozenset(),
    "mistral": frozenset({"num_key_value_heads", "sliding_window"}),
    "qwen2": frozenset({"num_key_value_heads", "use_sliding_window"}),
    "gemma3_text": frozenset({"num_key_value_heads", "sliding_window", "layer_types", "head_dim"}),
}
"""By family, the fields whose default is neither null nor read here."""

_NULL: Mapping[str, frozenset[str]] = {
    "llama": frozenset({"num_key_value_heads", "head_dim", "sliding_window"}),
    "mistral": frozenset({"sliding_window", "head_dim"}),
    "qwen2": frozenset({"sliding_window", "layer_types"}),
    "gemma3_text": frozenset({"sliding_window"}),
}
"""By family, the fields that may be null."""

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
"""Fields that, where they are set, change what others mean or which class reads them."""


@dataclass(frozen=True)
class ModelConfig:
    """What the program asks of a text model's config."""

    family: str
    """``model_type``, like ``llama``."""
    context_tokens: int | None
    """The trained window; None where the config states none."""
    heads: int
    key_heads: int
    head_width: int
    windows: tuple[int | None, ...]
    """Per layer the tokens that attention reaches back; None for all."""


def read_config(source: str, revision: str | None = None) -> ModelConfig:
    """Read the config of a folder or hub id. Raises what transformers raises."""
    stated = _stated(Path(source) / "config.json")
    return _of(stated) if stated is not None else _by_transformers(source, revision)


def states_everything(source: str) -> bool:
    """Whether a checkpoint's config.json can be read without transformers."""
    return _stated(Path(source) / "config.json") is not None


def _stated(file: Path) -> dict[str, Any] | None:
    """The file's fields where nothing in it is left to a default; else None."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("model_type") not in _REQUIRED:
        return None
    family = found["model_type"]
    wanted = _ALWAYS | _REQUIRED[family]
    if not wanted <= found.keys() or any(found.get(name) for name in _OTHER_READINGS):
        return None
    null = {name for name in _OPTIONAL if name in found and found[name] is None}
    if not null <= _NULL[family] or _layers_by_default(found):
        return None
    if family in {"llama", "mistral"} and "layer_types" in found:  # not theirs: up to transformers
        return None
    numbers = [found[name] for name in _ALWAYS]
    numbers += [found[n] for n in ("num_key_value_heads", "head_dim") if found.get(n) is not None]
    if found.get("sliding_window") is not None:
        numbers.append(found["sliding_window"])
    kinds = found.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) != found["num_hidden_layers"]):
        return None
    whole = all(type(number) is int and number > 0 for number in numbers)
    if not whole or found["hidden_size"] % found["num_attention_heads"]:
        return None
    return found


def _layers_by_default(found: Mapping[str, Any]) -> bool:
    """Whether a default decides which layers have a window."""
    return bool(found.get("use_sliding_window")) and not found.get("layer_types")


def _of(stated: Mapping[str, Any]) -> ModelConfig:
    heads = stated["num_attention_heads"]
    window = stated.get("sliding_window")
    if stated["model_type"] == "qwen2" and not stated["use_sliding_window"]:
        window = None
    return ModelConfig(
        stated["model_type"],
        stated["max_position_embeddings"],
        heads,
        stated.get("num_key_value_heads") or heads,
        stated.get("head_dim") or stated["hidden_size"] // heads,
        _windows(window, stated.get("layer_types"), stated["num_hidden_layers"]),
    )


def _by_transformers(source: str, revision: str | None) -> ModelConfig:
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(source, revision=revision or "main").get_text_config()
    window = getattr(config, "max_position_embeddings", None)
    heads = getattr(config, "num_attention_heads", None) or 1
    hidden = getattr(config, "hidden_size", None) or 0
    return ModelConfig(
        str(config.model_type),
        window if isinstance(window, int) else None,
        heads,
        getattr(config, "num_key_value_heads", None) or heads,
        getattr(config, "head_dim", None) or hidden // heads,
        layer_windows(config) if hasattr(config, "num_hidden_layers") else (),
    )


def layer_windows(config: Any) -> tuple[int | None, ...]:
    """Each layer's own window in tokens, of a text model's config; None where it sees all."""
    window = getattr(config, "sliding_window", None)
    return _windows(window, getattr(config, "layer_types", None), int(config.num_hidden_layers))


def _windows(window: int | None, kinds: Any, layers: int) -> tuple[int | None, ...]:
    if window is not None and (type(window) is not int or window < 1):
        raise ValueError(f"sliding_window is {window!r}, not a number of tokens")
    if kinds is None:
        return (window,) * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
