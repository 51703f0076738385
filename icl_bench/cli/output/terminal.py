"""The terminal that everything is printed on."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from icl_bench.errors import UserError


def console(stderr: bool = False) -> Console:
    """The terminal; wide enough for tables where the output goes into a file."""
    known = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, width=None if known else 120, soft_wrap=False)


def prepare_output() -> None:
    """Make standard output take any text: what its encoding lacks is written as ``\\u2013``.

    Raises ``UserError`` where it is closed: a file that is opened next would take its place.
    """
    if sys.stdout is None:
        raise UserError("standard output is closed; to see nothing of it, write > /dev/null")
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the program ends
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def flush_output() -> None:
    """Write what is still in memory. Raises ``UserError`` where standard output cannot take it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_the_rest()  # head has seen enough
    except OSError as error:
        _drop_the_rest()
        reason = error.strerror or error
        raise UserError(f"standard output: cannot be written ({reason})") from None


def _drop_the_rest() -> None:
    """Else the interpreter would try once more to write it, and fail aloud."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
