"""Loads a checkpoint's weights into a model of the transformers library, completely or not at all.

The library itself initialises missing weights with random numbers, and ignores additional ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from icl_bench.backends.vllm.architectures import instead
from icl_bench.errors import UserError
from icl_bench.models.memory import out_of_memory
from icl_bench.text_files import json_file
from icl_bench.wording import first_line, listed

NAMED = 3
"""The number of weights that a message names, for each kind of difference."""

_COMPUTED = "rotary_emb.inv_freq"
"""Rotary frequencies, which older checkpoints store but the library computes."""

_OTHER_SIZES = "ignore_mismatched_sizes"

_OF_FAMILIES = {
    "does not support an attention implementation": "its attention cannot be replaced by the backend's",
    "Unrecognized configuration class": "it is not a decoder-only model",
}
"""The library's messages for model families that this backend does not compute, each with the reason."""


def load_network(auto: Any, source: str, *, new_head: bool = False, **options: Any) -> Any:
    """Read a model by one of transformers' auto classes, from a folder or the hub.

    With ``new_head``, the checkpoint need not have the model's head and may have another one; only
    its decoder must be complete. Raises ``UserError`` for weights that are missing, unexpected or
    have another shape, for damaged files, and if memory does not suffice.
    """
    try:
        network, loading_info = auto.from_pretrained(
            source, output_loading_info=True, trust_remote_code=False, **options
        )
    except Exception as error:  # the library raises many kinds of errors, some from dependencies
        if _OTHER_SIZES in str(error):
            # the message does not name the weights: load again, without memory for weights
            options |= {"device_map": "meta", _OTHER_SIZES: True}
            network, loading_info = auto.from_pretrained(
                source, output_loading_info=True, trust_remote_code=False, **options
            )
        else:
            raise UserError(f"model {source}: {_refusal(Path(source), error)}") from None
    if new_head:
        _ignore_heads(network, loading_info)
    if differences := _differences(loading_info):
        raise UserError(
            f"model {source}: its weights do not match its config.json: {'; '.join(differences)}; "
            "give the whole folder that save_pretrained wrote"
        )
    return network


def _ignore_heads(network: Any, loading_info: dict[str, Any]) -> None:
    """Keep only the decoder's weights among those that differ."""
    decoder = f"{network.base_model_prefix}."
    kinds = ["unexpected_keys"]
    if network.base_model is not network:  # else the model has no head, and names have no prefix
        kinds.append("missing_keys")
    for kind in kinds:
        loading_info[kind] = {name for name in loading_info[kind] if name.startswith(decoder)}


def _differences(loading_info: dict[str, Any]) -> list[str]:
    """The differences between a checkpoint's weights and the model's."""
    shapes = {
        f"{name} is {tuple(shape)} instead of {tuple(expected)}"
        for name, shape, expected in loading_info["mismatched_keys"]
    }
    unexpected = {name for name in loading_info["unexpected_keys"] if not name.endswith(_COMPUTED)}
    kinds = {"missing": loading_info["missing_keys"], "of another shape": shapes, "not in the model": unexpected}
    return [f"{kind}: {_listed_names(names)}" for kind, names in kinds.items() if names]


def _listed_names(names: Iterable[str]) -> str:
    first = sorted(names)
    more = [f"{len(first) - NAMED:,} more"] if len(first) > NAMED else []
    return listed([*first[:NAMED], *more])


def _refusal(folder: Path, error: Exception) -> str:
    """Why a model cannot be loaded."""
    reason = first_line(error)[:200]
    for text, why in _OF_FAMILIES.items():
        if text in str(error):
            return not_computed(_architectures(folder), why)
    if out_of_memory(error):
        return f"does not fit the memory ({reason}); take a smaller one, or --dtype bfloat16"
    if (damaged := _damaged_file(folder)) is not None:
        return f"{damaged.name} is damaged or incomplete ({reason}); copy or download it again"
    return f"cannot be loaded ({reason})"


def not_computed(architectures: Iterable[str], reason: str) -> str:
    """The message that this backend does not compute a model, with the reason and whether vLLM does."""
    return f"--backend transformers does not compute it ({reason}); {instead(set(architectures))}"


def _architectures(folder: Path) -> list[str]:
    """The names of a checkpoint's class, from its ``config.json``."""
    try:
        config = json_file(folder / "config.json")
        return [str(name) for name in config.get("architectures") or ()]
    except (OSError, ValueError, AttributeError, TypeError):
        return []


def _damaged_file(folder: Path) -> Path | None:
    """The first of a folder's safetensors files that cannot be opened."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy"):
                pass
        except SafetensorError:
            return file
    return None
