"""All predictions of a results folder as one table in one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from icl_bench.errors import UserError
from icl_bench.store import read_table

if TYPE_CHECKING:
    import pyarrow as pa

FIRST = (
    "task", "model", "select", "order", "attention", "k", "draw", "test_id", "gold", "prediction",
    "correct", "prompt_tokens", "cached_tokens", "backend",
)  # fmt: skip
"""Columns that stand first, in this order; the others follow."""


def export_results(results: Path, out: Path) -> int:
    """Write Parquet or CSV by the file's ending; returns the number of predictions.

    Raises ``UserError`` for another ending, a file that cannot be written, or no results.
    """
    name = out.name.lower()
    if not name.endswith((".parquet", ".csv", ".csv.gz")):
        raise UserError(f"--out {out}: must end in .parquet, .csv or .csv.gz")
    import pyarrow.parquet as pq

    table = read_table(results)
    table = table.select([*FIRST, *(c for c in table.column_names if c not in FIRST)])
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            pq.write_table(table, out)
        else:
            frame = _as_json(table, "demonstration_ids").to_pandas()
            # where lines end in "\n" alone, csv leaves a "\r" in a cell without quotes
            frame.to_csv(out, index=False, lineterminator="\r\n")
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror or error})") from None
    return len(table)


def _as_json(table: pa.Table, column: str) -> pa.Table:
    """The table with the lists of one column as JSON, which CSV has no other form for."""
    import pyarrow as pa

    lists = table[column].to_pylist()
    texts = [None if ids is None else json.dumps(ids, ensure_ascii=False) for ids in lists]
    place = table.schema.get_field_index(column)
    return table.set_column(place, column, pa.array(texts, pa.string()))
