"""``icl-bench run --backend vllm``, as a user runs it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from support.golden_runs import VLLM, exported
from support.in_process import said as said_here

import icl_bench

pytestmark = pytest.mark.slow

STORED = Path(__file__).parents[1] / "golden" / "predictions" / "vllm.csv"


def ran(words: Sequence[str], data_dir: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "icl_bench", *words]
    settings = {**os.environ, "COLUMNS": "300", "ICL_BENCH_DATA": str(data_dir),
                "VLLM_CPU_KVCACHE_SPACE": "1"}  # fmt: skip  # another engine may be beside it
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=settings)
    assert done.returncode == 0, done.stderr
    return done


def test_a_sweep_on_vllm_prints_its_table_and_gives_the_predictions_of_version_0_1_0(tmp_path: Path, data_dir: Path):
    """Over three selectors; nothing of the engine's own is printed."""
    words = [*VLLM.split(), "--results", str(tmp_path / "results")]
    done = ran(words, data_dir)
    said = done.stderr.splitlines()
    assert said[0].startswith("trec: 8 test rows")
    assert "of them cached" in said[-2]
    assert said[-1].startswith("6 cells computed.")
    cells = [line for line in said[1:-2] if not line.startswith("  note: ")]
    assert [line.partition(" cells · ")[0] for line in cells] == [f"  {n} of 6" for n in range(1, 7)], done.stderr
    assert done.stdout.startswith("trec · gemma3-270m")

    frame = icl_bench.read(tmp_path / "results").predictions
    assert set(frame["backend"]) == {"vllm"}
    assert frame["valid"].all()
    before = pd.read_csv(STORED, keep_default_na=False, dtype=str)
    content = exported(tmp_path / "results", tmp_path / "vllm.csv")
    now = pd.read_csv(io.BytesIO(content), keep_default_na=False, dtype=str)
    pd.testing.assert_frame_equal(now[list(before.columns)], before)

    again = said_here(*words, "--data-dir", data_dir, "--json")
    assert {point["k"] for point in json.loads(again)["curves"]} == {6, 12}
