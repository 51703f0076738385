"""The command line called in this process: fast, and every way to end is seen."""

from __future__ import annotations

import io
import os
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import NamedTuple, TextIO

from icl_bench.cli import main


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def run_command(*words: object, output: str = "utf-8") -> Ended:
    """Run a command. What it raises besides its exit, which would be a traceback, is raised.

    ``output`` is an encoding; or ``full``, which takes nothing; or ``closed``, a pipe that nobody
    reads.
    """
    said, told = io.BytesIO(), io.BytesIO()
    warns = warnings.showwarning
    err = io.TextIOWrapper(told, "utf-8", "backslashreplace", write_through=True)
    try:
        with _output(output, said) as out, redirect_stdout(out), redirect_stderr(err):
            main([str(word) for word in words])
    except SystemExit as ended:
        encoding = "utf-8" if output in ("full", "closed") else output
        return Ended(int(ended.code or 0), said.getvalue().decode(encoding, "replace"), told.getvalue().decode())
    finally:
        warnings.showwarning = warns  # the program shows warnings in its own way
    raise AssertionError("the command line exits by itself")


def said(*words: object, code: int = 0) -> str:
    """What a command that ends with this code prints: on standard error where it is not 0."""
    ended = run_command(*words)
    assert ended.code == code, ended.err
    return ended.err if code else ended.out


def completed(*words: object) -> subprocess.CompletedProcess[str]:
    """How a command ended, as of a process of its own."""
    ended = run_command(*words)
    return subprocess.CompletedProcess([str(word) for word in words], ended.code, ended.out, ended.err)


@contextmanager
def _output(kind: str, said: io.BytesIO) -> Iterator[TextIO]:
    if kind not in ("full", "closed"):
        yield io.TextIOWrapper(said, kind, write_through=True)
        return
    if kind == "full":
        writer = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, writer = os.pipe()
        os.close(reader)
    blocked = os.fdopen(writer, "w", encoding="utf-8")
    try:
        yield blocked
    finally:
        with suppress(OSError):  # what is left cannot be written either
            blocked.close()
