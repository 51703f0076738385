"""The examples of ``docs/extending.md`` for ruff and mypy.

Far from the tests that run them: late in the suite, mypy's cache has been filled by ``make types``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.extending import PAGE, path_with, write_package

pytestmark = pytest.mark.slow


def test_examples_pass_the_linter_and_the_type_checker_of_this_repository(tmp_path: Path) -> None:
    settings, package = PAGE.parents[1] / "pyproject.toml", write_package(tmp_path)
    checks = [
        ["ruff", "check", "--config", settings, package],
        ["ruff", "format", "--check", "--config", settings, package],
        ["mypy", "--strict", "--config-file", settings, "-p", "my_package"],
    ]
    for words in checks:
        environment = {**os.environ, "PYTHONPATH": path_with(tmp_path), "MYPYPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", *map(str, words)],
            cwd=settings.parent,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
