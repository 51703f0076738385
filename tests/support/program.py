"""How the end-to-end tests call the program."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

PROGRAM = [sys.executable, "-m", "icl_bench"]
SWEEP = ("run", "--task", "stdlib", "--model", "gemma3-270m", "--k", "1,10", "--draws", "2", "--test-size", "24")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def heed_interrupts() -> None:
    """For ``preexec_fn``: a process that a shell has started in the background ignores Ctrl-C, and
    so do its children.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def as_words(command: str) -> tuple[str, ...]:
    """A command line's words."""
    return tuple(command.split())
