"""``icl-bench run --backend vllm``, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import icl_bench

pytestmark = pytest.mark.slow


def test_a_sweep_on_vllm_prints_its_table_and_nothing_of_the_engines_own(tmp_path: Path):
    words = ("run", "--backend", "vllm", "--task", "stdlib", "--model", "gemma3-270m", "--k", "5,20",
             "--draws", "1", "--test-size", "12", "--results", tmp_path)  # fmt: skip
    command = [sys.executable, "-m", "icl_bench", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900,
                          env={**os.environ, "COLUMNS": "100"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert said[0].startswith("stdlib: 12 test examples")
    assert "of them cached" in said[-2]
    assert said[-1].startswith("2 cells computed.")
    assert all(line.startswith("  note: ") for line in said[1:-2]), done.stderr
    assert done.stdout.startswith("stdlib · gemma3-270m")
    frame = icl_bench.read_results(tmp_path)
    assert set(frame["backend"]) == {"vllm"}
    assert frame["valid"].all()
    later = frame[frame["k"] == 20]
    assert (later["cached_tokens"] >= later["prompt_tokens"].min() - 256).all()

    again = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=900)
    assert again.returncode == 0
    assert [point["k"] for point in json.loads(again.stdout)["curves"]] == [5, 20]
