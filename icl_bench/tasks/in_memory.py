"""A task whose rows are given in Python: a pandas frame, a ``datasets.Dataset`` or a list of dictionaries."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PrivateAttr, ValidationError

from icl_bench.errors import UserError
from icl_bench.tasks.spec import TaskSpec, TestRows
from icl_bench.tasks.splits import Source, source_of_rows
from icl_bench.wording import plain, short

MEMORY = "memory"
"""The kind of the source in stored results: the rows themselves are not stored."""

LABEL_METRICS = ("accuracy", "macro_f1")
"""What a task with labels is scored by where no metric is named."""


class Task(TaskSpec):
    """A task with its rows, for ``task=`` of :func:`icl_bench.run` and its like.

    ``train`` and ``test`` are pandas frames, ``datasets.Dataset``s or lists of dictionaries, one row
    each; a column ``id`` names the rows where there is one. ``input`` and ``output`` are the template
    of a demonstration, with columns in braces: ``input="ticket: {text}"``, ``output="queue: {label}"``;
    ``fields`` maps a name in braces to a column that is called otherwise. Answers are labels unless
    ``labels=None`` makes them free text, which needs ``metrics``. Every other field of a task file may
    be given by its name (``separator``, ``answer``, ``stop``, ``pool``, ``max_answer_tokens``, ...);
    ``test_rows`` is the task file's ``test``.

    The rows decide the identity of a cell, by their hash; they are not written to the results. To
    rebuild a prompt later, give the task again: ``icl_bench.read(folder).show(..., task=task)``.

    Raises ``UserError`` for rows or fields that cannot be read.
    """

    _source: Source = PrivateAttr()

    def __init__(
        self,
        *,
        name: str,
        train: Any,
        test: Any,
        input: str,  # noqa: A002 - as in a task file
        output: str,
        fields: Mapping[str, str] | None = None,
        labels: Mapping[str, Any] | None = {},
        metrics: Sequence[str] = (),
        separator: str | None = None,
        test_rows: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        rows = {split: _records(given, split, name) for split, given in {"train": train, "test": test}.items()}
        names = {field for text in (input, output) for _, field, _, _ in _parts(text) if field}
        columns = {field: (fields or {}).get(field, field) for field in sorted(names)}
        columns |= dict(fields or {})
        template = {"input": input, "output": output, **({} if separator is None else {"separator": separator})}
        if not metrics and labels is not None:
            metrics = LABEL_METRICS
        try:
            super().__init__(
                name=name,
                data={"source": MEMORY, "fields": columns, **more.pop("data", {})},
                template=template,
                labels=None if labels is None else dict(labels),
                metrics=tuple(metrics),
                test=dict(test_rows or {"size": min(TestRows().size, len(rows["test"]))}),
                **more,
            )
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            said = first["msg"].removeprefix("Value error, ")
            raise UserError(f"task {plain(name)}: {where + ': ' if where else ''}{said}") from None
        self._source = source_of_rows(name, "rows given in Python", rows["train"], rows["test"], self.data.fields)


def given_rows(spec: TaskSpec, data_dir: Path | None) -> Source:  # noqa: ARG001
    """The rows of a task that has them. Raises ``UserError`` for one that was read from stored results."""
    if isinstance(spec, Task):
        return spec._source
    raise UserError(
        f"task {spec.name}: its rows were given in Python and are not stored; in Python, give the task again: "
        "icl_bench.read(folder).show(..., task=task)"
    )


def _parts(template: str) -> Iterable[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(string.Formatter().parse(template))
    except ValueError:  # the template's own check says what is wrong
        return []


def _records(given: Any, split: str, name: str) -> list[dict[str, Any]]:
    """The rows as dictionaries of plain Python values; missing ones are None. Raises ``UserError``."""
    if hasattr(given, "to_dict") and hasattr(given, "columns"):  # a pandas frame
        found = given.to_dict("records")
    elif hasattr(given, "to_list") and not isinstance(given, Mapping):  # a Dataset
        found = given.to_list()
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
        found = list(given)
    else:
        found = None
    if found is None or not all(isinstance(row, Mapping) for row in found):
        raise UserError(
            f"task {plain(name)}: {split}={short(given)}: expected a pandas frame, a datasets.Dataset or a list of "
            "dictionaries"
        )
    if not found:
        raise UserError(f"task {plain(name)}: {split} has no rows")
    return [{str(column): _plain(value) for column, value in row.items()} for row in found]


def _plain(value: Any) -> Any:
    """A cell as JSON has it: numbers of numpy as Python's, pandas' missing values as None."""
    if isinstance(value, np.ndarray):
        return [_plain(one) for one in value.tolist()]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | list | dict | bool):
        return value
    return None if value != value or type(value).__name__ in ("NAType", "NaTType") else value
