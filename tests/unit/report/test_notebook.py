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


TABLE_2 = {
    ("banking77", "llama2"): (56.36, 56.36),
    ("banking77", "llama2-80k"): (88.08, 87.96),
    ("trec", "llama2"): (82.32, 80.52),
    ("trec", "llama2-80k"): (90.04, 90.04),
}
"""The paper's accuracies of random demonstrations: the best, and with the largest k."""


def test_the_samples_accuracies_are_those_of_the_paper():
    rows = pd.read_parquet(SAMPLE).query("select == 'random' and order == 'drawn'")
    right = rows.assign(right=rows["gold"] == rows["prediction"])
    by_k = (100 * right.groupby(["task", "model", "k"])["right"].mean()).round(2)
    found = {curve: (float(means.max()), float(means.iloc[-1])) for curve, means in by_k.groupby(["task", "model"])}
    assert found == TABLE_2
    notebook = (Path(__file__).parents[3] / "notebooks" / "04_against_the_paper.ipynb").read_text()
    assert all(f"{number:.2f}" in notebook for numbers in TABLE_2.values() for number in numbers)


def test_the_sample_is_all_that_is_published_but_for_most_draws_of_the_reordered(data_dir: Path):
    whole = pd.read_parquet(data_dir / "published" / "predictions.parquet")
    expected = whole[(whole["draw"] < 3) | ~whole["order"].str.startswith("shuffled:")]
    by = ["task", "model", "select", "order", "test_id", "k", "draw"]
    pd.testing.assert_frame_equal(pd.read_parquet(SAMPLE), expected.sort_values(by, ignore_index=True))
