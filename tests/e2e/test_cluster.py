"""The cluster's benchmark, small: engines are killed and a machine is changed, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "cluster.py"


@pytest.mark.thorough
def test_engines_and_machines_may_die_and_every_prediction_is_there_once():
    words = ["--draws", "12", "--engines", "2", "--wait", "0.2", "--kills", "1"]
    alone = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: names of sockets are below it
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *words],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "RAY_TMPDIR": alone},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert (said["cells"], said["killed"], said["machine_changed"], said["equal"]) == (120, 1, True, True)
