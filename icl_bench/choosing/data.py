"""A task of the rows that a user has: ``choose --data`` writes its task file into the results folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from icl_bench.errors import UserError
from icl_bench.options import Options
from icl_bench.results.cells import digest
from icl_bench.results.storage import Place, folder_of, storage_at
from icl_bench.sweep.options import LabelColumn, TestSize, TextColumn
from icl_bench.text_files import write_whole
from icl_bench.wording import counted, few, plain

FOLDER = "_tasks"
"""Folder of the task files in a results folder; no task has this name."""

MARK = "# rows and columns: "
"""Begins the line of a task file that has the hash of what it was made of."""

ROWS_A_LABEL = 2
"""Rows that a label needs: one to show and one to test."""

EXPECTED = "expected a file of rows like tickets.csv, or in Python a pandas or polars frame"


class TaskOfData(NamedTuple):
    """A task that was made of rows, or was there."""

    path: Path
    said: tuple[str, ...]
    """What a user should know of it, a line each."""


class OfData(Options):
    """The columns of ``--data``, and how many of its test rows are asked."""

    about: ClassVar[str] = "choose"

    text: TextColumn = None
    label: LabelColumn = None
    test_size: TestSize = Field(default=None, ge=1)


def with_task(options: Mapping[str, Any], results: Place) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Options of ``choose`` with a task file in place of ``data``, and what to say of it. Raises ``UserError``."""
    given = {name: value for name, value in options.items() if name != "data"}
    data, task = options.get("data"), given.get("task")
    unnamed = task is None or (isinstance(task, str) and not task)
    if data is None:
        if unnamed:
            raise UserError("--task: is missing; name a task, or give rows of your own with --data tickets.csv")
        return given, ()
    if not unnamed:
        raise UserError("--data: makes a task of rows; leave --task out")
    of_data = OfData(**{name: given.get(name) for name in OfData.model_fields})
    given = {name: value for name, value in given.items() if name not in ("text", "label")}
    made = task_of_data(data, of_data.text, of_data.label, results, of_data.test_size)
    return given | {"task": str(made.path)}, made.said


def task_of_data(
    data: Any, text: str | None, label: str | None, results: Place, test_size: int | None = None
) -> TaskOfData:
    """Write the task file of some rows into the results folder, or find the one that is there.

    ``data`` is the path of a file of rows, or a frame, whose rows are written beside the task file. ``text`` and
    ``label`` are columns; without, they are guessed. A task file that was made of the same rows and columns is kept
    as it is, with what a user has changed in it. Raises ``UserError`` for rows that make no task, and where the
    task file is of others.
    """
    from icl_bench.tasks.data_report import report_on
    from icl_bench.tasks.drafts import draft_task
    from icl_bench.tasks.examples import load_data
    from icl_bench.tasks.task_files import draft_text, load_task

    root = folder_of(results)
    if root is None:
        raise UserError(
            f"--data: writes a task file into the results folder, and {results} is no folder; write it with "
            "icl-bench tasks --from-csv, and give it as --task"
        )
    storage_at(results).exists()  # an error if it is a file
    rows, shown, is_new = _file_of(data, root / FOLDER)
    try:
        draft = draft_task(rows, text, label)
        report = report_on(draft.data)
        needed = ROWS_A_LABEL * len(report.labels)
        total = report.train_rows + report.test_rows
        if total < needed:
            raise UserError(
                f"{rows}: {counted(total, 'row')} for {counted(len(report.labels), 'label')}; at least {needed:,} are "
                f"needed, {ROWS_A_LABEL} of each label: one to show and one to test"
            )
        out = root / FOLDER / f"{draft.values['name']}.yaml"
        fields = draft.values["data"]["fields"]
        known = [[one.id, dict(one.fields), one.answer] for one in (*draft.data.train, *draft.data.test_pool)]
        mark = f"{MARK}{digest([fields, known])[:16]}"
        there = _there(out, mark, rows, shown)
        if not there:
            _write(out, f"{mark}\n{draft_text(draft, rows, out)}")
        if there or test_size is not None:
            report = report_on(load_data(load_task(out), test_size=test_size))
    except UserError as error:
        if is_new:
            with suppress(OSError):
                rows.unlink()
        raise UserError(str(error).replace(str(rows), shown)) from None
    guessed = [one for one in draft.said if ", by guess" in one or one.startswith(("encoding", "id:", "labels."))]
    return TaskOfData(out, (*guessed, *_check(report), f"task file: {out}{' (as it was)' if there else ''}"))


def _file_of(data: Any, folder: Path) -> tuple[Path, str, bool]:
    """The file of the rows, what messages call it, and whether it was written now. Raises ``UserError``."""
    if isinstance(data, str | Path):
        if not str(data).strip():
            raise UserError(f"--data: is empty; {EXPECTED}")
        return Path(data), str(Path(data)), False
    from icl_bench.tasks.in_memory import records_of

    if isinstance(data, Mapping) or not hasattr(data, "__iter__"):
        raise UserError(f"--data {plain(type(data).__name__)}: {EXPECTED}")
    lines = [json.dumps(row, default=str) for row in records_of(data, "data")]
    content = "".join(f"{line}\n" for line in lines)
    path = folder / f"frame-{digest(content)[:8]}.jsonl"
    if path.exists():
        return path, "data", False
    _write(path, content)
    return path, "data", True


def _there(out: Path, mark: str, rows: Path, shown: str) -> bool:
    """Whether the task file is there and reads the same rows. Raises ``UserError`` if it is of others."""
    from icl_bench.tasks.task_files import load_task

    try:
        lines = out.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{out}: cannot be read ({error})") from None
    problem = "" if mark in lines else "made of other rows or columns"
    if not problem and ((read := load_task(out).data.file) is None or read.resolve() != rows.resolve()):
        problem = f"and reads {'other files' if read is None else read}"
    if problem:
        raise UserError(
            f"--data {shown}: {out} is there, {problem}; give another results folder (--results), another name of the "
            "file, or the task file itself (--task)"
        )
    return True


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def _check(report: Any) -> list[str]:
    """What the check of the data found: sizes and duplicates, and what makes scores too good or too low."""
    asked = f", {report.chosen_rows:,} of them used" if report.chosen_rows < report.test_rows else ""
    twice = f"; {counted(report.duplicates, 'text')} of these more than once" if report.duplicates else ""
    labels = f"{counted(len(report.labels), 'label')}; " if report.labels else ""
    sizes = (
        f"data: {labels}{counted(report.test_rows, 'row')} held out to test with{asked}, {report.train_rows:,} to take "
        f"demonstrations from{twice}"
    )
    found = []
    if near := list(dict.fromkeys([*report.chosen_leaks, *report.chosen_near_duplicates])):
        found.append(
            f"{counted(len(near), 'test row')} also among the demonstrations, the same or nearly ({few(near)}): scores "
            "may be too high"
        )
    if untested := [one.label for one in report.labels if not one.test]:
        have = "has" if len(untested) == 1 else "have"
        found.append(f"{counted(len(untested), 'label')} {have} too few rows for a test row ({few(untested)})")
    return [sizes, f"check: {'; '.join(found) or 'no test row is among the demonstrations'}"]
