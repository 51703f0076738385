"""Files of a model on the Hugging Face hub: fetched, or refused in one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from icl_bench.errors import UserError
from icl_bench.wording import first_line, one_line

TOKENIZER_FILES = ("*.json", "tokenizer.model", "*.txt")
"""Of a checkpoint: its configs and its tokenizer, no weights."""


def fetch(
    hub: str,
    files: Sequence[str],
    *,
    whose: str,
    instead: str,
    revision: str | None = None,
    leave_out: Sequence[str] = (),
) -> Path:
    """Fetch the files that match these patterns, and say in which folder they are.

    A refusal begins with ``whose`` and ends with ``instead``, what to do instead. Raises
    ``UserError``.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                hub, revision=revision, allow_patterns=list(files), ignore_patterns=list(leave_out) or None
            )
        )
    except Exception as error:  # requests, hub and file errors alike
        raise UserError(one_line(f"{whose} cannot be had from the hub ({first_line(error)}); {instead}")) from None


def cached_file(hub: str, file: str, revision: str | None = None) -> Path | None:
    """Where a file of a model is on this machine; None where it was not fetched yet."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(hub, file, revision=revision)
    return Path(found) if isinstance(found, str) else None
