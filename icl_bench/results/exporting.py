"""All predictions of a results folder as one table in one file.

A Parquet file also says what decided its predictions, so that it can be a baseline: its schema's
metadata has a JSON object of each variant's facts, and the versions of what computed them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.results.reading import EXPORT_META, finished_cells, read_table
from icl_bench.results.storage import Place
from icl_bench.table_files import data_frame, parquet_bytes
from icl_bench.text_files import write_whole, writing_whole

if TYPE_CHECKING:
    import pyarrow as pa

FIRST = (
    "task",
    "model",
    "select",
    "order",
    "attention",
    "k",
    "draw",
    "test_id",
    "gold",
    "prediction",
    "correct",
    "prompt_tokens",
    "cached_tokens",
    "backend",
)
"""Columns that stand first, in this order; the others follow."""


def export_results(results: Place, out: Path) -> int:
    """Write Parquet or CSV by the file's ending; returns the number of predictions.

    The same results make the same bytes, with the same version of pyarrow.

    Raises ``UserError`` for another ending, a file that cannot be written, or no results.
    """
    name = out.name.lower()
    if not name.endswith((".parquet", ".csv", ".csv.gz")):
        raise UserError(f"--out {out}: must end in .parquet, .csv or .csv.gz")
    table = read_table(results)
    table = table.select([*FIRST, *(c for c in table.column_names if c not in FIRST)])
    try:
        if name.endswith(".parquet"):
            cells = (meta for _, meta in finished_cells(results, say=lambda _: None))
            about = json.dumps(origins(cells), sort_keys=True, ensure_ascii=False)
            write_whole(out, parquet_bytes(table.replace_schema_metadata({EXPORT_META: about})))
        else:
            _write_csv(table, out, packed=name.endswith(".gz"))
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror or error})") from None
    return len(table)


def _write_csv(table: pa.Table, out: Path, *, packed: bool) -> None:
    import pyarrow as pa

    for field in table.schema:
        if pa.types.is_list(field.type):
            table = _as_json(table, field.name)
    frame = data_frame(table)
    # without the time of day in it, the same results make the same bytes
    packing: Any = {"method": "gzip", "mtime": 0} if packed else None
    with writing_whole(out) as stream:
        # where lines end in "\n" alone, csv leaves a "\r" in a cell without quotes
        frame.to_csv(stream, index=False, lineterminator="\r\n", mode="wb", compression=packing)


def origins(cells: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Variant -> its ``facts``, and ``versions``: each set of versions that computed cells of it.

    ``cells`` are what cells say of themselves (``finished_cells``); imports say nothing.
    """
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        origin = found.setdefault(cell["variant"], {"facts": cell["facts"], "versions": []})
        versions = dict(cell.get("versions") or {})
        if versions not in origin["versions"]:
            origin["versions"].append(versions)
    return found


def _as_json(table: pa.Table, column: str) -> pa.Table:
    """The table with the lists of one column as JSON, which CSV has no other form for."""
    import pyarrow as pa

    lists = table[column].to_pylist()
    texts = [None if ids is None else json.dumps(ids, ensure_ascii=False) for ids in lists]
    place = table.schema.get_field_index(column)
    return table.set_column(place, column, pa.array(texts, pa.string()))
