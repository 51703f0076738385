"""Queries that calibrate a cell's answers: rows of the pool, or content-free inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from icl_bench.demonstrations.perturbations import NONE
from icl_bench.errors import ChoiceError, UserError
from icl_bench.results.calibration import CONTEXTUAL, DOMAIN, Calibration
from icl_bench.sweep.prompt_group import PromptGroup
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.calibration_inputs import inputs_of as content_free
from icl_bench.tasks.data_report import inputs_of
from icl_bench.tasks.examples import Example
from icl_bench.tasks.spec import TaskSpec
from icl_bench.tasks.templates import JinjaTemplate


def check_task(calibration: Calibration, spec: TaskSpec) -> None:
    """Raise ``UserError`` if the task's answers cannot be calibrated. Checks only what is known without data."""
    labels = spec.labels
    if labels is not None and labels.own is not None and labels.style != "letters":
        raise UserError(f"--calibrate {calibration}: each row of task {spec.name} has its own labels")
    if labels is not None and labels.normalize != "none":
        raise UserError(
            f"--calibrate {calibration}: task {spec.name} divides log-probabilities by {labels.normalize} "
            "(labels.normalize); take a task without it"
        )
    if calibration.name in (CONTEXTUAL, DOMAIN) and isinstance(spec.template, JinjaTemplate):
        raise UserError(
            f"--calibrate {calibration}: replaces the fields of an input; task {spec.name} writes whole inputs "
            "by a Jinja template; take batch or batch,of=pool:N"
        )


def asked_group(group: PromptGroup, calibration: Calibration, numbers: Sequence[int]) -> PromptGroup:
    """The prompts that end with calibration queries instead of test rows.

    ``numbers`` are the k of these prompts. Raises ``UserError`` or ``ChoiceError`` if prompts of test rows and
    prompts of these queries would have different demonstrations.
    """
    task, choice = group.task, group.choice
    if task.perturbation != NONE or group.pattern.reads_vectors or group.pattern.reuses or group.pattern.compares:
        what = f"--perturbation {task.perturbation}" if task.perturbation != NONE else f"--attention {group.pattern}"
        raise UserError(f"--calibrate {calibration}: not with {what}")
    if calibration.rows is None and not choice.shared:
        raise UserError(
            f"--calibrate {calibration}: with {choice}, queries do not share their demonstrations; "
            "take batch or batch,of=pool:N"
        )
    if choice.sees_queries:
        raise UserError(
            f"--calibrate {calibration}: {choice} chooses demonstrations by the texts of the queries, and would choose "
            "others for the queries that calibrate; take batch"
        )
    largest = max(numbers)
    inputs, left = queries_of(task, calibration, group.draw)
    asking = PromptGroup(task.asking(str(calibration.queries), inputs, left), choice, group.order, group.draw)
    asking.pattern = group.pattern
    if largest > len(left):
        raise ChoiceError(
            f"--calibrate {calibration}: k={largest:,} leaves fewer than {calibration.rows:,} of the pool's "
            f"{len(task.pool):,} demonstrations"
        )
    for k in () if choice.retrieves else (largest,) if choice.nested else numbers:
        count = choice.shared_count(k, len(task.pool.labels)) if k else 0
        mine, others = (one.task.pool.shared(choice, group.draw, count) for one in (group, asking))
        if not np.array_equal(mine, others):
            raise ChoiceError(
                f"--calibrate {calibration}: without {calibration.rows:,} rows of the pool, {choice} chooses other "
                f"demonstrations (k={k:,}); take batch, or --select random"
            )
    return asking


def queries_of(task: TokenizedTask, calibration: Calibration, draw: int) -> tuple[tuple[Example, ...], np.ndarray]:
    """Return the calibration queries, and the train indices of the pool that remain for demonstrations.

    Pool rows are taken from the end of the draw's permutation, without rows that equal a test row. Raises
    ``ChoiceError`` if there are too few.
    """
    pool = task.pool
    if calibration.rows is None:
        return content_free(calibration.name, task.data.spec, task.data.train, task.seed), pool.rows
    tested = set(map(inputs_of, task.data.test))
    apart = [i for i in pool.drawn(draw)[::-1].tolist() if inputs_of(task.data.train[i]) not in tested]
    if len(apart) < calibration.rows:
        raise ChoiceError(
            f"--calibrate {calibration}: the pool has {len(apart):,} rows that are not test rows too; use fewer"
        )
    chosen = apart[: calibration.rows]
    return tuple(task.data.train[i] for i in chosen), pool.rows[~np.isin(pool.rows, chosen)]
