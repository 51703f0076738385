"""From a file of rows to a decision: prompts race against classifiers that learn from the same examples."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
from support.models import tiny_checkpoint
from support.program import Run

pytestmark = pytest.mark.slow

QUEUES = {"billing": "the invoice is wrong", "delivery": "where is my parcel", "login": "I forgot the password"}


def test_the_choice_of_a_race_with_classifiers_is_trained_and_kept_by_the_command_of_the_answer(
    program: Run, tmp_path: Path
):
    tiny_checkpoint(tmp_path / "tiny")
    with (tmp_path / "tickets.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["body", "queue"])
        rows.writerows([f"{text}, number {n}", queue] for n in range(50) for queue, text in QUEUES.items())
    race = ("--data", tmp_path / "tickets.csv", "--text", "body", "--label", "queue", "--model", tmp_path / "tiny")
    race += ("--k", "0,2", "--select", "random", "--draws", 2, "--train-k", 12, "--device", "cpu", "--dtype", "float32")
    results = tmp_path / "results"
    done = program("choose", *race, "--results", results)
    assert done.returncode == 0, done.stderr
    assert re.search("training (knn|encoder-probe|probe), k=12", done.stderr)
    assert "training lora" not in done.stderr  # nothing can be better than all right
    use, *_, following = done.stdout.splitlines()
    assert use.startswith(("Use: knn, k=12", "Use: encoder-probe, k=12", "Use: probe, k=12")), done.stdout
    command = shlex.split(following.partition(": ")[2], comments=True)
    done = program(*command[1:-1], tmp_path / "trained", "--quiet")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "trained").iterdir()
    assert json.loads((folder / "labels.json").read_text()) == sorted(QUEUES)
    assert (folder / "classifier.joblib").is_file()

    done = program("summary", "--results", results, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"knn", "encoder-probe", "probe", "lora", "random"} <= {one["select"] for one in found["races"]}
    again = program("choose", *race, "--results", results)
    assert again.returncode == 0, again.stderr
    assert "training" not in again.stderr
