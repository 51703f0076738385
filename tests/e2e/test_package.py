"""What is published is what works: a wheel made of the sdist runs in another folder, with all its task files."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_wheel_that_is_made_of_the_sdist_runs_in_another_folder(tmp_path: Path):
    environment = {**os.environ, "PYTHON": sys.executable, "DIST": str(tmp_path / "dist")}
    done = subprocess.run(
        [ROOT / ".ci" / "package", sysconfig.get_path("purelib")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "built and tried: icl_bench-" in done.stdout
    assert {path.suffix for path in (tmp_path / "dist").iterdir()} == {".whl", ".gz"}
