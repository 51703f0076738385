"""The accuracies of BIG-Bench Hard's authors come out of the answers that they stored, to the printed digits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
from support.in_process import said

from icl_bench.analysis.summary import summarise_folder

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bbh_answers.py"


def test_the_stored_answers_have_the_authors_accuracies_in_all_44_cases(data_dir: Path, tmp_path: Path):
    table, results = tmp_path / "bbh.parquet", tmp_path / "results"
    subprocess.run([sys.executable, SCRIPT, data_dir / "bbh" / "outputs.parquet", table], check=True)
    said("import", table, "--results", results)
    found = summarise_folder(results).curves
    accuracies = found.set_index(["task", "variant"])["accuracy"].astype(float).mul(100).round(2)
    published = pd.read_csv(data_dir / "bbh" / "accuracy.csv")
    published["task"] = "bbh_" + published["task"]
    expected = published.set_index(["task", "kind"])
    assert accuracies.to_dict() == expected["accuracy"].to_dict()
    assert found.set_index(["task", "variant"])["test_rows"].to_dict() == expected["rows"].to_dict()
    assert len(accuracies) == 44
