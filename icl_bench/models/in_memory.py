"""A model that is already loaded: saved once under the hash of its weights, and then used like any folder."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from icl_bench.errors import UserError
from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.made_once import made_once
from icl_bench.quiet_libraries import hush_libraries
from icl_bench.text_files import json_file
from icl_bench.wording import first_line, plain, short

IDENTITY = "icl_bench_identity.json"
"""File in the saved folder with the hash of the weights, its fingerprint in results."""

IN_MEMORY, MERGED = Path("models", "in-memory"), Path("models", "merged")
"""Folders in the cache: loaded models that users passed, and adapters merged with their base."""

UNNAMED = "model"


def read_model(given: Any) -> Any:
    """Return a model's name, or the folder to which a loaded one was saved; anything else unchanged.

    A loaded model is a pair of a ``transformers`` model and its tokenizer, or a triple with its name in results. Raises
    ``UserError`` if it cannot be saved.
    """
    if isinstance(given, Path):
        return str(given)
    parts = given if isinstance(given, tuple | list) else (given,)
    if not any(map(_is_loaded, parts)):
        return given
    if not _is_loaded(parts[0]) or len(parts) not in (2, 3) or not hasattr(parts[1], "get_vocab"):
        raise UserError("--model: a loaded model needs its tokenizer; give model=(model, tokenizer)")
    return str(_saved(*parts))


def model_name(given: Any) -> str:
    """A model's name in messages: the user's text, or the name of a loaded one."""
    parts = given if isinstance(given, tuple | list) else (given,)
    loaded = next(filter(_is_loaded, parts), None)
    if loaded is not None:
        return _name(loaded, *parts[2:3])
    return plain(given) if isinstance(given, str | Path) else short(given)


def _is_loaded(given: Any) -> bool:
    return hasattr(given, "save_pretrained") and hasattr(given, "state_dict")


def _name(model: Any, given: object = None) -> str:
    """The given name, else that of the checkpoint from which it was loaded, as a folder name."""
    said = str(given or Path(str(getattr(model.config, "_name_or_path", "") or "")).name)
    return re.sub(r"[^\w.+-]+", "-", said).strip("-.") or UNNAMED


def stated_fingerprint(folder: Path) -> str | None:
    """The fingerprint of a model that this program saved in the cache folder; None for any other folder."""
    try:
        if not {cache_dir() / IN_MEMORY, cache_dir() / MERGED} & set(folder.resolve().parents):
            return None
        return str(json_file(folder / IDENTITY)["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _saved(model: Any, tokenizer: Any, name: object = None) -> Path:
    """The folder of a loaded model, written if it does not exist. Raises ``UserError``."""
    if hasattr(model, "merge_and_unload") or getattr(model, "_hf_peft_config_loaded", False):
        raise UserError("--model: the loaded model has an adapter that is not merged; give model.merge_and_unload()")
    hush_libraries()
    identity = _identity(model, tokenizer)
    place = cache_dir() / IN_MEMORY / identity[:16] / _name(model, name)

    def write(saved: Path) -> None:
        model.save_pretrained(saved)
        tokenizer.save_pretrained(saved)
        stated = {"fingerprint": f"weights-sha256:{identity}"}
        (saved / IDENTITY).write_text(json.dumps(stated), encoding="utf-8")

    try:
        return made_once(place, write)
    except OSError as error:
        raise UserError(
            f"--model: the loaded model cannot be saved in {place.parent} ({first_line(error)}); set "
            "ICL_BENCH_CACHE to a folder with room for its weights"
        ) from None


def _identity(model: Any, tokenizer: Any) -> str:
    """A hash of all weights (each tensor with its name, type and shape), the configurations and the tokenizer. Any
    further training step changes it.
    """
    import torch

    digest = hashlib.sha256(json.dumps([_settings(model), _tokenizer_text(tokenizer)], default=str).encode())
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(f"\0{key}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(memoryview(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()


def _settings(model: Any) -> list[dict[str, Any]]:
    """The configurations of a model and of its generation, which has its end tokens."""
    both = (model.config, getattr(model, "generation_config", None))
    passing = ("_name_or_path", "transformers_version")
    return [
        {name: value for name, value in sorted(one.to_dict().items()) if name not in passing}
        for one in both
        if one is not None
    ]


def _tokenizer_text(tokenizer: Any) -> list[Any]:
    """The data that determine tokens and chat prompts: a complete fast tokenizer, else its vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        words: Any = sorted(tokenizer.get_vocab().items())
    else:  # padding or truncating a batch leaves its settings in the tokenizer
        words = {**json.loads(backend.to_str()), "padding": None, "truncation": None}
    return [words, getattr(tokenizer, "special_tokens_map", None), getattr(tokenizer, "chat_template", None)]
