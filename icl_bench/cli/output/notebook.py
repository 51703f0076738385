"""Progress in a notebook: a text below the cell that is updated in place.

The text goes through IPython's display handle. tqdm.auto and rich's own live displays need ipywidgets in a notebook,
and a stored notebook does not show their widgets.
"""

from __future__ import annotations

import io
import time
from typing import Any

from rich.console import RenderableType

from icl_bench.cli.output.terminal import Terminal
from icl_bench.escaping import visible

WIDTH = 100
"""Width of the text in characters."""

PAUSE_SECONDS = 0.25
"""Minimum seconds between two updates, because each is a message to the browser."""


class CellOutput:
    """Permanent notes, and below them a changing text until it is cleared."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self._changing: RenderableType | None = None
        self._handle: Any = None
        self._written = 0.0

    def note(self, text: str) -> None:
        """Add a line."""
        self._notes.append(visible(text))
        self._write()

    def show(self, changing: RenderableType) -> None:
        """Show this below the notes."""
        self._changing = changing
        self.changed()

    def changed(self) -> None:
        """Show the changes, unless the last update was very recent."""
        if time.monotonic() - self._written >= PAUSE_SECONDS:
            self._write()

    def clear(self) -> None:
        """Show only the notes."""
        self._changing = None
        self._write()

    def _write(self) -> None:
        from IPython.display import display

        self._written = time.monotonic()
        data = {"text/plain": "\n".join([*self._notes, *self._lines()])}
        if self._handle is not None:
            self._handle.update(data, raw=True)
        elif data["text/plain"]:
            self._handle = display(data, raw=True, display_id=True)

    def _lines(self) -> list[str]:
        """The changing part as plain text."""
        return [] if self._changing is None else plain_lines(self._changing)


def plain_lines(content: RenderableType) -> list[str]:
    """Content as plain text, without empty lines."""
    text = io.StringIO()
    Terminal(file=text, width=WIDTH, force_jupyter=False, color_system=None).print(content)
    return [line.rstrip() for line in text.getvalue().splitlines() if line.strip()]
