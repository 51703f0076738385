"""Reads a table of predictions from a file: Parquet, CSV, TSV, JSON or lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from icl_bench.errors import UserError
from icl_bench.escaping import formula_of
from icl_bench.results.exporting import FIRST
from icl_bench.results.importing.coded import CODED
from icl_bench.table_files import check_names, csv_rows, is_text, parquet_table, refusing_damaged_parquet
from icl_bench.text_files import parse_json
from icl_bench.wording import one_line, short

BATCH_ROWS = 50_000

EMPTY_IS_ANSWER = "prediction"
"""The column in which an empty cell of a CSV file is a value."""


def parquet_columns(raw: bytes, shown: str) -> pa.Table:
    """The columns of a Parquet file, without categories and extension types. Raises ``UserError``."""
    with refusing_damaged_parquet(shown):
        check_names(pq.read_schema(pa.BufferReader(raw)).names, shown)
        table = parquet_table(raw, coded=CODED)
        return pa.table({name: _decoded(table[name], name in CODED) for name in table.column_names})


def _decoded(column: pa.ChunkedArray, texts: bool) -> pa.ChunkedArray:
    """A column without an extension type or categories, except of ``texts``."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _decoded(column.cast(kind.storage_type), texts)
    if not types.is_dictionary(kind) or (texts and is_text(kind)):
        return column
    return column.cast(kind.value_type)


def csv_columns(text: str, shown: str, delimiter: str = ",") -> pa.Table:
    """All cells as text; an empty cell is a missing value, except in ``prediction``."""
    rows = (cells for _, cells in csv_rows(text, shown, delimiter))
    header = next(rows, [])
    check_names(header, shown)
    exported = tuple(header[: len(FIRST)]) == FIRST  # written by this program, with escaped formulas
    header = [formula_of(name) if exported else name for name in header]
    chunks: list[list[pa.Array]] = [[] for _ in header]
    while batch := list(islice(rows, BATCH_ROWS)):
        for name, chunk, cells in zip(header, chunks, zip(*batch, strict=True), strict=True):
            texts = pa.array(map(formula_of, cells) if exported else cells, pa.string())
            texts = texts if name == EMPTY_IS_ANSWER else pc.if_else(pc.equal(texts, ""), None, texts)
            chunk.append(texts.dictionary_encode() if name in CODED else texts)
    columns = [pa.chunked_array(chunk, chunk[0].type if chunk else pa.string()) for chunk in chunks]
    return pa.table(columns, names=header)


def json_value(text: str, shown: str) -> Any:
    """The value of a JSON file. Raises ``UserError``."""
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        raise UserError(one_line(f"{shown}: not JSON: {error}")) from None


def json_lines(text: str, shown: str) -> list[dict[str, Any]]:
    """The objects of a file with one on each line; blank lines are skipped. Raises ``UserError``."""
    return [
        _object(json_value(line, where), where)
        for number, line in enumerate(text.split("\n"), 1)
        if line and not line.isspace()
        for where in (f"{shown}:{number}",)
    ]


def json_items(text: str, shown: str) -> list[dict[str, Any]] | dict[str, Any]:
    """The objects of a JSON file: an array of them, one on each line, or a single one. Raises ``UserError``."""
    try:
        value = parse_json(text)
    except (ValueError, RecursionError):
        return json_lines(text, shown)
    if isinstance(value, list):
        return [_object(item, f"{shown} item {number:,}") for number, item in enumerate(value, 1)]
    return _object(value, shown)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected a JSON object, not {short(value)}")
    return value


def columns_of(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Objects as a table. A key that an object lacks is a missing value; a column of mixed types is text."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: Sequence[Any]) -> pa.ChunkedArray:
    try:
        return pa.chunked_array([pa.array(values)])
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return pa.chunked_array([pa.array([_text(value) for value in values], pa.string())])


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a pair, as of a cut emoji
