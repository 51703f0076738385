"""Prompts, targets and choices of its tasks against lm-evaluation-harness itself, to the letter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from on_lm_eval.asked import reference
from on_lm_eval.rows import FREE, OWN, answers, as_lines, rows

from icl_bench.metrics.exact_text import ExactText
from icl_bench.prompts.rendering import PlainForm
from icl_bench.tasks.answers import extracted
from icl_bench.tasks.examples import TaskData, load_data
from icl_bench.tasks.spec import TaskSpec
from icl_bench.tasks.task_files import load_task

TRAIN, TEST, SHOTS = range(6), range(6, 10), (0, 1, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of all tasks."""
    found = tmp_path_factory.mktemp("rows")
    for task in OWN:
        own = found / task.replace("/", "+")
        own.mkdir()
        (own / "train.jsonl").write_text(as_lines(rows(task, TRAIN)), encoding="utf-8")
        (own / "test.jsonl").write_text(as_lines(rows(task, TEST)), encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def theirs(folder: Path) -> dict[str, Any]:
    """What lm-evaluation-harness makes of the rows."""
    return reference(folder, SHOTS, OWN)


def _data(task: str, theirs: dict[str, Any], folder: Path) -> tuple[TaskSpec, TaskData]:
    spec = load_task(Path(theirs["tasks"]) / task)
    local = spec.data.model_copy(update={"hub": None, "folder": task.replace("/", "+")})
    return spec, load_data(spec.model_copy(update={"data": local}), data_dir=folder)


def test_tasks_of_more_than_thirty_kinds_are_compared():
    assert len({task.split("/")[0] for task in OWN}) > 30


@pytest.mark.parametrize("task", OWN)
def test_prompts_targets_and_choices_are_those_of_lm_eval(task: str, theirs: dict[str, Any], folder: Path):
    spec, data = _data(task, theirs, folder)
    asked, made = sorted(data.test, key=data.test_pool.index), theirs["made"][task]
    form = PlainForm(spec.template)
    assert len(asked) == len(TEST)
    for k in SHOTS:
        assert [form.whole(data.train[:k], row) for row in asked] == made["prompts"][str(k)]
    assert [_choices(data, number) for number in range(len(asked))] == made["choices"]
    for row, target, choices in zip(asked, made["targets"], made["choices"], strict=True):
        if isinstance(target, list):
            assert row.answer == target[0]
        else:
            assert row.answer == (choices[target] if isinstance(target, int) else target)
    assert made["until"] is None or list(spec.stop or ()) == made["until"]


@pytest.mark.parametrize("task", FREE)
def test_answers_are_scored_as_lm_eval_scores_them(task: str, theirs: dict[str, Any], folder: Path):
    spec, data = _data(task, theirs, folder)
    rule = spec.answer
    for row, scores in zip(data.test_pool, theirs["made"][task]["scores"], strict=True):
        texts = answers(row.answer)
        said = [extracted(rule, text) if rule else text.strip() for text in texts]
        golds = [row.golds or (row.answer,)] * len(said)
        found = ExactText().score_golds(golds, [text or "" for text in said])
        assert found["exact_text"].tolist() == scores, texts
    assert {score for row in theirs["made"][task]["scores"] for score in row} == {0, 1}


def _choices(data: TaskData, number: int) -> list[str] | None:
    labels = data.spec.labels
    if labels is None:
        return None
    return list(labels.choices if isinstance(labels.choices, tuple) else data.test_pool[number].choices)
