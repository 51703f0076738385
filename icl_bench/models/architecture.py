"""The parts of a model's architecture that determine its cost in floating-point operations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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

_EMBEDDINGS = ("lm_head.weight", "model.embed_tokens.weight")
"""The output head, which may share the embeddings' matrix, and the embeddings."""

_NOT_COUNTED = re.compile(
    r"model\.embed_tokens\.weight|lm_head\.weight|model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
)
"""Embeddings, and rotary frequencies in older files, which do not count as parameters."""

_BEFORE_ATTENTION = re.compile(
    r"input_layernorm\.|(?:self_attn|attention|attn)\.(?!o_proj\.|out_proj\.|dense\.|c_proj\.)"
)
"""Names in a layer of the parameters that compute queries, keys and values."""


@dataclass(frozen=True)
class Architecture:
    """The parts of a model's architecture that determine its cost."""

    parameters: int
    """Parameters of the matrices that every token passes through: all but embeddings."""
    heads_width: int
    """Query heads times their width. The mean, if layers differ."""
    windows: tuple[int | None, ...]
    """The attention window of each layer in tokens; None for full attention."""
    key_width: int = 0
    """Key heads times their width; 0 if unknown. The mean, if layers differ."""
    reader_parameters: int = 0
    """Parameters of the additional matrices that every token passes through to read vectors."""
    vector_parameters: int = 0
    """Parameters of the matrices that every vector passes through."""
    hidden_width: int = 0
    """Width of the hidden states, which the output head multiplies; 0 if unknown."""
    vocabulary: int = 0
    """Tokens for which the output head has logits; 0 if unknown."""
    layer_parameters: int = 0
    """Parameters of the last layer; 0 if unknown, or if it cannot be computed in part."""
    projection_parameters: int = 0
    """Parameters of ``layer_parameters`` that compute queries, keys and values."""
    layer_widths: tuple[tuple[int, int], ...] = ()
    """``heads_width`` and ``key_width`` of each layer; empty if all layers have the same."""

    @property
    def widths(self) -> tuple[tuple[int, int], ...]:
        """``heads_width`` and ``key_width`` of each layer."""
        return self.layer_widths or ((self.heads_width, self.key_width),) * len(self.windows)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Architecture:
        """Restore from the result of :meth:`as_json`."""
        widths = tuple(tuple(each) for each in stored.get("layer_widths", ()))
        return cls(**{**stored, "windows": tuple(stored["windows"]), "layer_widths": widths})

    def as_json(self) -> dict[str, Any]:
        """Plain values, to store with predictions."""
        values = {**asdict(self), "windows": list(self.windows)}
        optional = {field.name for field in fields(self) if field.default in (0, ())} - {"key_width"}
        return {name: value for name, value in values.items() if value or name not in optional}

    def with_whole_layers(self) -> Architecture:
        """The same architecture for a program that computes every layer for all tokens."""
        return replace(self, layer_parameters=0, projection_parameters=0)

    def logits_flops(self, logits: float) -> float:
        """Operations of the output head for this number of logits: positions times tokens."""
        return 2.0 * self.hidden_width * logits

    def flops(self, tokens: float, before: float) -> float:
        """Operations of all layers for tokens that each see ``before`` earlier ones (on average).

        Two per parameter and token; four per visible key and head width (scores and values). Only for cells without a
        stored cost: :mod:`icl_bench.sweep.compute_cost` counts exactly.
        """
        layers = zip(self.windows, self.widths, strict=True)
        seen = sum(width * min(before, window or before) for window, (width, _) in layers)
        return tokens * (2.0 * self.parameters + 4.0 * seen)


class ParameterCounts(NamedTuple):
    """Fields of :class:`Architecture` that are counted from a checkpoint's tensors."""

    parameters: int
    hidden_width: int
    vocabulary: int
    layer_parameters: int
    projection_parameters: int

    @classmethod
    def of(cls, sizes: Mapping[str, int], last_layer: str, head: Sequence[int]) -> ParameterCounts:
        """Count parameters by name, without embeddings and head.

        ``last_layer`` is the prefix of the last layer's names; ``head`` is the shape of the output head.
        """
        inside = {name.removeprefix(last_layer): n for name, n in sizes.items() if name.startswith(last_layer)}
        before = sum(n for name, n in inside.items() if _BEFORE_ATTENTION.match(name))
        layer = sum(inside.values()) if before else 0
        return cls(sum(sizes.values()), head[1], head[0], layer, before)


def architecture_of(source: str) -> Architecture:
    """Read a model's shape from its config and its files' headers, without its weights.

    If the format of a file is unknown, transformers creates the model without memory for its
    weights.
    """
    config, vectors = read_config(source), vector_settings_of(source)
    counts = stored_parameters(Path(source)) if states_everything(source) else None
    return Architecture(
        heads_width=config.heads_width,
        windows=config.windows,
        key_width=config.key_width,
        layer_widths=config.layer_widths,
        reader_parameters=vectors.parameters if vectors else 0,
        vector_parameters=vectors.vector_parameters if vectors else 0,
        **(counts or laid_out_parameters(source))._asdict(),
    )


def stored_parameters(folder: Path) -> ParameterCounts | None:
    """Parameters of a checkpoint's safetensors files, from their headers.

    None if a tensor does not belong to a tested family, or is not plain floating point.
    """
    shapes: dict[str, list[int]] = {}
    for file in folder.glob("*.safetensors"):
        header = _safetensors_header(file)
        if header is None or any(tensor.get("dtype") not in _FLOATS for tensor in header.values()):
            return None
        shapes |= {name: tensor["shape"] for name, tensor in header.items()}
    sizes = {name: math.prod(shape) for name, shape in shapes.items() if not _NOT_COUNTED.fullmatch(name)}
    head = next((shapes[name] for name in _EMBEDDINGS if len(shapes.get(name, ())) == 2), None)
    if not sizes or head is None or not all(map(_TENSOR.fullmatch, sizes)):
        return None
    last = max((int(name.split(".")[2]) for name in sizes if name.startswith("model.layers.")), default=0)
    return ParameterCounts.of(sizes, f"model.layers.{last}.", head)


def _safetensors_header(file: Path) -> dict[str, Any] | None:
    """Dtype and shape of each tensor of a file, by name; None if it is not a safetensors file."""
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > _LONGEST_HEADER:
                return None
            header: Any = json.loads(stream.read(size))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(header, dict):
        return None
    header.pop("__metadata__", None)
    return header if all(isinstance(tensor, dict) for tensor in header.values()) else None


def laid_out_parameters(source: str) -> ParameterCounts:
    """Parameters of a model, counted on the meta device.

    Raises ``UserError`` if its config is not that of a language model.
    """
    import torch

    spare_imports()
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with torch.device("meta"):
            config = AutoConfig.from_pretrained(source, trust_remote_code=False)
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # the library raises many kinds of errors
        raise UserError(f"model {source}: cannot be planned ({first_line(error)})") from None
    head = model.get_output_embeddings().weight
    tables = [module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    looked_up = {id(weight) for weight in (*tables, head)}
    sizes = {name: p.numel() for name, p in model.named_parameters() if id(p) not in looked_up}
    blocks = getattr(model.get_decoder(), "layers", None)
    last = next((f"{name}." for name, module in model.named_modules() if blocks and module is blocks[-1]), "-")
    return ParameterCounts.of(sizes, last, tuple(head.shape))


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
