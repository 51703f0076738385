"""Choices of each row as a user runs them: CommonsenseQA's questions and the real model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.program import Run

import icl_bench
from icl_bench.models.packaged_smollm2 import SMOLLM2_135M

pytestmark = pytest.mark.slow

WRITTEN_OUT = {
    "name": "written_out",
    "data": {
        "train": "commonsenseqa/train.jsonl",
        "test": "commonsenseqa/test.jsonl",
        "fields": {"question": "question", "choices": "choices", "answer": "answerKey"},
    },
    "template": {"input": "Question: {question}", "output": "Answer: {answer}"},
    "labels": {"choices": "choices", "gold": "key", "normalize": "bytes"},
    "metrics": ["accuracy"],
}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """The set's rows whose five choices differ."""
    import os

    folder = Path(os.environ.get("ICL_BENCH_DATA") or "../shared/data")
    path = folder / "odqa" / "commonsenseqa_dev.jsonl"
    if not path.is_file():
        pytest.skip("needs the data folder: set ICL_BENCH_DATA")
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [row for row in found if len({c["text"] for c in row["choices"]}) == 5]


@pytest.fixture(scope="module")
def data(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with some of them, in one file and in two splits, and a task of texts."""
    root = tmp_path_factory.mktemp("data")
    (root / "commonsenseqa").mkdir()
    (root / "odqa").mkdir()
    whole = "".join(json.dumps(row) + "\n" for row in rows[:90])
    (root / "odqa" / "commonsenseqa_dev.jsonl").write_text(whole, "utf-8")
    for name, part in {"train": rows[:60], "test": rows[60:90]}.items():
        lines = "".join(json.dumps(row) + "\n" for row in part)
        (root / "commonsenseqa" / f"{name}.jsonl").write_text(lines, "utf-8")
    (root / "written_out.yaml").write_text(json.dumps(WRITTEN_OUT), "utf-8")
    return root


@pytest.mark.parametrize(
    ("task", "model", "more"),
    [
        ("commonsenseqa", "gemma3-270m", ()),
        ("written_out.yaml", "gemma3-270m", ("--score", "exact")),
        ("written_out.yaml", "smollm2-135m-instruct", ("--chat", "turns")),
    ],
)
def test_answers_are_choices_of_their_row(
    program: Run, rows: list[dict[str, Any]], data: Path, tmp_path: Path, task: str, model: str, more: tuple[str, ...]
):
    if model != "gemma3-270m" and not SMOLLM2_135M.is_installed():
        pytest.skip(f"needs {SMOLLM2_135M.install}")
    name = str(data / task) if task.endswith(".yaml") else task
    done = program(
        "run",
        "--task",
        name,
        "--model",
        model,
        "--k",
        "3",
        "--draws",
        "1",
        "--test-size",
        "10",
        *more,
        "--data-dir",
        data,
        "--results",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    frame = icl_bench.read(tmp_path).predictions
    known = {row["id"]: row for row in rows}
    for said in frame.itertuples():
        row = known[said.test_id]
        texts = {choice["label"]: choice["text"] for choice in row["choices"]}
        written = {key: key if task == "commonsenseqa" else text for key, text in texts.items()}
        assert said.prediction in written.values()
        assert said.gold == written[row["answerKey"]]
        assert said.correct == (said.prediction == said.gold)
    assert frame["valid"].all()
    assert frame["cached_tokens"].min() > 0.3 * frame["prompt_tokens"].max()
    if "exact" in more:
        assert frame["label_mass"].between(0, 1).all()
        assert np.less_equal(frame["probability"], frame["label_mass"]).all()
    shown = program("show", "--task", frame["task"].iloc[0], "--k", "3", "--results", tmp_path, "--data-dir", data)
    assert "the very token ids that were run" in shown.stdout
    first = known[frame["test_id"].iloc[0]]["choices"][0]["text"]
    assert f"choices  {'A. ' if task == 'commonsenseqa' else ''}{first} | " in shown.stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"choices": []}, "choices has no choice; expected several"),
        ({"answerKey": "F"}, "answerKey is 'F', not the key of one of the row's choices"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_with_its_file(
    program: Run, rows: list[dict[str, Any]], data: Path, tmp_path: Path, change: Any, said: str
):
    for name, part in {"train": rows[:9], "test": [*rows[9:12], rows[12] | change]}.items():
        lines = "".join(json.dumps(row) + "\n" for row in part)
        (tmp_path / f"{name}.jsonl").write_text(lines, "utf-8")
    files = {"train": "train.jsonl", "test": "test.jsonl"}
    own = WRITTEN_OUT | {"data": {**WRITTEN_OUT["data"], **files}}  # type: ignore[dict-item]
    (tmp_path / "own.yaml").write_text(json.dumps(own), "utf-8")
    done = program(
        "run", "--task", tmp_path / "own.yaml", "--model", "gemma3-270m", "--k", "1", "--results", tmp_path / "results"
    )
    assert done.returncode == 2
    assert f"test.jsonl:4: {said}" in done.stderr.replace("\n", " ")
    assert not (tmp_path / "results").exists()
