"""The program started from a process that has imported the heavy libraries already.

A command with a model imports torch and transformers first: on a slow machine that takes longer
than its work, and the end-to-end tests start dozens. So one process imports them once and forks a
child for each command. The child is the program: its own memory, directory, environment, output,
signals and exit code; only the imports are done. What imports cost is tested elsewhere
(``tests/unit/test_heavy_imports.py``), and a few tests start the program as a user does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

TESTS = Path(__file__).resolve().parents[1]
LONGEST_SECONDS = 1800
"""After which a command that hangs is ended, by a signal that its exit code tells."""

LATE = (
    "cli.options",
    "cli.training",
    "cli.output.findings",
    "cli.output.progress",
    "backends.transformers.backend",
    "training.adaptation.training",
    "report.build",
)
"""Modules that the command line imports when a command needs them, and which import most others."""


class WarmProgram:
    """Runs ``icl-bench`` commands, one at a time."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process, in today's environment, if it has not started."""
        self._started()

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], terminal: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in the directory of the caller. A first word that ends with ``.py`` is another
        program, a file. With a terminal's path it reads from it and writes to it.
        """
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder) / "out", Path(folder) / "err"
            asked = {
                "words": list(words),
                "environment": dict(environment),
                "folder": str(Path.cwd()),
                "given": terminal or os.devnull,
                "out": terminal or str(out),
                "err": terminal or str(err),
            }
            server = self._started()
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps(asked) + "\n")
            server.stdin.flush()
            code = server.stdout.readline()
            assert code, "the process that starts commands has ended"
            texts = ("", "") if terminal else (out.read_text(), err.read_text())
        return subprocess.CompletedProcess(list(words), int(code), *texts)

    def _started(self) -> subprocess.Popen[str]:
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "support.warm_program"],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self._server

    def close(self) -> None:
        """End the process."""
        if self._server is not None:
            self._server.communicate()


def _serve() -> None:
    """Fork a child for each line of standard input; print its exit code."""
    from icl_bench.quiet_libraries import hush_libraries, spare_imports

    hush_libraries()
    import torch  # noqa: F401

    spare_imports()
    import jinja2  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import scipy.special  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401
    from transformers.models.gemma3 import modeling_gemma3  # noqa: F401

    _serve_lines(sys.stdin, sys.stdout)


def _serve_lines(lines: IO[str], codes: IO[str]) -> None:
    """The same, with the libraries there. The program's modules look for plugins once, so another module path has a
    process of its own.
    """
    for module in ("cli", *LATE):
        importlib.import_module(f"icl_bench.{module}")

    # the libraries are garbage at no time: a child need not look at all of them again and again
    gc.collect()
    gc.freeze()
    helpers: dict[tuple[str, ...], tuple[IO[str], IO[str]]] = {}
    for line in lines:
        asked = json.loads(line)
        paths = asked["environment"].get("PYTHONPATH", "").split(os.pathsep)
        if own := tuple(path for path in paths if path and path not in sys.path):
            if own not in helpers:
                helpers[own] = _helper(own)
            there, back = helpers[own]
            print(line, end="", file=there, flush=True)
            code = back.readline()
            assert code, "a helper has ended"
            print(code, end="", file=codes, flush=True)
            continue
        child = os.fork()
        if not child:
            _be_the_program(**asked)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=codes, flush=True)
    for there, _ in helpers.values():
        there.close()
    for _, back in helpers.values():
        back.read()  # to its end, when the helper has ended


def _helper(own: tuple[str, ...]) -> tuple[IO[str], IO[str]]:
    """Where to write commands with these module paths in front, and where to read their exit codes."""
    (asked, there), (back, codes) = os.pipe(), os.pipe()
    if not os.fork():
        os.close(there)
        os.close(back)
        sys.path[:0] = own
        for name in [name for name in sys.modules if name.partition(".")[0] == "icl_bench"]:
            del sys.modules[name]
        with os.fdopen(asked) as lines, os.fdopen(codes, "w") as said:
            _serve_lines(lines, said)
        os._exit(0)
    os.close(asked)
    os.close(codes)
    return os.fdopen(there, "w"), os.fdopen(back)


def _be_the_program(
    words: list[str], environment: dict[str, str], folder: str, given: str, out: str, err: str
) -> NoReturn:
    signal.alarm(LONGEST_SECONDS)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    new = os.O_WRONLY | os.O_CREAT
    for number, path, flags in ((0, given, os.O_RDONLY), (1, out, new), (2, err, new)):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the program's, to its end
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    if words[0].endswith(".py"):
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")
        sys.exit()
    sys.argv = ["icl-bench", *words]
    from icl_bench.cli import main

    main()
    sys.exit()


if __name__ == "__main__":
    _serve()
