"""Questions of imported predictions: from their column ``question``, or from their task's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icl_bench.errors import UserError
from icl_bench.metrics.scores import golds_of
from icl_bench.prompts.rendering import query_text
from icl_bench.results.cells import QUESTION
from icl_bench.results.stored_meta import CellMeta
from icl_bench.tasks.examples import Example, TaskData, load_data
from icl_bench.tasks.spec import TaskSpec, TestRows
from icl_bench.tasks.task_files import load_task


@dataclass(frozen=True)
class Rows:
    """A task with its rows by id."""

    spec: TaskSpec
    train: Mapping[str, Example]
    test: Mapping[str, Example]


def rows_of(spec: TaskSpec, stored: Mapping[str, str], data_dir: Path | None) -> Rows | str:
    """A task's rows, or why they differ from those of a run.

    ``stored`` are the hashes of the run's data files. A data set on the hub is downloaded only if the run used it, and
    files of a task only if they have an address. Raises ``UserError`` if there are no data.
    """
    hub = spec.data.hub
    if hub and not hub.is_files and not any(name.startswith(f"{hub.path}@") for name in stored):
        # the run used local files, so a report does not download others
        spec = spec.model_copy(update={"data": spec.data.model_copy(update={"hub": None})})
    one_row = spec.model_copy(update={"test": TestRows(size=1)})
    data: TaskData = load_data(one_row, data_dir=data_dir)
    if stored and any(stored.get(name) != digest for name, digest in data.files.items()):
        return f"No prompt: the data has changed since the run ({data.origin})."
    return Rows(spec, {e.id: e for e in data.train}, {e.id: e for e in data.test_pool})


class ImportedQuestions:
    """Finds the questions of imported predictions. Each task's data are read once."""

    def __init__(
        self, cells: Mapping[str, CellMeta], data_dir: Path | None, tasks: Mapping[str, TaskSpec] | None = None
    ) -> None:
        """``cells`` are the cells of the folder, ``tasks`` are known by name; others are shipped tasks."""
        self._metas = {meta.spec.task: meta for meta in cells.values()}
        self._data_dir, self._tasks = data_dir, tasks or {}
        self._known: dict[str, Rows | None] = {}

    def of(self, record: Mapping[str, Any]) -> str | None:
        """The question of a prediction, without demonstrations; None if unknown.

        A row of the task's data is its question only if it has the same correct answer.
        """
        if isinstance(stated := record.get(QUESTION), str):
            return stated
        name = str(record["task"])
        if name not in self._known:
            self._known[name] = self._rows(name)
        rows = self._known[name]
        row = rows.test.get(str(record["test_id"])) if rows is not None else None
        if rows is None or row is None:
            return None
        gold = str(record["gold"])
        same = {gold, *golds_of(record.get("golds"), gold)} & {*(row.golds or (row.answer,))}
        return query_text(rows.spec.template, row) if same else None

    def _rows(self, task: str) -> Rows | None:
        try:
            rows = rows_of(self._spec(task), {}, self._data_dir)
        except (UserError, ValueError):
            return None
        return None if isinstance(rows, str) else rows

    def _spec(self, task: str) -> TaskSpec:
        """The task as in a cell of the folder, else the shipped one. Raises ``UserError``."""
        if task in self._tasks:
            return self._tasks[task]
        if task in self._metas:
            return TaskSpec.model_validate(self._metas[task].task_as_given)
        if "/" in task or "\\" in task or task.lower().endswith((".yaml", ".yml")):
            raise UserError(f"task {task}: not the name of a task")  # paths in an import are not trusted
        return load_task(task)
