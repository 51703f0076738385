"""What lm-evaluation-harness makes of rows. Runs in its own environment: make test-lm-eval.

    python reference.py FOLDER 0,2 TASK ...

``FOLDER/TASK`` (``+`` for ``/``) holds ``train.jsonl`` and ``test.jsonl``. A task is its path in the package, or a path
of its own, whose data is what its file says. Prints JSON: of each task the prompts of all test rows with the first train
rows, their targets and choices.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import lm_eval
from lm_eval.api.group import Group
from lm_eval.api.samplers import FirstNSampler
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from rows import answers

TASKS = Path(lm_eval.__file__).parent / "tasks"


def made(task: str, folder: Path, shots: list[int]) -> dict[str, Any]:
    """Prompts by number of demonstrations, targets and choices of one task."""
    said = load_yaml(TASKS / task)
    if isinstance(said.get("task"), list):
        manager = TaskManager(include_path=str(Path(task).parent), include_defaults=False)
        return {"tasks": dict(_of_group(manager.load(said["group"])["groups"][said["group"]]))}
    if Path(task).is_absolute():
        asked = ConfigurableTask(config=said)
        asked.sampler = FirstNSampler(list(asked.fewshot_docs()))
        return _made(asked, shots)
    split = said.get("test_split") or said["validation_split"]
    files = {}
    for name in ("fewshot_split", "training_split", "validation_split", "test_split"):
        if said.get(name):
            files[said[name]] = str(folder / ("test.jsonl" if said[name] == split else "train.jsonl"))
    told = {**said, "dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    asked = ConfigurableTask(config=told)
    lines = (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()
    asked.sampler = FirstNSampler([json.loads(line) for line in lines])
    return _made(asked, shots)


def _of_group(group: Group) -> Iterator[tuple[str, str]]:
    """The names of a group's tasks, and their first prompts."""
    for one in group._children.values():
        if isinstance(one, Group):
            yield from _of_group(one)
        else:
            yield one.config.task, one.fewshot_context(next(iter(one.eval_docs)), 0)


def _made(asked: ConfigurableTask, shots: list[int]) -> dict[str, Any]:
    rows = list(asked.eval_docs)
    chosen = asked.config.doc_to_choice is not None
    return {
        "prompts": {k: [asked.fewshot_context(row, k) for row in rows] for k in shots},
        "targets": [asked.doc_to_target(row) for row in rows],
        "choices": [asked.doc_to_choice(row) if chosen else None for row in rows],
        "scores": [_scores(asked, row) for row in rows] if not chosen else [],
        "until": asked.config.generation_kwargs and asked.config.generation_kwargs["until"],
    }


def _scores(asked: ConfigurableTask, row: dict[str, Any]) -> list[float | None]:
    """The exact match of each of the texts, where the task has that metric."""
    target = asked.doc_to_target(row)
    found = []
    for text in answers(target[0] if isinstance(target, list) else target):
        made: Any = [[text]]
        for step in asked._filters[0].filters:
            made = list(step().apply(made, [row]))
        found.append(asked.process_results(row, made).get("exact_match"))
    return found


def main() -> None:
    """See above."""
    logging.disable(logging.CRITICAL)
    datasets.disable_progress_bars()
    folder, shots = Path(sys.argv[1]), [int(k) for k in sys.argv[2].split(",")]
    found = {}
    for task in sys.argv[3:]:
        found[task] = made(task, folder / task.replace("/", "+"), shots)
    print(json.dumps({"tasks": str(TASKS), "made": found}))


if __name__ == "__main__":
    main()
