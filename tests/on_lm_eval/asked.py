"""Asks lm-evaluation-harness, in its own environment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

PYTHON = Path(__file__).parents[2] / ".venv-lm-eval" / "bin" / "python"


def reference(folder: Path, shots: Sequence[int], tasks: Iterable[str]) -> dict[str, Any]:
    """What ``reference.py`` says of tasks."""
    if not PYTHON.exists():
        pytest.skip("needs lm-evaluation-harness: make test-lm-eval")
    script = Path(__file__).with_name("reference.py")
    apart = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "ICL_BENCH_DATA")}
    apart |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
    said = [PYTHON, script, folder, ",".join(map(str, shots)), *tasks]
    done = subprocess.run(said, capture_output=True, text=True, env=apart, cwd=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
