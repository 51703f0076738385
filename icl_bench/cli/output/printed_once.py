"""Prints what a command computes from a results folder; the same text again while nothing has changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Any, TextIO, cast

from icl_bench.cli.output.terminal import console
from icl_bench.results.kept_texts import kept_text
from icl_bench.results.storage import Place


class _Copied:
    """A stream that keeps a copy of what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self.parts = stream, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write and keep a text."""
        self.parts.append(text)
        return self._stream.write(text)


def print_once(results: Place, options: Mapping[str, Any], make: Callable[[Place], None]) -> None:
    """Print what ``make`` prints about a results folder, or the kept text of :func:`kept_text`.

    ``options`` are all options of the command, as JSON values.
    """

    def printed(place: Place) -> str:
        copied = _Copied(sys.stdout)
        with redirect_stdout(cast("TextIO", copied)):
            make(place)
        return "".join(copied.parts)

    text, is_kept = kept_text(results, {**options, **_appearance()}, printed)
    if is_kept:
        sys.stdout.write(text)


def _appearance() -> dict[str, Any]:
    """What the look of printed text depends on."""
    at = console()
    own = {name: value for name, value in os.environ.items() if name.startswith("ICL_BENCH_")}
    return {
        "width": at.width,
        "colours": [at.color_system, at.no_color, at.is_terminal, at.legacy_windows],
        "encoding": at.encoding,
        "environment": own,
    }
