"""Labels that a tokenizer writes alike end a run in one line, however they are scored."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fakes import model, write_rows, write_task
from support.models import qwen_tokenizer

from icl_bench.errors import UserError
from icl_bench.sweep.tokenized_task import Scoring, TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task

LABELS = ["\u00e9tat", "e\u0301tat", "order"]
"""The first two are the same text in two forms of Unicode."""


def task(folder: Path, scoring: Scoring) -> TokenizedTask:
    path = write_task(folder)
    for name in ("train", "test"):
        write_rows(folder / f"{name}.jsonl", [{"text": f"{name} {i}", "label": LABELS[i % 3]} for i in range(12)])
    return TokenizedTask(load_data(load_task(path)), model(), qwen_tokenizer(), scoring=scoring)


@pytest.mark.parametrize("scoring", ["greedy", "exact"])
def test_labels_of_the_same_tokens_are_named(scoring: Scoring, tmp_path: Path):
    with pytest.raises(UserError, match=r"^labels .* and .*: this model's tokenizer writes both with the same tokens"):
        _ = task(tmp_path, scoring).decoding


def test_an_answer_that_is_read_as_text_tells_them_apart(tmp_path: Path):
    assert task(tmp_path, "unconstrained").decoding.labels == tuple(f" {label}" for label in sorted(LABELS))
