"""A checkpoint's weights in a model of the transformers library: all of them, or a refusal.

By itself the library gives random numbers to what a checkpoint lacks, and passes over what it has
besides.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from icl_bench.backends.transformers.device_memory import out_of_memory
from icl_bench.errors import UserError
from icl_bench.wording import first_line, listed

NAMED = 3
"""Weights that a message names of each kind."""

_COMPUTED = "rotary_emb.inv_freq"
"""What older checkpoints store of positions; the library computes it."""

_OTHER_SIZES = "ignore_mismatched_sizes"


def load_network(auto: Any, source: str, *, new_head: bool = False, **options: Any) -> Any:
    """Read a model by one of transformers' auto classes, from a folder or the hub.

    With ``new_head`` the checkpoint may lack the model's head and have another one: only its
    decoder must be whole. Raises ``UserError`` for weights that are missing, of another shape or
    not the model's, for damaged files, and where memory does not suffice.
    """
    try:
        network, found = auto.from_pretrained(source, output_loading_info=True, **options)
    except Exception as error:  # the library raises many kinds, some of dependencies
        if _OTHER_SIZES in str(error):
            # the message names no weight; the model is laid out again, without memory for weights
            options |= {"device_map": "meta", _OTHER_SIZES: True}
            network, found = auto.from_pretrained(source, output_loading_info=True, **options)
        else:
            raise UserError(f"model {source}: {_refusal(Path(source), error)}") from None
    if new_head:
        _leave_out_heads(network, found)
    if wrong := _differences(found):
        raise UserError(
            f"model {source}: its weights are not those of its config.json: {'; '.join(wrong)}; "
            "give the whole folder that save_pretrained wrote"
        )
    return network


def _leave_out_heads(network: Any, found: dict[str, Any]) -> None:
    """Leave only the decoder's weights among those that differ."""
    decoder = f"{network.base_model_prefix}."
    kinds = ["unexpected_keys"]
    if network.base_model is not network:  # else it has no head, and its names no prefix
        kinds.append("missing_keys")
    for kind in kinds:
        found[kind] = {name for name in found[kind] if name.startswith(decoder)}


def _differences(found: dict[str, Any]) -> list[str]:
    """In what a checkpoint's weights differ from the model's."""
    shapes = {
        f"{name} is {tuple(there)} instead of {tuple(wanted)}" for name, there, wanted in found["mismatched_keys"]
    }
    others = {name for name in found["unexpected_keys"] if not name.endswith(_COMPUTED)}
    kinds = {"missing": found["missing_keys"], "of another shape": shapes, "not in the model": others}
    return [f"{what}: {_named(names)}" for what, names in kinds.items() if names]


def _named(names: Iterable[str]) -> str:
    first = sorted(names)
    more = [f"{len(first) - NAMED:,} more"] if len(first) > NAMED else []
    return listed([*first[:NAMED], *more])


def _refusal(folder: Path, error: Exception) -> str:
    """Why a model cannot be loaded."""
    said = first_line(error)[:200]
    if out_of_memory(error):
        return f"does not fit the memory ({said}); take a smaller one, or --dtype bfloat16"
    if (damaged := _damaged_file(folder)) is not None:
        return f"{damaged.name} is damaged or not whole ({said}); copy or download it again"
    return f"cannot be loaded ({said})"


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
