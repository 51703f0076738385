"""The real model on the embedded task, through the command line. Needs no data folder."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from support.program import SWEEP, Run, as_words

import icl_bench
from icl_bench.results.cells import AXES

pytestmark = pytest.mark.slow
KEY = ["k", "draw", "test_id"]


def test_a_sweep_leaves_one_file_a_cell_and_nothing_else(swept: Path):
    left = [p for p in swept.rglob("*") if p.is_file() and ".locks" not in p.parts]
    assert len(left) == 4
    assert all(p.suffix == ".parquet" for p in left)


def test_every_cell_has_every_test_row_once(swept: Path):
    frame = icl_bench.read(swept).predictions
    assert len(frame) == 4 * 24
    assert not frame.duplicated(KEY).any()
    assert (frame["correct"] == (frame["gold"] == frame["prediction"])).all()
    assert frame["valid"].all()
    assert (frame["cached_tokens"] < frame["prompt_tokens"]).all()


def test_running_again_computes_nothing(program: Run, swept: Path):
    before = {p: p.stat().st_mtime_ns for p in swept.rglob("*.parquet")}
    done = program(*SWEEP, "--results", swept)
    assert done.returncode == 0
    assert "0 cells computed, 4 already computed" in done.stderr
    assert {p: p.stat().st_mtime_ns for p in swept.rglob("*.parquet")} == before


def test_show_rebuilds_the_very_prompt(program: Run, swept: Path):
    row = icl_bench.read(swept).predictions.query("k == 10 and draw == 1").iloc[3]
    words = as_words(f"show --task stdlib --k 10 --draw 1 --results {swept} --json --test-id")
    done = program(*words, row["test_id"])
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert "hash checked" in shown["checked"]
    assert shown["prediction"] == row["prediction"]
    assert len(shown["demonstration_ids"]) == 10
    assert shown["prompt"].count("\n==\n") == 10


def test_export_writes_the_promised_columns(program: Run, swept: Path, tmp_path: Path):
    promised = [*AXES, "test_id", "gold", "prediction", "correct", "prompt_tokens", "cached_tokens", "backend"]
    for name in ("all.parquet", "all.csv"):
        out = tmp_path / name
        done = program("export", "--results", swept, "--out", out)
        assert done.returncode == 0, done.stderr
        frame = pd.read_parquet(out) if name.endswith("parquet") else pd.read_csv(out)
        assert list(frame.columns[: len(promised)]) == promised
        assert len(frame) == 96


def test_summary_gives_the_tables_that_scripts_read(program: Run, swept: Path):
    done = program("summary", "--results", swept, "--json")
    assert done.returncode == 0, done.stderr
    tables = json.loads(done.stdout)
    frame = icl_bench.read(swept).predictions
    assert [point["k"] for point in tables["curves"]] == [1, 10]
    for point in tables["curves"]:
        rows = frame[frame["k"] == point["k"]]
        assert point["draws"] == 2
        assert point["accuracy"] == pytest.approx(rows["correct"].mean())
        assert point["ci_low"] <= point["accuracy"] <= point["ci_high"]
    assert tables["saturation"][0]["max_k"] == 10
    assert tables["order_sensitivity"] == []
