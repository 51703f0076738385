"""Reads rows of JSONL, CSV and Parquet files."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from icl_bench.errors import UserError
from icl_bench.table_files import csv_rows, gunzip, parquet_table, refusing_damaged_parquet
from icl_bench.tasks.spec import Holdout
from icl_bench.tasks.splits import Split, StoredRow, hold_out, no_column, rows_digest
from icl_bench.text_files import decode, parse_json, read_file
from icl_bench.wording import one_line, short


def read_split(path: Path, split: str, columns: Mapping[str, str]) -> Split:
    """Read a JSONL, CSV or Parquet file by its extension. JSONL and CSV may be compressed (``.gz``)."""
    raw = content = read_file(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"] and suffixes[-2:-1] != [".parquet"]:
        suffixes.pop()
        content = gunzip(raw, str(path))
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


def read_cut(path: Path, holdout: Holdout, columns: Mapping[str, str]) -> dict[str, Split]:
    """Read one file and split off the test rows. Raises ``UserError``."""
    all_rows = read_split(path, "all", columns)
    splits = {}
    for split, part in hold_out(len(all_rows.rows), holdout.share, holdout.seed).items():
        rows = [all_rows.rows[i] for i in part]
        if not rows:
            raise UserError(f"{path}: its holdout leaves no {split} row of {len(all_rows.rows):,}")
        digest = rows_digest([row.cells for row in rows])
        splits[split] = Split(split, f"{path.name}:{split}", digest, rows)
    return splits


def _jsonl_rows(content: bytes, name: str) -> Iterator[StoredRow]:
    for number, line in enumerate(decode(content, name).split("\n"), 1):
        if not line or line.isspace():
            continue
        where = f"{name}:{number}"
        try:
            cells = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise UserError(one_line(f"{where}: not JSON: {error}")) from None
        if not isinstance(cells, dict):
            raise UserError(f"{where}: expected a JSON object, not {short(cells)}")
        yield StoredRow(where, cells)


def _csv_rows(content: bytes, file_name: str) -> Iterator[StoredRow]:
    rows = csv_rows(decode(content, file_name), file_name)
    where, header = next(rows, (file_name, []))
    if repeated := [name for name, count in Counter(header).items() if count > 1]:
        raise UserError(one_line(f"{where}: column {repeated[0]!r} appears twice"))
    for where, cells in rows:
        yield StoredRow(where, dict(zip(header, cells, strict=True)))


def _parquet_rows(content: bytes, name: str, columns: Mapping[str, str]) -> Iterator[StoredRow]:
    with refusing_damaged_parquet(name):
        table = parquet_table(content)
        records = table.select(wanted_columns(columns, table.column_names, name)).to_pylist()
    for number, record in enumerate(records, 1):
        yield StoredRow(f"{name} row {number}", record)


def wanted_columns(columns: Mapping[str, str], stored: Sequence[str], table_name: str) -> list[str]:
    """The columns of a table to read: those of the template's fields, and ``id`` if there is one.

    All columns if there are no fields: a Jinja template names columns itself.
    """
    if not columns:
        return list(stored)
    for column in columns.values():
        if _stored_in(column, stored) not in stored:
            raise UserError(no_column(table_name, column, stored))
    base_columns = {_stored_in(column, stored) for column in columns.values()}
    # a path may name a column whose value selects an item
    selectors = {part for c in columns.values() for part in re.findall(r"=([^.=]+)", c)}
    return sorted({*base_columns, *selectors, "id"} & set(stored))


def _stored_in(column: str, stored: Sequence[str]) -> str:
    """The column itself, or the first one of a path."""
    return column if column in stored else column.partition(".")[0]
