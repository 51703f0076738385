"""The project's own check: the real model still answers as the stored baseline says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.program import Run

from icl_bench.sweep.plan import make_plan
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep

pytestmark = pytest.mark.slow
BASELINE = Path(__file__).parents[2] / "results" / "baseline" / "gemma3-270m.parquet"
ASKED = ("--model", "gemma3-270m", "--draws", 1, "--test-size", 100, "--dtype", "float32")


def test_the_program_answers_no_worse_than_its_baseline(program_here: Run, data_dir: Path, tmp_path: Path):
    words = ("run", "--task", "trec", "--k", 10, *ASKED, "--data-dir", data_dir)
    done = program_here(*words, "--results", tmp_path, "--quiet")
    assert done.returncode == 0, done.stderr
    words = ("check", "--baseline", BASELINE, "--results", tmp_path)
    assert program_here(*words).returncode == 2  # a draw, k=50 and the other task are missing
    done = program_here(*words, "--allow-missing", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert [(p["task"], p["k"], p["draws"], p["rows"]) for p in found["points"]] == [("trec", 10, 1, 100)]
    assert [(p["task"], p["k"]) for p in found["only_in_baseline"]] == [
        ("banking77", 10),
        ("banking77", 50),
        ("trec", 50),
    ]
    assert found["only_in_results"] == []
    # floats differ between machines, prompts do not
    assert [point["other_prompts"] for point in found["points"]] == [0]


def test_demonstrations_with_the_wrong_labels_fail_it(program_here: Run, data_dir: Path, tmp_path: Path):
    spec = RunSpec(task="trec", model="gemma3-270m", k="50", draws=1, test_size=100, data_dir=data_dir, dtype="float32")
    sweep = Sweep.prepare(spec)
    experiment = sweep.task
    assert len(experiment.pool)  # decided, like every fact, before the labels are mixed up
    train = experiment.data.train
    mixed = np.random.default_rng(0).permutation(len(train))
    wrong = [replace(row, answer=train[i].answer) for row, i in zip(train, mixed, strict=True)]
    experiment.data = replace(experiment.data, train=tuple(wrong))
    sweep.plan = make_plan(experiment, spec.k, spec.select, spec.order, spec.draws)
    assert not sweep.run(tmp_path).failed

    done = program_here("check", "--baseline", BASELINE, "--results", tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED: 1 of 1 point" in done.stdout
    assert "differs: the prompts' token ids, in 100 predictions of 1 point" in done.stdout
