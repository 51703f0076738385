"""The terminal that everything is printed on."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from icl_bench.errors import UserError
from icl_bench.escaping import visible

_UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class Terminal(Console):
    """Shows text as it is: nothing in it is markup, an emoji's name or a control character.

    Styles are given beside the text (``print(text, style=...)``, ``Text(text, style)``).
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """All text that is printed, also that of tables and titles, comes by here."""
        return super().render_str(visible(text), **options)


def console(stderr: bool = False) -> Terminal:
    """The terminal; wide enough for tables where the output goes into a file."""
    known = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Terminal(stderr=stderr, width=None if known else 120, soft_wrap=False)


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


def refuse_unwritable(error: OSError) -> None:
    """Raise ``UserError`` for what a stream raises that cannot be written, which names no file.

    Files of results say it themselves, so this is standard output. Nothing is raised for any other
    error, nor for a closed pipe: a reader that has seen enough, like head.
    """
    if error.filename is None and error.errno in _UNWRITABLE and error.errno != errno.EPIPE:
        drop_the_rest()
        raise UserError(f"standard output: cannot be written ({error.strerror})") from None


def drop_the_rest() -> None:
    """Write no more: else the interpreter would try once more at its end, and fail aloud."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
