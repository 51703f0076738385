"""Ten prompts of the study of Bertsch et al. 2025, byte for byte, from the ids of their demonstrations."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from icl_bench.prompts.rendering import prompt_text
from icl_bench.tasks.examples import TaskData, load_data
from icl_bench.tasks.task_files import load_task

TASKS = ("banking77", "clinic150", "nlu", "trec", "trec_fine")


@cache
def loaded(task: str, data_dir: Path) -> TaskData:
    return load_data(load_task(task), data_dir=data_dir)


@pytest.mark.parametrize("k", [5, 50])
@pytest.mark.parametrize("task", TASKS)
def test_the_same_ids_give_the_published_prompt(data_dir: Path, task: str, k: int):
    path = data_dir / "published" / "prompts" / f"{task}_n{k}_run0.json"
    published = json.loads(path.read_text(encoding="utf-8"))
    data = loaded(task, data_dir)
    train = {row.id: row for row in data.train}
    query = next(row for row in data.test_pool if row.id == published["test_id"])
    shown = [train[name] for name in published["demonstration_ids"]]
    assert len(shown) == k
    prompt = prompt_text(data.spec.template, shown, query)
    assert prompt.encode() == published["prompt"].encode()
    assert query.answer == published["answer"]
    assert query.id in {row.id for row in data.test}


def test_no_published_prompt_is_left_out(data_dir: Path):
    names = {path.name for path in (data_dir / "published" / "prompts").iterdir()}
    assert names == {f"{task}_n{k}_run0.json" for task in TASKS for k in (5, 50)}
