"""Where the program keeps what it has prepared once: models, tokenizers, embeddings, rates."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """``ICL_BENCH_CACHE``, or a folder of this program in the user's cache."""
    if asked := os.environ.get("ICL_BENCH_CACHE"):
        return Path(asked).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("icl-bench")
