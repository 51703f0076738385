"""The cache folder: prepared models, tokenizers, embeddings, measured speeds."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """``ICL_BENCH_CACHE``, or this program's folder in the user's cache."""
    if folder := os.environ.get("ICL_BENCH_CACHE"):
        return Path(folder).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("icl-bench")
