"""The terminal that everything is printed on."""

from __future__ import annotations

import os
import sys

from rich.console import Console


def console(stderr: bool = False) -> Console:
    """The terminal; wide enough for tables where the output goes into a file."""
    known = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, width=None if known else 120, soft_wrap=False)
