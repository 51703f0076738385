"""Keeps other libraries' progress bars and hints out of our output."""

from __future__ import annotations

import os
import warnings


def hush_libraries() -> None:
    """Call this before they are imported: that is when they read it."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for library in ("TRANSFORMERS", "HF_HUB", "DATASETS"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    warnings.filterwarnings("ignore", module="transformers|torch|datasets|bert_score|tqdm")
