"""The examples of ``docs/extending.md`` for ruff and mypy."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.extending import PAGE, path_with, write_package

pytestmark = pytest.mark.slow

SETTINGS = PAGE.parents[1] / "pyproject.toml"
FOR_EXAMPLES = """
[mypy]
strict = True
plugins = {plugins}
warn_unreachable = {warn_unreachable}
follow_imports = skip
ignore_missing_imports = True

[mypy-my_package.*,numpy.*,pandas.*,pydantic.*]
follow_imports = normal

[mypy-icl_bench.*]
follow_imports = normal
ignore_errors = True
"""
"""This repository's own settings, without what takes nearly all of the time: libraries that the package imports and no
example does. The package's own errors are another check's.
"""


def test_examples_pass_the_linter_and_the_type_checker_of_this_repository(tmp_path: Path) -> None:
    package, types = write_package(tmp_path), tmp_path / "mypy.ini"
    own = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))["tool"]["mypy"]
    assert own["strict"]
    types.write_text(FOR_EXAMPLES.format_map({**own, "plugins": ",".join(own["plugins"])}), encoding="utf-8")
    checks = [
        ["ruff", "check", "--config", SETTINGS, package],
        ["ruff", "format", "--check", "--config", SETTINGS, package],
        ["mypy", "--config-file", types, "--cache-dir", tmp_path / "cache", "-p", "my_package"],
    ]
    for words in checks:
        environment = {**os.environ, "PYTHONPATH": path_with(tmp_path), "MYPYPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", *map(str, words)],
            cwd=SETTINGS.parent,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
