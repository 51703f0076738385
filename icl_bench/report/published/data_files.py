"""A folder of data files that a page loads without a server: scripts, each with a compressed JSON value.

A browser lets a page read no file of a disk, but run scripts beside it. A file's name has a hash of its content: a
browser never takes an older file of its cache for a new one, and the parts of two reports cannot be mixed up.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.text_files import write_whole

FOLDER = "predictions"
"""Where the data files stand beside the page."""


NAME = re.compile(r"[a-z]+-\d+-[0-9a-f]{12}\.js")
"""A data file's name: its kind, its number and a hash of its content."""


HASH_DIGITS = 12


@dataclass
class DataFiles:
    """Writes data files into a folder, and adds up their bytes."""

    folder: Path
    bytes: int = 0
    names: set[str] = field(default_factory=set)
    """Those that were written."""

    def put(self, kind: str, number: int, value: Any) -> str:
        """Write a JSON value; returns the file's name without its ending. Raises ``OSError``."""
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
        # an import may have half of a pair of surrogates, which UTF-8 does not
        packed = gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)
        name = f"{kind}-{number}-{hashlib.sha256(packed).hexdigest()[:HASH_DIGITS]}"
        content = f'iclBench("{name}","{base64.b64encode(packed).decode("ascii")}");\n'.encode("ascii")
        write_whole(self.folder / f"{name}.js", content)
        self.names.add(f"{name}.js")
        self.bytes += len(content)
        return name


def _plain(value: Any) -> Any:
    """Arrays as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__}: not a JSON value")
