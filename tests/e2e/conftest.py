"""The installed program, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.program import PROGRAM, SWEEP, Run


@pytest.fixture(scope="session")
def program() -> Run:
    """Run a command; its output is text, its exit code is checked by the test."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *map(str, words)],
            capture_output=True,
            text=True,
            timeout=1800,
            env={**os.environ, "COLUMNS": "100"},
        )

    return run


@pytest.fixture(scope="session")
def swept(program: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a small sweep of the embedded task with the real model."""
    results = tmp_path_factory.mktemp("swept") / "results"
    done = program(*SWEEP, "--results", results)
    assert done.returncode == 0, done.stderr
    assert "stdlib · gemma3-270m" in done.stdout
    assert "4 cells computed" in done.stderr
    return results
