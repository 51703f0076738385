"""Finds and reads a task's stored rows.

A source is a function from the task and the data folder (or None) to both splits;
:data:`icl_bench.registry.TASK_SOURCES` lists them by name.

Cells are never changed: white space and line breaks are kept.
"""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

from icl_bench.errors import NotHereError, UserError
from icl_bench.registry import TASK_SOURCES
from icl_bench.tasks.file_readers import read_cut, read_split
from icl_bench.tasks.hub import HubError, from_files, from_hub, hub_name
from icl_bench.tasks.spec import TaskSpec
from icl_bench.tasks.splits import Source, source_of_rows
from icl_bench.tasks.worked_examples import MARK, read_pool

DATA_DIR_VARIABLE = "ICL_BENCH_DATA"


def data_folder(spec: TaskSpec, data_dir: Path | None) -> Path | None:
    """The given data folder, else the environment's. Raises ``UserError`` if it is needed and missing."""
    if data_dir is not None:
        if not data_dir.is_dir():
            raise UserError(f"the data folder {data_dir} does not exist")
        return data_dir
    value = os.environ.get(DATA_DIR_VARIABLE)
    if not value:
        return None
    folder = Path(value)
    if folder.is_dir():
        return folder
    if spec.data.kind != "folder":
        return None
    raise UserError(f"the data folder {folder}, which {DATA_DIR_VARIABLE} names, does not exist")


def find_source(spec: TaskSpec, data_dir: Path | None) -> Source:
    """The task's rows, from the source that its ``data`` names or implies. The train rows are those of ``pool.file``,
    if there is one.
    """
    source: Source = TASK_SOURCES[spec.data.kind](spec, data_dir)
    file = spec.pool.file
    if file is None:
        return source
    if spec.data.kind == "folder":
        if data_dir is None:
            raise UserError(
                f"{spec.name}: pool.file {file} needs a data folder (give --data-dir, or {DATA_DIR_VARIABLE})"
            )
        file = data_dir / (spec.data.folder or spec.name) / file
    mark = (spec.answer and spec.answer.ends) or MARK
    pool = read_pool(file, spec.data.columns(dict(source.columns)), spec.data.encoding, mark)
    return replace(source, train=pool, origin=f"{source.origin}, pool {file}", notes=(*source.notes, *pool.notes))


def own_files(spec: TaskSpec, data_dir: Path | None) -> Source:  # noqa: ARG001
    """The files that the task file names."""
    data = spec.data
    if data.file is not None:
        return _one_file(spec, data.file)
    assert data.train is not None, "the task names its files"
    assert data.test is not None, "give both train and test files"
    train = read_split(data.train, "train", data.columns(data.fields), data.encoding)
    test = read_split(data.test, "test", data.columns(data.fields), data.encoding)
    return Source(f"files {data.train} and {data.test}", train, test, data.fields, (*train.notes, *test.notes))


def _one_file(spec: TaskSpec, path: Path) -> Source:
    data = spec.data
    assert data.holdout is not None, "a single file needs a holdout"
    splits = read_cut(path, data.holdout, data.columns(data.fields), data.encoding)
    strata = f" of each {data.holdout.stratify}" if data.holdout.stratify else ""
    cut = f"test: {data.holdout.share:g} of its rows{strata} by seed {data.holdout.seed}"
    return Source(f"file {path} ({cut})", splits["train"], splits["test"], data.fields, splits["train"].notes)


def embedded(spec: TaskSpec, data_dir: Path | None) -> Source:  # noqa: ARG001
    """The docstrings of Python's own standard library."""
    from icl_bench.tasks.stdlib_docstrings import EMBEDDED, build

    name = str(spec.data.embedded)
    stdlib = build(modules=EMBEDDED[name])
    rows = {
        split: [{"id": row.id, "text": row.text, "label": row.label} for row in rows]
        for split, rows in {"train": stdlib.train, "test": stdlib.test}.items()
    }
    origin = f"standard library of Python {platform.python_version()}"
    return source_of_rows(name, origin, rows["train"], rows["test"], spec.data.fields)


def data_folder_or_hub(spec: TaskSpec, data_dir: Path | None) -> Source:
    """The data folder's copy, else the hub's. Raises ``UserError`` if there is neither.

    Files named in the task are read from any location.
    """
    data, tried = spec.data, "no data folder is given"
    if data.hub is not None and data.hub.is_files:
        return from_files(spec.name, data.hub, data.columns(data.hub.fields or data.fields))
    if data_dir is not None:
        folder = data_dir / (data.folder or spec.name)
        if data.file is not None and (folder / data.file).is_file():
            return _one_file(spec, folder / data.file)
        names = () if data.file else ("train", "test")
        train_path, test_path = [_stored(folder, name) for name in names] or [None, None]
        if train_path and test_path:
            train = read_split(train_path, "train", data.columns(data.fields), data.encoding)
            test = read_split(test_path, "test", data.columns(data.fields), data.encoding)
            return Source(f"folder {folder}", train, test, data.fields)
        if train_path or test_path:
            lacking = "test" if train_path else "train"
            raise UserError(f"{folder}: {lacking}.jsonl (or .jsonl.gz) is missing")
        tried = f"{folder} has no {data.file or 'train.jsonl'}" if folder.is_dir() else f"there is no {folder}"
    advice = f"Give the data folder (--data-dir, or {DATA_DIR_VARIABLE})"
    if data.hub is None:
        raise UserError(f"{spec.name}: no data: {tried}. {advice}")
    try:
        source = from_hub(spec.name, data.hub, data.columns(data.hub.fields or data.fields))
    except HubError as error:
        raise NotHereError(
            f"{spec.name}: no data: {tried}, and {hub_name(data.hub)} on the hub gave {error}.\n"
            f"{advice} or a network connection to huggingface.co"
        ) from None
    if data_dir is None:
        return source
    return replace(source, notes=(*source.notes, f"{tried}: the hub's copy is used"))


def _stored(folder: Path, split: str) -> Path | None:
    paths = [p for p in (folder / f"{split}.jsonl", folder / f"{split}.jsonl.gz") if p.is_file()]
    if len(paths) > 1:
        raise UserError(f"{folder} has both {paths[0].name} and {paths[1].name}: keep one of them")
    return paths[0] if paths else None
