"""The real model on real data sets, and on a user's own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.program import Run, as_words

import icl_bench

pytestmark = pytest.mark.slow


def test_more_demonstrations_help_on_banking77(program: Run, data_dir: Path, tmp_path: Path):
    done = program(
        *as_words("run --task banking77 --model gemma3-270m --k 1,50 --draws 1 --data-dir"),
        data_dir,
        "--results",
        tmp_path,
        "--json",
    )
    assert done.returncode == 0, done.stderr
    few, many = json.loads(done.stdout)["curves"]
    assert (few["k"], many["k"], many["test_rows"]) == (1, 50, 250)
    assert many["accuracy"] > few["accuracy"]
    assert many["accuracy"] > 0.15
    asked = json.loads((data_dir / "banking77" / "paper_test_ids.json").read_text())["row_ids"]
    assert set(icl_bench.read(tmp_path).predictions["test_id"]) == set(asked)


def test_free_text_is_scored_by_rouge_and_bertscore(program: Run, data_dir: Path, tmp_path: Path):
    done = program(
        *as_words("run --task samsum --model gemma3-270m --k 2 --draws 1 --test-size 2 --data-dir"),
        data_dir,
        "--results",
        tmp_path,
        "--json",
    )
    assert done.returncode == 0, done.stderr
    (point,) = json.loads(done.stdout)["curves"]
    assert point["accuracy"] is None
    for name in ("rouge1", "rouge2", "rougeL", "bertscore"):
        assert 0 <= point[name] <= 1
    assert point["bertscore"] > point["rouge2"]


TASK = """
name: tickets
data: {train: train.csv, test: test.jsonl, fields: {text: body, label: queue}}
template: {input: "ticket: {text}", output: "queue: {label}"}
labels: {style: words}
metrics: [accuracy, macro_f1]
"""


def test_a_task_of_ones_own_runs_from_its_path(program: Run, tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(TASK)
    rows = [(f"my card {i} is lost", "lost_card") for i in range(6)]
    rows += [(f"the app crashes {i}", "app_error") for i in range(6)]
    (tmp_path / "train.csv").write_text("body,queue\n" + "".join(f"{body},{queue}\n" for body, queue in rows))
    asked = [{"body": "I lost my card", "queue": "lost_card"}]
    asked += [{"body": "app error again", "queue": "app_error"}]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    results = tmp_path / "results"
    done = program(
        "run", "--task", tmp_path / "mine.yaml", *as_words("--model gemma3-270m --k 8 --draws 1 --results"), results
    )
    assert done.returncode == 0, done.stderr
    frame = icl_bench.read(results).predictions
    assert set(frame["gold"]) == {"lost card", "app error"}
    assert set(frame["prediction"]) <= {"lost card", "app error"}
    assert (frame["correct"] == (frame["gold"] == frame["prediction"])).all()
