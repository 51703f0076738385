"""A folder of data files that a page loads without a server: scripts, each with a compressed JSON value.

Browsers do not let a page read local files, but let it run scripts next to it. A file's name contains a hash of its
content, so that a browser does not use outdated cached files, and parts of two reports are not mixed.
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
"""The folder of data files, next to the page."""


NAME = re.compile(r"[a-z]+-\d+-[0-9a-f]{12}\.js")
"""A data file's name: its kind, its number and a hash of its content."""


HASH_DIGITS = 12


@dataclass
class DataFiles:
    """Writes data files into a folder, and sums their bytes."""

    folder: Path
    bytes: int = 0
    names: set[str] = field(default_factory=set)
    """The written files."""

    def put(self, kind: str, number: int, value: Any) -> str:
        """Write a JSON value. Returns the file's name without extension. Raises ``OSError``."""
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
    """Convert arrays to lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__}: not a JSON value")
