"""Files of a model on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from icl_bench.errors import NotHereError
from icl_bench.wording import first_line, one_line

TOKENIZER_FILES = ("*.json", "tokenizer.model", "*.txt")
"""The files of a checkpoint without weights: configs and tokenizer."""


def fetch(
    hub: str, files: Sequence[str], *, subject: str, hint: str, revision: str | None = None, ignore: Sequence[str] = ()
) -> Path:
    """Download the files that match these patterns. Returns their folder.

    Raises ``NotHereError``, whose message begins with ``subject`` and ends with ``hint``.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(hub, revision=revision, allow_patterns=list(files), ignore_patterns=list(ignore) or None)
        )
    except Exception as error:  # requests, hub and file errors alike
        raise NotHereError(
            one_line(f"{subject} cannot be downloaded from the hub ({first_line(error)}); {hint}")
        ) from None


def cached_file(hub: str, file: str, revision: str | None = None) -> Path | None:
    """The path of a model's file on this machine; None if it was not downloaded yet."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(hub, file, revision=revision)
    return Path(path) if isinstance(path, str) else None
