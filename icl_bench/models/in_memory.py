"""A model that is already loaded: saved once under the hash of its weights, and then like any folder."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from icl_bench.errors import UserError
from icl_bench.models.cache_folder import cache_dir
from icl_bench.wording import first_line

IDENTITY = "icl_bench_identity.json"
"""In the saved folder: the hash of the weights, its fingerprint in results."""

UNNAMED = "model"


def read_model(given: Any) -> Any:
    """A model's name, the folder that a loaded one was saved to; anything else as it is.

    A loaded model is a pair of a ``transformers`` model and its tokenizer, or a triple with the name
    that results call it by. Raises ``UserError`` where it cannot be saved.
    """
    if isinstance(given, Path):
        return str(given)
    if isinstance(given, tuple | list) and len(given) in (2, 3) and hasattr(given[0], "save_pretrained"):
        return str(_saved(*given))
    if hasattr(given, "save_pretrained"):
        raise UserError("--model: a loaded model needs its tokenizer; give model=(model, tokenizer)")
    return given


def stated_fingerprint(folder: Path) -> str | None:
    """The hash of the weights of a model that was saved here; None for any other folder."""
    try:
        if cache_dir() / "models" / "in-memory" not in folder.resolve().parents:
            return None
        return str(json.loads((folder / IDENTITY).read_text(encoding="utf-8"))["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _saved(model: Any, tokenizer: Any, name: str | None = None) -> Path:
    """The folder of a loaded model, written where it is not there yet.

    The weights are hashed whole, each tensor with its name, type and shape, and so are the vocabulary
    and the configuration: a model that was trained a step further is another one.
    """
    config = {k: v for k, v in model.config.to_dict().items() if k not in ("_name_or_path", "transformers_version")}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(f"\0{key}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(memoryview(tensor.detach().cpu().contiguous().view(-1).view(_bytes()).numpy()))
    digest.update(_tokenizer_text(tokenizer).encode())
    said = name or Path(str(getattr(model.config, "_name_or_path", "") or "")).name
    folder = re.sub(r"[^\w.+-]+", "-", said).strip("-.") or UNNAMED
    place = cache_dir() / "models" / "in-memory" / digest.hexdigest()[:16] / folder
    if (place / IDENTITY).exists():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as work:
            saved = Path(work) / "saved"
            model.save_pretrained(saved)
            tokenizer.save_pretrained(saved)
            stated = {"fingerprint": f"weights-sha256:{digest.hexdigest()}"}
            (saved / IDENTITY).write_text(json.dumps(stated), encoding="utf-8")
            saved.replace(place)
    except OSError as error:
        if (place / IDENTITY).exists():  # another process saved the same model
            return place
        raise UserError(
            f"--model: the loaded model cannot be saved in {place.parent} ({first_line(error)}); set "
            "ICL_BENCH_CACHE to a folder with room for its weights"
        ) from None
    return place


def _bytes() -> Any:
    import torch

    return torch.uint8


def _tokenizer_text(tokenizer: Any) -> str:
    """What decides the tokens: the whole of a fast tokenizer, else its vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return str(backend.to_str())
    return json.dumps(sorted(tokenizer.get_vocab().items()))
