"""The installed program, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from support.browser import chromium
from support.in_process import completed
from support.loaded_once import loaded_once
from support.places import imported_page
from support.program import SWEEP, Run
from support.warm_program import WarmProgram


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmProgram]:
    """What starts commands, in the environment that all tests have."""
    found = WarmProgram()
    found.start()
    yield found
    found.close()


@pytest.fixture(scope="session")
def program(warm: WarmProgram) -> Run:
    """Run a command; its output is text, its exit code is checked by the test."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return warm.run(list(map(str, words)), {**os.environ, "COLUMNS": "100"})

    return run


@pytest.fixture(scope="module")
def program_here() -> Iterator[Run]:
    """The same in this process, for several commands with a real model, which is loaded and checked once for all."""
    with loaded_once(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        yield completed


def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that tests side by side have in common."""
    root = tmp_path_factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


@pytest.fixture(scope="session")
def imports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a page of predictions of which nobody knows where they ran, with their tokens. Made once for
    tests side by side, which only read it.
    """
    folder = beside(tmp_path_factory) / "imports"
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            made = tmp_path_factory.mktemp("imported")
            imported_page(made)
            made.rename(folder)
    return folder


@pytest.fixture(scope="session")
def swept(program: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a small sweep of the embedded task with the real model, made once for tests side by side."""
    root = beside(tmp_path_factory)
    results = root / "swept" / "results"
    with FileLock(root / "swept.lock"):
        if not results.exists():
            made = tmp_path_factory.mktemp("swept") / "results"
            done = program(*SWEEP, "--results", made)
            assert done.returncode == 0, done.stderr
            assert "stdlib · gemma3-270m" in done.stdout
            assert "4 cells computed" in done.stderr
            results.parent.mkdir()
            made.rename(results)
    return results


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found
