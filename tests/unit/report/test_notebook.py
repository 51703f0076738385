"""What the notebooks read comes with the package, and is a part of what was published."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from icl_bench.report.notebook import SAMPLE, published_predictions


def test_without_a_data_folder_the_packaged_sample_is_read(monkeypatch):
    monkeypatch.delenv("ICL_BENCH_DATA", raising=False)
    assert published_predictions() == SAMPLE
    assert SAMPLE.stat().st_size < 200_000
    assert "Amanda Bertsch" in (SAMPLE.parent / "LICENSE").read_text()


def test_a_data_folder_without_the_publication_changes_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("ICL_BENCH_DATA", str(tmp_path))
    assert published_predictions() == SAMPLE


def test_a_data_folder_with_the_publication_is_read(tmp_path: Path, monkeypatch):
    whole = tmp_path / "published" / "predictions.parquet"
    whole.parent.mkdir()
    whole.touch()
    monkeypatch.setenv("ICL_BENCH_DATA", str(tmp_path))
    assert published_predictions() == whole


def test_the_sample_is_three_draws_of_each_published_setting(data_dir: Path):
    whole = pd.read_parquet(data_dir / "published" / "predictions.parquet")
    sample = pd.read_parquet(SAMPLE)
    pd.testing.assert_frame_equal(sample, whole[whole["draw"] < 3].reset_index(drop=True))
