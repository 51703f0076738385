"""Reads rows of JSONL, CSV and Parquet files."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from icl_bench.errors import UserError
from icl_bench.tasks.splits import Row, Split, no_column
from icl_bench.text_files import decode, read_file
from icl_bench.wording import one_line, short


def read_split(path: Path, split: str, columns: Mapping[str, str]) -> Split:
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
        wanted = wanted_columns(columns, table.column_names, shown)
        records = table.select(wanted).to_pylist()
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(one_line(f"{shown}: not a whole Parquet file: {error}")) from None
    for number, record in enumerate(records, 1):
        yield Row(f"{shown} row {number}", record)


def wanted_columns(columns: Mapping[str, str], there: Sequence[str], shown: str) -> list[str]:
    """The columns to read of a table: those of the template's fields, and ``id`` if it has one."""
    for column in columns.values():
        if column not in there:
            raise UserError(no_column(shown, column, there))
    return sorted({*columns.values(), "id"} & set(there))
