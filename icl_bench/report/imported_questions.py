"""Questions of imported predictions: from their column ``question``, or from their task's rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
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

    @cached_property
    def test_questions(self) -> dict[str, str]:
        """Id -> question of each test row, without demonstrations."""
        return {name: query_text(self.spec.template, row) for name, row in self.test.items()}

    @cached_property
    def train_questions(self) -> dict[str, str]:
        """Id -> question of each train row, which is a query of some cells."""
        return {name: query_text(self.spec.template, row) for name, row in self.train.items()}


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
        self._given: dict[str, dict[str, Mapping[str, Any]]] = {}
        for meta in cells.values():
            spec = meta.task_as_given
            self._given.setdefault(meta.spec.task, {})[json.dumps(spec, sort_keys=True)] = spec
        self._data_dir, self._tasks = data_dir, tasks or {}
        self._known: dict[str, list[Rows]] = {}

    def of(self, record: Mapping[str, Any]) -> str | None:
        """The question of a prediction, without demonstrations; None if unknown.

        A row of the task's data is its question only if it has the same correct answer. If the folder's cells have
        several versions of the data with such rows, and these differ, the question is unknown.
        """
        if isinstance(stated := record.get(QUESTION), str):
            return stated
        name = str(record["task"])
        if name not in self._known:
            self._known[name] = list(self._versions(name))
        gold, test_id = str(record["gold"]), str(record["test_id"])
        golds = {gold, *golds_of(record.get("golds"), gold)}
        found = [
            (row.fields, query_text(rows.spec.template, row))
            for rows in self._known[name]
            if (row := rows.test.get(test_id)) is not None and golds & {*(row.golds or (row.answer,))}
        ]
        return found[-1][1] if found and all(fields == found[0][0] for fields, _ in found) else None

    def _versions(self, task: str) -> Iterator[Rows]:
        """The rows of each version of a task whose data are available."""
        given: list[Mapping[str, Any] | None] = [*self._given.get(task, {}).values()]
        for spec in given or [None]:
            try:
                rows = rows_of(self._spec(task, spec), {}, self._data_dir)
            except (UserError, ValueError):
                continue
            if isinstance(rows, Rows):
                yield rows

    def _spec(self, task: str, given: Mapping[str, Any] | None) -> TaskSpec:
        """The task as ``given`` in a cell of the folder, else the shipped one. Raises ``UserError``."""
        if task in self._tasks:
            return self._tasks[task]
        if given is not None:
            return TaskSpec.model_validate(given)
        if "/" in task or "\\" in task or task.lower().endswith((".yaml", ".yml")):
            raise UserError(f"task {task}: not the name of a task")  # paths in an import are not trusted
        return load_task(task)
