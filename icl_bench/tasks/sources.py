"""Finds and reads a task's rows as they are stored: its own files, the data folder, or the hub.

Nothing is repaired on the way: cells are taken as they stand in the source, white space and line
breaks included.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from icl_bench.errors import UserError
from icl_bench.tasks.file_readers import read_split, rows_digest
from icl_bench.tasks.hub import HubError, from_hub, hub_name
from icl_bench.tasks.spec import TaskSpec
from icl_bench.tasks.splits import Row, Source, Split

DATA_DIR_VARIABLE = "ICL_BENCH_DATA"


def data_folder(spec: TaskSpec, given: Path | None) -> Path | None:
    """The given data folder, else the environment's; one that is needed must be there."""
    if given is not None:
        if not given.is_dir():
            raise UserError(f"the data folder {given} is not there")
        return given
    named = os.environ.get(DATA_DIR_VARIABLE)
    if not named:
        return None
    folder = Path(named)
    if folder.is_dir():
        return folder
    if spec.data.embedded or spec.data.train:
        return None
    raise UserError(f"the data folder {folder}, which {DATA_DIR_VARIABLE} names, is not there")


def find_source(spec: TaskSpec, data_dir: Path | None) -> Source:
    """The task's rows: its own files, the embedded task, the data folder, or the hub."""
    data = spec.data
    if data.embedded:
        return _embedded(spec)
    if data.train is not None and data.test is not None:
        train = read_split(data.train, "train", data.fields)
        test = read_split(data.test, "test", data.fields)
        return Source(f"files {data.train} and {data.test}", train, test, data.fields)
    tried = "no data folder is given"
    if data_dir is not None:
        folder = data_dir / (data.folder or spec.name)
        train_path, test_path = _stored(folder, "train"), _stored(folder, "test")
        if train_path and test_path:
            train = read_split(train_path, "train", data.fields)
            test = read_split(test_path, "test", data.fields)
            return Source(f"folder {folder}", train, test, data.fields)
        if train_path or test_path:
            lacking = "test" if train_path else "train"
            raise UserError(f"{folder}: {lacking}.jsonl (or .jsonl.gz) is missing")
        tried = f"{folder} has no train.jsonl" if folder.is_dir() else f"there is no {folder}"
    advice = f"Give the data folder (--data-dir, or {DATA_DIR_VARIABLE})"
    if data.hub is None:
        raise UserError(f"{spec.name}: no data: {tried}. {advice}")
    try:
        source = from_hub(spec.name, data.hub, data.hub.fields or data.fields)
    except HubError as error:
        raise UserError(
            f"{spec.name}: no data: {tried}, and {hub_name(data.hub)} on the hub gave {error}.\n"
            f"{advice} or a network connection to huggingface.co"
        ) from None
    if data_dir is None:
        return source
    return replace(source, notes=(f"{tried}: the hub's copy is used",))


def _stored(folder: Path, split: str) -> Path | None:
    found = [p for p in (folder / f"{split}.jsonl", folder / f"{split}.jsonl.gz") if p.is_file()]
    if len(found) > 1:
        raise UserError(f"{folder} has both {found[0].name} and {found[1].name}: keep one of them")
    return found[0] if found else None


def _embedded(spec: TaskSpec) -> Source:
    from icl_bench.tasks.stdlib_docstrings import EMBEDDED, build

    name = str(spec.data.embedded)
    built = build(modules=EMBEDDED[name])
    splits = {}
    for split, rows in {"train": built.train, "test": built.test}.items():
        cells = [{"id": row.id, "text": row.text, "label": row.label} for row in rows]
        stored = [Row(row["id"], row) for row in cells]
        splits[split] = Split(split, f"{name}-{split}", rows_digest(cells), stored)
    origin = f"standard library of Python {built.python}"
    return Source(origin, splits["train"], splits["test"], spec.data.fields)
