"""The installed program, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import chromium
from support.program import SWEEP, Run
from support.warm_program import WarmProgram


@pytest.fixture(scope="session")
def program() -> Iterator[Run]:
    """Run a command; its output is text, its exit code is checked by the test."""
    warm = WarmProgram()

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return warm.run(list(map(str, words)), {**os.environ, "COLUMNS": "100"})

    yield run
    warm.close()


@pytest.fixture(scope="session")
def swept(program: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a small sweep of the embedded task with the real model."""
    results = tmp_path_factory.mktemp("swept") / "results"
    done = program(*SWEEP, "--results", results)
    assert done.returncode == 0, done.stderr
    assert "stdlib · gemma3-270m" in done.stdout
    assert "4 cells computed" in done.stderr
    return results


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found
