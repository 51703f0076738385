"""Finds and reads a task's rows as they are stored: its own files, the data folder, or the hub.

Nothing is repaired on the way: cells are taken as they stand in the source, white space and line
breaks included.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from icl_bench.errors import UserError, one_line, plain, short
from icl_bench.spec import HubSource, TaskSpec
from icl_bench.userfile import decode, read_file

DATA_DIR_VARIABLE = "ICL_BENCH_DATA"
HUB_SECONDS = 5.0
"""How long the hub has for its first answer."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file or a table, with all its columns."""

    where: str
    """File and line, for messages: ``train.jsonl:12``."""
    cells: Mapping[str, Any]

    def cell(self, column: str) -> Any:
        """One cell. Raises ``UserError`` that names the columns there are."""
        if column not in self.cells:
            raise UserError(_no_column(self.where, column, self.cells))
        return self.cells[column]


@dataclass(frozen=True)
class Split:
    """The rows of one split, in stored order."""

    name: str
    """``train`` or ``test``."""
    file: str
    sha256: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Source:
    """Both splits of a task, and where they are from."""

    origin: str
    train: Split
    test: Split
    columns: Mapping[str, str]
    """Template field -> column."""
    notes: tuple[str, ...] = ()


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
        train = _read_split(data.train, "train", data.fields)
        test = _read_split(data.test, "test", data.fields)
        return Source(f"files {data.train} and {data.test}", train, test, data.fields)
    tried = "no data folder is given"
    if data_dir is not None:
        folder = data_dir / (data.folder or spec.name)
        train_path, test_path = _stored(folder, "train"), _stored(folder, "test")
        if train_path and test_path:
            train = _read_split(train_path, "train", data.fields)
            test = _read_split(test_path, "test", data.fields)
            return Source(f"folder {folder}", train, test, data.fields)
        if train_path or test_path:
            lacking = "test" if train_path else "train"
            raise UserError(f"{folder}: {lacking}.jsonl (or .jsonl.gz) is missing")
        tried = f"{folder} has no train.jsonl" if folder.is_dir() else f"there is no {folder}"
    advice = f"Give the data folder (--data-dir, or {DATA_DIR_VARIABLE})"
    if data.hub is None:
        raise UserError(f"{spec.name}: no data: {tried}. {advice}")
    try:
        source = _from_hub(spec.name, data.hub, data.hub.fields or data.fields)
    except _HubError as error:
        raise UserError(
            f"{spec.name}: no data: {tried}, and {_hub_name(data.hub)} on the hub gave {error}.\n"
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
    from icl_bench import stdlib_task

    built = stdlib_task.build()
    splits = {}
    for split, rows in {"train": built.train, "test": built.test}.items():
        cells = [{"id": row.id, "text": row.text, "label": row.label} for row in rows]
        stored = [Row(row["id"], row) for row in cells]
        splits[split] = Split(split, f"stdlib-{split}", _digest(cells), stored)
    origin = f"standard library of Python {built.python}"
    return Source(origin, splits["train"], splits["test"], spec.data.fields)


# -- files --------------------------------------------------------------------------------------


def _no_column(where: str, column: str, columns: Iterable[str]) -> str:
    there = ", ".join(plain(c) for c in columns) or "none"
    return one_line(f"{where}: no column {column!r}; columns: {there}")


def _read_split(path: Path, split: str, columns: Mapping[str, str]) -> Split:
    """Read a JSONL, CSV or Parquet file, by its extension; the first two also as ``.gz``."""
    raw = content = read_file(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"] and suffixes[-2:-1] != [".parquet"]:
        suffixes.pop()
        try:
            content = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(one_line(f"{path}: not a whole gzip file: {error}")) from None
    match suffixes[-1:]:
        case [".jsonl"]:
            rows = list(_jsonl_rows(content, str(path)))
        case [".csv"]:
            rows = list(_csv_rows(content, str(path)))
        case [".parquet"]:
            rows = list(_parquet_rows(content, str(path), columns))
        case _:
            raise UserError(f"{path}: expected .jsonl[.gz], .csv[.gz] or .parquet")
    if not rows:
        raise UserError(f"{path}: has no rows")
    return Split(split, path.name, hashlib.sha256(raw).hexdigest(), rows)


def _jsonl_rows(content: bytes, shown: str) -> Iterator[Row]:
    for number, line in enumerate(decode(content, shown).split("\n"), 1):
        if not line or line.isspace():
            continue
        where = f"{shown}:{number}"
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(one_line(f"{where}: not JSON: {error}")) from None
        if not isinstance(cells, dict):
            raise UserError(f"{where}: expected a JSON object, not {short(cells)}")
        yield Row(where, cells)


def _csv_rows(content: bytes, shown: str) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(decode(content, shown), newline=""), strict=True)
    header: list[str] | None = None
    try:
        for cells in reader:
            where = f"{shown}:{reader.line_num}"
            if not cells:
                continue
            if header is None:
                header = cells
                if twice := [name for name, count in Counter(header).items() if count > 1]:
                    raise UserError(one_line(f"{where}: column {twice[0]!r} stands here twice"))
            elif len(cells) != len(header):
                raise UserError(f"{where}: {len(cells)} cells, but the header has {len(header)}")
            else:
                yield Row(where, dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise UserError(one_line(f"{shown}:{reader.line_num}: not CSV: {error}")) from None


def _parquet_rows(content: bytes, shown: str, columns: Mapping[str, str]) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(content))
        wanted = _wanted(columns, table.column_names, shown)
        records = table.select(wanted).to_pylist()
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(one_line(f"{shown}: not a whole Parquet file: {error}")) from None
    for number, record in enumerate(records, 1):
        yield Row(f"{shown} row {number}", record)


def _wanted(columns: Mapping[str, str], there: Sequence[str], shown: str) -> list[str]:
    """The columns to read of a table: those of the template's fields, and ``id`` if it has one."""
    for column in columns.values():
        if column not in there:
            raise UserError(_no_column(shown, column, there))
    return sorted({*columns.values(), "id"} & set(there))


# -- the hub ------------------------------------------------------------------------------------


class _HubError(Exception):
    """The hub did not give a data set; the message says why, in one line."""


def _hub_name(hub: HubSource) -> str:
    return f"{hub.path}@{hub.revision}"


def _from_hub(task: str, hub: HubSource, columns: Mapping[str, str]) -> Source:
    """Read a set of the Hugging Face hub; where it has no test split, cut one from train."""
    unreachable = None if Path(hub.path).is_dir() else _hub_unreachable(hub.path)
    cells = {"train": _hub_rows(hub, hub.train, columns, unreachable)}
    if hub.holdout is None:
        cells["test"] = _hub_rows(hub, hub.test, columns, unreachable)
    else:
        rows, share = cells["train"], hub.holdout.share
        order = np.random.default_rng(hub.holdout.seed).permutation(len(rows))
        cut = math.ceil(share * len(rows))
        cells = {"train": [rows[i] for i in order[cut:]], "test": [rows[i] for i in order[:cut]]}
    splits = {}
    for split, rows in cells.items():
        if not rows:
            raise UserError(f"{task}: {_hub_name(hub)} has no {split} rows")
        named = [Row(f"{_hub_name(hub)} {split} row {n}", row) for n, row in enumerate(rows)]
        splits[split] = Split(split, f"{_hub_name(hub)}:{split}", _digest(rows), named)
    return Source(f"hub {_hub_name(hub)}", splits["train"], splits["test"], columns)


def _hub_unreachable(path: str) -> str | None:
    """Why no answer comes from the hub, if none does; a refusal is an answer.

    One short request first, because ``datasets`` tries for half a minute. It is made in a thread:
    where packets are dropped, the request's own timeout counts anew for each address of the host.
    """
    from datasets import config
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    if config.HF_HUB_OFFLINE:
        return None  # nobody is asked, and datasets itself keeps to its cache
    reason: str | None = f"no answer in {HUB_SECONDS:g} s"

    def ask() -> None:
        nonlocal reason
        try:
            HfApi().dataset_info(path, expand=["sha"], timeout=HUB_SECONDS)
        except (HfHubHTTPError, ValueError):
            reason = None
        except Exception as error:  # whatever the library and its transports raise
            reason = f"{type(error).__name__}: {error}"
        else:
            reason = None

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return reason


def _hub_rows(
    hub: HubSource, split: str, columns: Mapping[str, str], unreachable: str | None
) -> list[dict[str, Any]]:
    """The needed columns of one split, class numbers replaced by the classes' names."""
    try:
        with _cache_only() if unreachable else nullcontext():
            import datasets

            table = datasets.load_dataset(hub.path, hub.name, revision=hub.revision, split=split)
    except Exception as error:  # whatever the library, its transports and its parsers raise
        lines = str(error).strip().splitlines() or [""]
        if unreachable and isinstance(error, ConnectionError):
            lines = [f"Couldn't reach {hub.path!r} on the Hub ({unreachable})"]
        raise _HubError(one_line(f"{type(error).__name__}: {lines[0]}"[:200])) from error
    wanted = _wanted(columns, table.column_names, _hub_name(hub))
    table = table.select_columns(wanted)
    rows: list[dict[str, Any]] = table.to_list()
    for column in wanted:
        if names := getattr(table.features[column], "names", None):
            for row in rows:
                number = row[column]
                row[column] = None if number is None or number < 0 else names[number]
    return rows


@contextmanager
def _cache_only() -> Iterator[None]:
    """Let ``datasets`` look into its cache only, as ``HF_HUB_OFFLINE=1`` does."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


def _digest(rows: Sequence[Mapping[str, Any]]) -> str:
    """SHA-256, in hex, of rows as canonical JSON lines."""
    lines = (json.dumps(row, sort_keys=True, default=str) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
