"""The page's tables: the rows of long ones, and how many there are."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from icl_bench.report import tables
from icl_bench.report.tables import of_names


def confusions(*counts: int) -> pd.DataFrame:
    """So many rows of each task, one task after the other."""
    return pd.DataFrame(
        [{"task": f"t{number}", "model": "m", "k": k} for number, count in enumerate(counts) for k in range(count)]
    )


def test_a_long_table_has_rows_of_every_task_and_counts_all_of_them(monkeypatch: pytest.MonkeyPatch):
    """A page about one task shows its number of rows, also if the page does not have all."""
    monkeypatch.setattr(tables, "MOST_ROWS", 6)
    found = of_names(confusions(10, 2, 5), "Mistakes", "task model k")
    kept = [("t0", 0), ("t0", 1), ("t1", 0), ("t1", 1), ("t2", 0), ("t2", 1)]
    assert [(task, k) for task, _, k in found.rows] == kept
    assert json.loads(json.dumps(found.as_json()))["counts"] == [["t0", "m", 10], ["t1", "m", 2], ["t2", "m", 5]]
    assert found.total == 17


def test_a_whole_table_needs_no_counts():
    found = of_names(confusions(3, 2), "Mistakes", "task model k")
    assert (len(found.rows), found.total, found.as_json()["counts"]) == (5, 5, ())


def test_a_long_table_without_a_model_counts_by_task(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "MOST_ROWS", 2)
    found = of_names(confusions(3, 2).drop(columns="model"), "Mistakes", "task model k")
    assert found.counts == (("t0", None, 3), ("t1", None, 2))
