"""The real model on the embedded task, through the command line. Needs no data folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest
from support.program import PROGRAM, SWEEP, Run, as_words

import icl_bench

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
    assert "0 cells computed, 4 already there" in done.stderr
    assert {p: p.stat().st_mtime_ns for p in swept.rglob("*.parquet")} == before


def test_a_run_killed_at_any_moment_is_resumed_to_the_same_predictions(program: Run, swept: Path, tmp_path: Path):
    # one query a pack, so that the kill falls inside a cell
    command = [*PROGRAM, *SWEEP, "--results", str(tmp_path), "--pack", "1"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    journalled: list[bytes] = []
    while len(journalled) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
        for journal in tmp_path.rglob("*.journal.jsonl"):
            journalled = journal.read_bytes().splitlines()
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert len(journalled) >= 5, "the run ended before it could be killed"
    (journal,) = tmp_path.rglob("*.journal.jsonl")
    kept = journal.read_bytes()
    journal.write_bytes(kept + b'{"test_id": "torn')

    done = program(*SWEEP, "--results", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 cells computed" in done.stderr
    resumed = icl_bench.read(tmp_path).predictions.sort_values(KEY).reset_index(drop=True)
    whole = icl_bench.read(swept).predictions.sort_values(KEY).reset_index(drop=True)
    columns = [*KEY, "gold", "prediction", "prompt_tokens", "prompt_hash", "cell"]
    pd.testing.assert_frame_equal(resumed[columns].astype(str), whole[columns].astype(str), check_dtype=False)


def test_show_rebuilds_the_very_prompt(program: Run, swept: Path):
    row = icl_bench.read(swept).predictions.query("k == 10 and draw == 1").iloc[3]
    done = program(
        "show", "--task", "stdlib", "--k", 10, "--draw", 1, "--results", swept, "--test-id", row["test_id"], "--json"
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert "hash checked" in shown["checked"]
    assert shown["prediction"] == row["prediction"]
    assert len(shown["demonstration_ids"]) == 10
    assert shown["prompt"].count("\n==\n") == 10


def test_export_writes_the_promised_columns(program: Run, swept: Path, tmp_path: Path):
    promised = [
        "task",
        "model",
        "select",
        "order",
        "attention",
        "k",
        "draw",
        "test_id",
        "gold",
        "prediction",
        "correct",
        "prompt_tokens",
        "cached_tokens",
        "backend",
    ]
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


def test_other_ways_to_answer_choose_and_order_end_in_tables_of_their_own(program: Run, tmp_path: Path):
    small = (*as_words("run --task stdlib --model gemma3-270m --k 4 --draws 1 --test-size 6 --results"), tmp_path)
    for more in (
        ["--score", "exact"],
        ["--unconstrained"],
        ["--select", "random,bm25", "--order", "by-label,shuffled:1"],
    ):
        done = program(*small, *more)
        assert done.returncode == 0, done.stderr
    frame = icl_bench.read(tmp_path).predictions
    scored = frame[frame["probability"].notna()]
    assert len(scored) == 6
    assert scored["margin"].between(0, scored["probability"]).all()
    assert (scored["label_mass"] <= 1 + 1e-9).all()
    assert frame["variant"].nunique() == 3
    assert set(frame["order"].astype(str)) == {"drawn", "by-label", "shuffled:1"}
    retrieved = frame[frame["select"] == "bm25"]
    assert (retrieved["demonstration_ids"].map(len) == 4).all()
    assert not frame.loc[~frame["valid"], "correct"].any()
