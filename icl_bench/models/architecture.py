"""The parts of a model's architecture that determine its cost in floating-point operations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.models.config import read_config, states_everything
from icl_bench.models.vector_encoder import vector_settings_of
from icl_bench.quiet_libraries import spare_imports
from icl_bench.wording import first_line

if TYPE_CHECKING:
    from icl_bench.models.registry import Model

_FLOATS = frozenset({"F32", "BF16", "F16"})

_LONGEST_HEADER = 100 * 2**20
"""The format's own limit, in bytes."""

_TENSOR = re.compile(
    r"model\.norm\.weight|model\.layers\.\d+\.(?:(?:input|post_attention|pre_feedforward|"
    r"post_feedforward)_layernorm\.weight|self_attn\.[qkvo]_proj\.(?:weight|bias)|"
    r"self_attn\.[qk]_norm\.weight|mlp\.(?:gate|up|down)_proj\.(?:weight|bias))"
)

_NOT_COUNTED = re.compile(
    r"model\.embed_tokens\.weight|lm_head\.weight|model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
)
"""Embeddings, and rotary frequencies of older files, which are not parameters."""


@dataclass(frozen=True)
class Architecture:
    """The parts of a model's architecture that determine its cost."""

    parameters: int
    """Parameters of the matrices that every token passes through: all but embeddings."""
    heads_width: int
    """Query heads times their width."""
    windows: tuple[int | None, ...]
    """The attention window of each layer in tokens; None for all."""
    key_width: int = 0
    """Key heads times their width; 0 where it is not known."""
    reader_parameters: int = 0
    """Parameters of the additional matrices that every token passes through to read vectors."""
    vector_parameters: int = 0
    """Parameters of the matrices that every vector passes through."""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Architecture:
        """Restore from the result of :meth:`as_json`."""
        return cls(**{**stored, "windows": tuple(stored["windows"])})

    def as_json(self) -> dict[str, Any]:
        """Plain values, to store with predictions."""
        values = {**asdict(self), "windows": list(self.windows)}
        optional = ("reader_parameters", "vector_parameters")
        return {name: value for name, value in values.items() if value or name not in optional}

    def flops(self, tokens: float, before: float) -> float:
        """Operations for tokens that each see ``before`` earlier ones (on average).

        Two for each parameter and token; four for each visible key and head width (scores and values).
        """
        keys = sum(min(before, window or before) for window in self.windows)
        return tokens * (2.0 * self.parameters + 4.0 * self.heads_width * keys)


def architecture_of(source: str) -> Architecture:
    """Read a model's shape from its config and its files' headers, without its weights.

    If the format of a file is unknown, transformers creates the model without memory for its
    weights.
    """
    config, vectors = read_config(source), vector_settings_of(source)
    parameters = stored_parameters(Path(source)) if states_everything(source) else None
    return Architecture(
        laid_out_parameters(source) if parameters is None else parameters,
        config.head_width * config.heads,
        config.windows,
        config.head_width * config.key_heads,
        *((vectors.parameters, vectors.vector_parameters) if vectors else ()),
    )


def stored_parameters(folder: Path) -> int | None:
    """Parameters of a checkpoint's safetensors files, without embeddings, from their headers.

    None if a tensor does not belong to a tested family, or is not plain floating point.
    """
    shapes: dict[str, list[int]] = {}
    for file in folder.glob("*.safetensors"):
        header = _safetensors_header(file)
        if header is None or any(tensor.get("dtype") not in _FLOATS for tensor in header.values()):
            return None
        shapes |= {name: tensor["shape"] for name, tensor in header.items()}
    counted = {name: shape for name, shape in shapes.items() if not _NOT_COUNTED.fullmatch(name)}
    if not counted or not all(map(_TENSOR.fullmatch, counted)):
        return None
    return sum(map(math.prod, counted.values()))


def _safetensors_header(file: Path) -> dict[str, Any] | None:
    """Dtype and shape of each tensor of a file, by name; None if it is not a safetensors file."""
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > _LONGEST_HEADER:
                return None
            header: Any = json.loads(stream.read(size))
    except (OSError, ValueError):
        return None
    if not isinstance(header, dict):
        return None
    header.pop("__metadata__", None)
    return header if all(isinstance(tensor, dict) for tensor in header.values()) else None


def laid_out_parameters(source: str) -> int:
    """Parameters of a model without embeddings, counted on the meta device.

    Raises ``UserError`` if its config is not that of a language model.
    """
    import torch

    spare_imports()
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
    except Exception as error:  # the library raises many kinds
        raise UserError(f"model {source}: cannot be laid out ({first_line(error)})") from None
    embeddings = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    return sum(p.numel() for p in model.parameters() if id(p) not in embeddings)


FAMILIES: Mapping[str, str] = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "gemma3_text": "Gemma 3",
    "gemma3": "Gemma 3",
}
"""Families that attention patterns are tested with: name in a model's config -> name."""


def check_family(pattern: Pattern, model: Model) -> None:
    """Raise ``UserError`` if a model does not support a pattern."""
    if pattern == FULL:
        return
    if pattern.reads_vectors and vector_settings_of(model.source) is None:
        raise UserError(
            f"--attention {pattern}: {model.name} was not trained to read vectors; "
            "icl-bench train-vectors makes a model that was"
        )
    if (family := read_config(model.source).family) not in FAMILIES:
        raise UserError(
            f"--attention {pattern}: {model.name} is of the family {family}; patterns are for "
            f"{', '.join(dict.fromkeys(FAMILIES.values()))}"
        )
