"""Rotary positions that depend on the length of a prompt, fixed at one length.

With dynamic NTK scaling (``rope_type: dynamic``) the base of the rotation grows with the length of what is read, so
keys that were cached for a short prompt are wrong in a longer one. A model that was trained at one length is read with
the base of that length, whatever the prompt's: https://github.com/FranxYao/Long-Context-Data-Engineering
(``reset_rope`` in ``eval/needle/needle_in_haystack.py``) and https://github.com/abertsch72/long-context-icl do so for
Llama 2 7B 80k (Fu et al. 2024), with factor 10 and 81,920 tokens.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.made_once import made_once


def fix_positions(config: Any, tokens: int) -> bool:
    """Replace dynamic scaling in a config of the transformers library by the base that it has at ``tokens`` tokens.

    The config's window becomes ``tokens``, if it is shorter. Returns whether the config has dynamic scaling.
    """
    text = config.get_text_config()
    rotation = getattr(text, "rope_parameters", None) or {}
    if rotation.get("rope_type") != "dynamic":
        return False
    factor = rotation["factor"]
    trained = rotation.get("original_max_position_embeddings") or text.max_position_embeddings
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    longer = max(factor * tokens / trained - (factor - 1), 1)
    text.rope_parameters = {
        "rope_type": "default",
        "rope_theta": rotation["rope_theta"] * longer ** (width / (width - 2)),
    }
    text.max_position_embeddings = max(text.max_position_embeddings, tokens)
    return True


def fixed_folder(snapshot: Path, tokens: int) -> Path | None:
    """A folder with a snapshot's files and positions fixed at ``tokens`` tokens; None without dynamic scaling.

    Weights are links. The folder is in the cache, named as the snapshot. Raises ``OSError``.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(snapshot, trust_remote_code=False)
    if not fix_positions(config, tokens):
        return None
    key = hashlib.sha256(f"{snapshot.resolve()} {tokens}".encode()).hexdigest()[:16]

    def write(folder: Path) -> None:
        for file in sorted(snapshot.iterdir()):
            if file.suffix == ".safetensors":
                (folder / file.name).symlink_to(file.resolve())
            elif file.is_file():
                shutil.copyfile(file, folder / file.name)
        config.save_pretrained(folder)

    return made_once(cache_dir() / "fixed_positions" / key / snapshot.name, write)
