"""The cache folder: prepared models, tokenizers, embeddings, measured speeds."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path


def cache_dir() -> Path:
    """``ICL_BENCH_CACHE``, or this program's folder in the user's cache."""
    if folder := os.environ.get("ICL_BENCH_CACHE"):
        return Path(folder).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("icl-bench")


UNFINISHED = re.compile(r"\.new-.+|\.writing-[0-9a-f]+(\..*)?")
"""Names of unfinished files, which are renamed when they are complete: ``.new-NAME``, ``.writing-HEX``."""

LEFT_SECONDS = 24 * 3600
"""Age above which unfinished files belong to a killed process."""


def remove_leftovers(folder: Path) -> None:
    """Remove leftovers of killed processes from a folder of the cache: unfinished, and unchanged for a day."""
    with suppress(OSError):  # also if it is a file
        for path in folder.iterdir():
            if UNFINISHED.fullmatch(path.name) and time.time() - _changed(path) > LEFT_SECONDS:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _changed(path: Path) -> float:
    """When a file, or any file in a folder, was last written."""
    return max(each.lstat().st_mtime for each in (path, *path.rglob("*")))
