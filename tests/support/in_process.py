"""The command line called in this process: fast, and every way to end is seen."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

from icl_bench.cli import main


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def run_command(*words: object) -> Ended:
    """Run a command. What it raises besides its exit, which would be a traceback, is raised."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main([str(word) for word in words])
    except SystemExit as ended:
        said, told = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
        return Ended(int(ended.code or 0), said, told)
    raise AssertionError("the command line exits by itself")
