"""Writes rationales as a pool: rows with a model's rationales, and a task file for ``run``.

The rows are those of the task's source with all their columns. The test rows are copied next to the pool, with their
ids, so that results use the same test rows as the task itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from icl_bench.errors import UserError
from icl_bench.tasks.examples import Example, TaskData, stored_rows
from icl_bench.tasks.jinja import output_of
from icl_bench.tasks.spec import RationaleOrigin, TaskSpec
from icl_bench.tasks.splits import Source, StoredRow
from icl_bench.tasks.task_files import as_yaml, field_problem, known_groups, known_tasks, write_task_file
from icl_bench.tasks.templates import JinjaTemplate
from icl_bench.text_files import write_new
from icl_bench.wording import first_line, plain

ROW_ID, RATIONALE, ANSWER, LABEL = "row_id", "model_rationale", "model_answer", "row_label"
"""Added columns: the row's id, the rationale, the model's answer, and the label as written in prompts."""


@dataclass(frozen=True)
class Rationale:
    """The rationale of a model for one pool row."""

    row: Example
    text: str
    answer: str | None
    """The model's answer; None if it is not valid."""
    cut: bool = False
    """Whether it was truncated at the token limit."""


def files_of(out: Path) -> dict[str, Path]:
    """The files of rows of a task file, by split."""
    return {split: out.with_name(f"{out.stem}.{name}.jsonl") for split, name in (("train", "pool"), ("test", "test"))}


def check_out(out: Path, *, continued: bool = False) -> None:
    """Raise ``UserError`` unless a task file with its rows can be new files of this name.

    ``continued``: whether an earlier run of the same command may have started to write them.
    """
    if out.suffix.lower() not in (".yaml", ".yml"):
        raise UserError(f"--out {out}: a task file ends in .yaml")
    kinds = {"group": known_groups(), "task": known_tasks()}
    if kind := next((kind for kind, names in kinds.items() if out.stem in names), None):
        raise UserError(f"--out {out}: {out.stem} is the name of a shipped {kind}; give another name")
    for path in (out, *files_of(out).values()):
        # rows without their task file may belong to a killed process: write_rationales compares them
        if path.exists() and (path == out or not continued):
            raise _is_there(path)
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")


def _is_there(path: Path) -> UserError:
    return UserError(f"--out {path}: is there already; give another name")


def write_rationales(
    out: Path, data: TaskData, data_dir: Path | None, rationales: Sequence[Rationale], origin: RationaleOrigin
) -> list[Path]:
    """Write the pool, the test rows and the task file, and return their paths. Raises ``UserError``.

    ``data`` is the task's data, with the test rows to evaluate. The task file is written last. Existing rows of a
    killed process are kept if they are equal.
    """
    source, rows = stored_rows(data.spec, data_dir)
    own = {name for split in rows.values() for row in split.values() for name in row.cells}
    row_id, rationale, answer, label = (_free(name, own) for name in (ROW_ID, RATIONALE, ANSWER, LABEL))
    pins_labels = data.spec.labels is not None and data.spec.labels.choices is None
    paths = files_of(out)
    values = _values(data, source.columns, out, origin, {ROW_ID: row_id, RATIONALE: rationale, LABEL: label})

    def line(split: str, example: Example, more: Mapping[str, Any]) -> dict[str, Any]:
        written = {label: example.answer} if pins_labels else {}
        return {**rows[split][example.id].cells, row_id: example.id, **written, **more}

    lines = {
        "train": [line("train", one.row, {rationale: one.text, answer: one.answer}) for one in rationales],
        "test": [
            line("test", example, {} if data.spec.thought else {rationale: _right(data.spec, source, rows, example)})
            for example in data.test_pool
        ],
    }
    try:
        for split, path in paths.items():
            content = _jsonl(lines[split])
            if not path.exists():
                write_new(path, content)
            elif path.read_bytes() != content:
                raise UserError(
                    f"--out {path}: has rows of another command; delete it and run the same command again (answers are "
                    "kept)"
                )
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({first_line(error)})") from None
    write_task_file(out, as_yaml(values))
    return [out, *paths.values()]


def _right(spec: TaskSpec, source: Source, rows: Mapping[str, Mapping[str, StoredRow]], example: Example) -> Any:
    """The right answers of a test row, as in its source."""
    row = rows["test"][example.id]
    if isinstance(spec.template, JinjaTemplate):
        return output_of(spec.template.output, row, has_choices=False)
    return row.cell(source.columns[spec.template.answer_field])


def _free(name: str, taken: Iterable[str]) -> str:
    """A column name that the rows do not have."""
    while name in taken:
        name += "_"
    return name


def _jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, default=str) + "\n" for row in rows).encode()


def _values(
    data: TaskData, columns: Mapping[str, str], out: Path, origin: RationaleOrigin, added: Mapping[str, str]
) -> dict[str, Any]:
    """The fields of the new task file. The task keeps its name, so that points of both are in the same tables.

    Raises ``UserError`` for an invalid task.
    """
    spec, paths = data.spec, files_of(out)
    values = spec.model_dump(mode="json", exclude_defaults=True)
    values["description"] = f"{spec.name} with rationales that {origin.model} wrote for rows of its pool"
    fields = {name: column for name, column in columns.items() if name in _fields(spec)}
    values["data"] = {"train": paths["train"].name, "test": paths["test"].name, "id": added[ROW_ID]}
    if spec.data.passages is not None:
        values["data"]["passages"] = spec.data.passages.model_dump(mode="json", exclude_defaults=True)
    jinja = isinstance(spec.template, JinjaTemplate)
    if spec.thought is None:  # the whole text is the answer that demonstrations show
        values["template"] |= {"output": added[RATIONALE]} if jinja else {}
        fields[spec.template.answer_field] = added[RATIONALE]
    else:
        name = added[RATIONALE] if jinja else _free("rationale", set(spec.template.input_fields))
        values["answer"]["rationale"] = name
        fields[name] = added[RATIONALE]
    if spec.labels is not None and spec.labels.choices is None:  # the remaining rows may lack some
        kept = {"normalize"} & values["labels"].keys()
        values["labels"] = {"choices": list(data.labels), **{name: values["labels"][name] for name in kept}}
        values["template"] |= {"output": added[LABEL]} if jinja else {}
        fields[spec.template.answer_field] = added[LABEL]
    if not jinja:
        values["data"]["fields"] = fields
    values["test"] = {"ids": [row.id for row in data.test], **_too_long(spec)}
    values.pop("pool", None)
    values.pop("notes", None)
    values["rationales"] = origin.model_dump(mode="json", exclude_none=True)
    try:
        TaskSpec.model_validate(values)
    except ValidationError as error:
        raise UserError(f"--out {plain(str(out))}: {field_problem(error)}") from None
    return values


def _fields(spec: TaskSpec) -> set[str]:
    """The fields that the new task shows, without the rationale's."""
    own = {spec.labels.own} if spec.labels is not None and spec.labels.own is not None else set()
    return {*spec.template.input_fields, spec.template.answer_field, *own}


def _too_long(spec: TaskSpec) -> dict[str, Any]:
    return {} if spec.test.too_long == "refuse" else {"too_long": spec.test.too_long}
