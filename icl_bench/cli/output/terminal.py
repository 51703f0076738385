"""The console that all commands print to."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from icl_bench.errors import UserError
from icl_bench.escaping import visible

_UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

_QUANTITY = re.compile(r"(?<!\S)([(~<+-]*\d(?:[\d.,]*\d)?) (?=([^\W\d_]\S*))")
"""A number and the word after it, such as ``0.24 s`` or ``1,000 queries``."""

_JOINT = "\ufdd0"
"""Stands for a space at which no line is broken. Unicode reserves it for such uses. Rich breaks at no-break spaces."""


class Terminal(Console):
    """A console that prints text literally: no markup, emoji names or control characters.

    Styles are separate arguments (``print(text, style=...)``, ``Text(text, style)``). A wrapped line does not end
    between a number and its unit.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape control characters; all printed text, including tables and titles, passes through here."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Segments of the text, in which a number and its unit are one word while lines are broken."""
        if isinstance(renderable, Text):
            renderable = renderable.copy()
            renderable.plain = _joined(renderable.plain, (options or self.options).max_width)
        for segment in super().render(renderable, options):
            yield segment._replace(text=segment.text.replace(_JOINT, " "))


def _joined(text: str, width: int) -> str:
    """The text with a joint between each number and its unit, unless they are wider than a line."""

    def joined(found: re.Match[str]) -> str:
        return found[0] if cell_len(found[0] + found[2]) > width else f"{found[1]}{_JOINT}"

    return _QUANTITY.sub(joined, text)


def console(stderr: bool = False) -> Terminal:
    """The console; 120 columns wide if the output is not a terminal."""
    known = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Terminal(stderr=stderr, width=None if known else 120, soft_wrap=False)


def prepare_output() -> None:
    """Make standard output accept any text; characters that its encoding lacks become ``\\u2013``.

    Raises ``UserError`` if it is closed, because the next opened file would take its place.
    """
    if sys.stdout is None:
        raise UserError("standard output is closed; to discard the output, use > /dev/null")
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the program ends
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def refuse_unwritable(error: OSError) -> None:
    """Raise ``UserError`` if standard output cannot be written.

    Its errors name no file, unlike those of result files. Does nothing for other errors and for a pipe
    that the reader, like head, has closed.
    """
    if error.filename is None and error.errno in _UNWRITABLE and error.errno != errno.EPIPE:
        drop_the_rest()
        raise UserError(f"standard output: cannot be written ({error.strerror})") from None


def drop_the_rest() -> None:
    """Discard further output; else the interpreter would flush at exit and print an error."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
