"""How the end-to-end tests call the program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

PROGRAM = [sys.executable, "-m", "icl_bench"]
SWEEP = ("run", "--task", "stdlib", "--model", "gemma3-270m", "--k", "1,10", "--draws", "2",
         "--test-size", "24")  # fmt: skip

Run = Callable[..., "subprocess.CompletedProcess[str]"]
