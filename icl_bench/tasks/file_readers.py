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
from icl_bench.tasks.splits import Row, Split, hold_out, no_column, rows_digest
from icl_bench.text_files import decode, parse_json, read_file
from icl_bench.wording import one_line, short


def read_split(path: Path, split: str, columns: Mapping[str, str]) -> Split:
    """Read a JSONL, CSV or Parquet file, by its extension; the first two also as ``.gz``."""
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
    """Read one file and cut the test split from its rows. Raises ``UserError``."""
    whole = read_split(path, "all", columns)
    found = {}
    for split, part in hold_out(len(whole.rows), holdout.share, holdout.seed).items():
        rows = [whole.rows[i] for i in part]
        if not rows:
            raise UserError(f"{path}: its holdout leaves no {split} row of {len(whole.rows):,}")
        digest = rows_digest([row.cells for row in rows])
        found[split] = Split(split, f"{path.name}:{split}", digest, rows)
    return found


def _jsonl_rows(content: bytes, shown: str) -> Iterator[Row]:
    for number, line in enumerate(decode(content, shown).split("\n"), 1):
        if not line or line.isspace():
            continue
        where = f"{shown}:{number}"
        try:
            cells = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise UserError(one_line(f"{where}: not JSON: {error}")) from None
        if not isinstance(cells, dict):
            raise UserError(f"{where}: expected a JSON object, not {short(cells)}")
        yield Row(where, cells)


def _csv_rows(content: bytes, shown: str) -> Iterator[Row]:
    rows = csv_rows(decode(content, shown), shown)
    where, header = next(rows, (shown, []))
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise UserError(one_line(f"{where}: column {twice[0]!r} stands here twice"))
    for where, cells in rows:
        yield Row(where, dict(zip(header, cells, strict=True)))


def _parquet_rows(content: bytes, shown: str, columns: Mapping[str, str]) -> Iterator[Row]:
    with refusing_damaged_parquet(shown):
        table = parquet_table(content)
        records = table.select(wanted_columns(columns, table.column_names, shown)).to_pylist()
    for number, record in enumerate(records, 1):
        yield Row(f"{shown} row {number}", record)


def wanted_columns(columns: Mapping[str, str], there: Sequence[str], shown: str) -> list[str]:
    """The columns to read of a table: those of the template's fields, and ``id`` if it has one.

    All of them for a template that has no fields, but names columns.
    """
    if not columns:
        return list(there)
    for column in columns.values():
        if _stored_in(column, there) not in there:
            raise UserError(no_column(shown, column, there))
    found = {_stored_in(column, there) for column in columns.values()}
    # a path may name a column whose value tells which item is meant
    named = {part for c in columns.values() for part in re.findall(r"=([^.=]+)", c)}
    return sorted({*found, *named, "id"} & set(there))


def _stored_in(column: str, there: Sequence[str]) -> str:
    """The column itself, or the one that a path begins with."""
    return column if column in there else column.partition(".")[0]
