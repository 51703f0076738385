"""The prompt without demonstrations with a real model, from the command line to the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.program import Run

pytestmark = pytest.mark.slow
ASKED = ("--task", "stdlib_six", "--model", "gemma3-270m", "--test-size", "12")


def test_curves_begin_without_demonstrations(program: Run, tmp_path: Path):
    results = ("--results", tmp_path / "results")
    sweep = ("--k", "0,1", "--draws", "2", "--select", "random,bm25")
    done = program("run", *ASKED, *sweep, *results)
    assert done.returncode == 0, done.stderr
    assert "5 cells computed" in done.stderr
    (found,) = (json.loads(program("summary", "--json", *results).stdout),)
    points = {(row["select"], row["k"]): row for row in found["curves"]}
    assert points.keys() == {(select, k) for select in ("random", "bm25") for k in (0, 1)}
    assert points["random", 0]["accuracy"] == points["bm25", 0]["accuracy"]
    assert [points["random", k]["draws"] for k in (0, 1)] == [1, 2]
    assert {row["k"] for row in found["retrieval_gain"]} == {1}

    shown = json.loads(program("show", "--task", "stdlib_six", "--k", 0, "--json", *results).stdout)
    assert shown["demonstration_ids"] == []
    assert "hash checked" in shown["checked"]
    done = program("report", *results, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert "log scale above 0" in (tmp_path / "page.html").read_text(encoding="utf-8")
