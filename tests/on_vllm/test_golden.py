"""vLLM's predictions are those of version 0.1.0, for a small run over three selectors."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
from support.golden_runs import carry_out

STORED = Path(__file__).parents[1] / "golden" / "predictions" / "vllm.csv"


@pytest.mark.slow
def test_a_run_gives_the_predictions_that_version_0_1_0_gave(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICL_BENCH_DATA", str(data_dir))
    before = pd.read_csv(STORED, keep_default_na=False, dtype=str)
    now = pd.read_csv(
        io.BytesIO(carry_out("vllm", tmp_path)), keep_default_na=False, dtype=str
    )[list(before.columns)]  # fmt: skip
    pd.testing.assert_frame_equal(now, before)
