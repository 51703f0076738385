"""Free answers of a real model to real questions, from the command line to the report."""

from __future__ import annotations

import gzip
import json
import shutil
from itertools import islice
from pathlib import Path

import pytest
from support.program import Run, as_words

pytestmark = pytest.mark.slow
ASKED = ("--model", "gemma3-270m", "--dtype", "float32", "--k", "1,2", "--draws", "1")


def test_short_answers_are_compared_with_all_right_ones(program_here: Run, data_dir: Path, tmp_path: Path):
    results = ("--results", tmp_path / "results")
    data = ("--data-dir", data_dir)
    done = program_here("run", "--task", "squad2", *ASKED, "--test-size", "2", *data, *results)
    assert done.returncode == 0, done.stderr
    found = json.loads(program_here("summary", "--json", *results).stdout)
    assert {(row["k"], row["metric"]) for row in found["curves"]} == {(1, "exact_match"), (2, "exact_match")}
    shown = json.loads(program_here("show", "--task", "squad2", "--k", 1, "--json", *data, *results).stdout)
    assert "hash checked" in shown["checked"]
    assert shown["text"].strip()
    done = program_here("leaderboard", *results, "--out", tmp_path / "board.csv")
    assert done.returncode == 0, done.stderr
    assert "exact_match" in (tmp_path / "board.csv").read_text(encoding="utf-8")
    done = program_here("report", *results, *data, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert "exact match" in (tmp_path / "page.html").read_text(encoding="utf-8")
    done = program_here("check", "--baseline", tmp_path / "results", *results)
    assert done.returncode == 0, done.stderr
    assert "exact" in done.stdout


@pytest.mark.thorough
def test_a_number_is_taken_out_of_a_worked_solution(program_here: Run, data_dir: Path, tmp_path: Path):
    results, data = ("--results", tmp_path / "results"), ("--data-dir", data_dir)
    words = ("--k", "2", "--draws", "1", "--test-size", "1")
    done = program_here("run", "--task", "gsm8k", *ASKED[:4], *words, *data, *results)
    assert done.returncode == 0, done.stderr
    shown = json.loads(program_here("show", "--task", "gsm8k", "--k", 2, "--json", *data, *results).stdout)
    assert shown["gold"].isdigit()
    assert f"#### {shown['prediction']}" in shown["text"] or not shown["valid"]


def test_free_text_is_scored_by_rouge_and_bertscore(program_here: Run, data_dir: Path, tmp_path: Path):
    few, (train, *_) = tmp_path / "samsum", (data_dir / "samsum").glob("train.*")
    few.mkdir()
    shutil.copyfile(data_dir / "samsum" / "test.jsonl", few / "test.jsonl")
    with (gzip.open if train.suffix == ".gz" else open)(train, "rb") as rows:  # to read all takes longest
        (few / "train.jsonl").write_bytes(b"".join(islice(rows, 300)))
    words = f"run --task samsum --k 2 --draws 1 --test-size 2 {' '.join(ASKED[:4])} --data-dir {tmp_path} --json"
    done = program_here(*as_words(words), "--results", tmp_path / "results")
    assert done.returncode == 0, done.stderr
    (point,) = json.loads(done.stdout)["curves"]
    assert point["accuracy"] is None
    for name in ("rouge1", "rouge2", "rougeL", "bertscore"):
        assert 0 <= point[name] <= 1
    assert point["bertscore"] > point["rouge2"]
