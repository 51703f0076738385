"""A task whose rows are given in Python: a pandas or polars frame, a ``datasets.Dataset`` or a list of dictionaries."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PrivateAttr, ValidationError

from icl_bench.errors import UserError
from icl_bench.table_files import check_names
from icl_bench.tasks.drafts import draft_task
from icl_bench.tasks.spec import TaskSpec, TestRows
from icl_bench.tasks.splits import Source, name_classes, source_of_rows
from icl_bench.tasks.task_files import field_problem
from icl_bench.wording import plain, short

MEMORY = "memory"
"""The kind of the source in stored results. The rows themselves are not stored."""

LABEL_METRICS = ("accuracy", "macro_f1")
"""The default metrics of a task with labels."""


class Task(TaskSpec):
    """A task with its rows, for ``task=`` of :func:`icl_bench.run` and similar functions.

    ``train`` and ``test`` are pandas or polars frames, ``datasets.Dataset``s or lists of dictionaries. A column ``id``,
    if there is one, identifies the rows. ``input`` and ``output`` are the template of a demonstration, with
    columns in braces: ``input="ticket: {text}"``, ``output="queue: {label}"``; ``fields`` maps a name in braces to a
    column with another name. Answers are labels unless ``labels=None`` makes them free text, which needs ``metrics``.
    Class numbers of a ``datasets.Dataset`` become the names that it has for them.
    Every other field of a task file may be passed by its name (``separator``, ``answer``, ``stop``, ``pool``,
    ``max_answer_tokens``, ...); ``test_rows`` is the task file's ``test``.

    The hash of the rows is part of a cell's identity; the rows are not stored in the results. To rebuild a prompt
    later, pass the task again: ``icl_bench.read(folder).show(..., task=task)``.

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
        metrics: str | Sequence[str] | None = None,
        separator: str | None = None,
        test_rows: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        rows = {
            split: records_of(rows, f"task {plain(name)}: {split}")
            for split, rows in (("train", train), ("test", test))
        }
        if fields is None or isinstance(fields, Mapping):
            shown = _shown_fields(input, output, labels, more.get("answer"))
            fields = {field: field for field in shown} | dict(fields or {})
        data = more.pop("data", {})
        if isinstance(data, Mapping):
            data = {"source": MEMORY, "fields": fields, **data}
        template = {"input": input, "output": output, **({} if separator is None else {"separator": separator})}
        values = {"data": data, "template": template, "labels": labels, "metrics": _metrics(metrics, labels)}
        values["test"] = test_rows or {"size": min(TestRows().size, len(rows["test"]))}
        if labels is None and not metrics:
            raise UserError(f"task {plain(name)}: metrics: is missing; free text needs one, like exact_match or rouge")
        if "template" in more:
            raise UserError(f"task {plain(name)}: template: give input, output and separator")
        try:
            super().__init__(name=name, **values, **more)
        except ValidationError as error:
            raise UserError(f"task {plain(name)}: {field_problem(error)}") from None
        self._source = source_of_rows(name, "rows given in Python", rows["train"], rows["test"], self.data.fields)

    @staticmethod
    def from_file(path: str | Path, *, text: str | None = None, label: str | None = None) -> TaskSpec:
        """Create a task from one file of rows (``.csv``, ``.xlsx``, ``.jsonl``, ...). The file is not copied.

        ``text`` and ``label`` name its columns; without them the columns are guessed, and ``notes`` of the task report
        the guesses. The test split is a fifth of each label's rows. Raises ``UserError``.
        """
        return draft_task(Path(path), text, label).spec


def given_rows(spec: TaskSpec, data_dir: Path | None) -> Source:  # noqa: ARG001
    """The rows of a task that has them. Raises ``UserError`` for a task that was read from stored results."""
    if isinstance(spec, Task):
        return spec._source
    raise UserError(
        f"task {spec.name}: its rows were given in Python and are not stored; in Python, give the task again: "
        "icl_bench.read(folder).show(..., task=task)"
    )


def _shown_fields(input: str, output: str, labels: object, answer: object) -> list[str]:  # noqa: A002 - as in a task file
    """The fields that a template names in braces, the field of each row's own choices, and the field of thoughts."""
    found = {own} if (own := _own_choices(labels)) else set()
    rationale = answer.get("rationale") if isinstance(answer, Mapping) else None
    found |= {rationale} if isinstance(rationale, str) else set()
    for text in (input, output):
        with suppress(ValueError, TypeError):  # the template's own check reports the error
            found |= {field for _, field, _, _ in string.Formatter().parse(text) if field}
    return sorted(found)


def _own_choices(labels: object) -> str | None:
    """The field of each row's own choices, if there is one."""
    own = labels.get("choices") if isinstance(labels, Mapping) else None
    return own if isinstance(own, str) else None


def _metrics(given: Any, labels: object) -> Any:
    """The metrics, by default those of labels. Macro F1 is for labels that rows have in common."""
    if isinstance(given, str):
        return (given,)
    if given is not None or labels is None:
        return given
    in_common = not _own_choices(labels) or (isinstance(labels, Mapping) and labels.get("style") == "letters")
    return LABEL_METRICS if in_common else LABEL_METRICS[:1]


def records_of(given: Any, called: str) -> list[dict[str, Any]]:
    """The rows as dictionaries of plain Python values; missing ones are None.

    ``called`` is their name in messages. Raises ``UserError``.
    """
    if hasattr(given, "to_dicts"):  # a polars frame
        found = given.to_dicts()
    elif hasattr(given, "to_dict") and hasattr(given, "columns"):  # a pandas frame
        check_names(list(map(str, given.columns)), called)  # a dictionary keeps the last of two
        found = given.to_dict("records")
    elif hasattr(given, "to_list") and not isinstance(given, Mapping):  # a Dataset
        found = given.to_list()
        features = getattr(given, "features", None) or {}
        names = {column: getattr(feature, "names", None) for column, feature in features.items()}
        name_classes(found, {column: known for column, known in names.items() if known}, called)
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
        found = list(given)
    else:
        found = None
    if found is None or not all(isinstance(row, Mapping) for row in found):
        raise UserError(
            f"{called}={short(given)}: expected a pandas or polars frame, a datasets.Dataset or a list of dictionaries"
        )
    if not found:
        raise UserError(f"{called} has no rows")
    return [_named(row, called) for row in found]


def _named(values: Mapping[Any, Any], called: str) -> dict[str, Any]:
    """Plain values with texts as names, as in JSON. Raises ``UserError`` for two names with the same text."""
    named = {str(name): _plain(value, called) for name, value in values.items()}
    if len(named) < len(values):
        check_names(list(map(str, values)), called)
    return named


def _plain(value: Any, called: str) -> Any:
    """A cell as JSON has it: numbers of numpy as Python's, pandas' missing values as None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one, called) for one in value]
    if isinstance(value, dict):
        return _named(value, called)
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    return None if isinstance(value, float) and math.isnan(value) else value
