"""All predictions of a results folder as one table in one file.

A Parquet file can be a baseline, because its schema's metadata has the provenance of its predictions: a JSON object of
each variant's facts and package versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from icl_bench.errors import UserError
from icl_bench.escaping import no_formula
from icl_bench.results.cells import AXES, SCORES
from icl_bench.results.facts import UNKNOWN
from icl_bench.results.label_scores import HOW_TO_STORE
from icl_bench.results.reading import EXPORT_META, finished_cells, imports, read_table
from icl_bench.results.storage import Place
from icl_bench.results.stored_meta import CellMeta, Origin, as_json, read_origins
from icl_bench.table_files import data_frame, parquet_bytes
from icl_bench.text_files import write_whole, writing_whole
from icl_bench.wording import plain

FIRST = (*AXES, "test_id", "gold", "prediction", "correct", "prompt_tokens", "cached_tokens", "backend")
"""The first columns, in this order; the others follow."""


def export_results(results: Place, out: Path, scores: bool = False) -> int:
    """Write Parquet or CSV by the file's extension, and return the number of predictions.

    The same results give the same bytes, with the same version of pyarrow. With ``scores``, a column ``label_scores``
    has each label's log-probability, and a Parquet file's origins the labels' order.

    Raises ``UserError`` for another extension, a file that cannot be written, or no results.
    """
    name = out.name.lower()
    if not name.endswith((".parquet", ".csv", ".csv.gz")):
        raise UserError(f"--out {out}: must end in .parquet, .csv or .csv.gz")
    table = read_table(results, scores=scores)
    if scores and SCORES not in table.column_names:
        raise UserError(f"--scores: no prediction of {plain(results)} has stored label scores; {HOW_TO_STORE}")
    table = table.select([*FIRST, *(c for c in table.column_names if c not in FIRST)])
    try:
        if name.endswith(".parquet"):
            cells = (meta for _, meta in finished_cells(results, say=lambda _: None) if meta.facts.asks_test_rows)
            known = {**imported_origins(results), **origins(cells)}
            by_variant = {variant: origin.model_dump(exclude_none=True) for variant, origin in known.items()}
            about = as_json(by_variant, sort_keys=True)
            write_whole(out, parquet_bytes(table.replace_schema_metadata({EXPORT_META: about})))
        else:
            _write_csv(table, out, packed=name.endswith(".gz"))
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror or error})") from None
    return len(table)


def _write_csv(table: pa.Table, out: Path, *, packed: bool) -> None:
    for place, field in enumerate(table.schema):
        if pa.types.is_list(field.type):  # as JSON, because CSV has no lists
            lists = table[field.name].to_pylist()
            texts = [None if ids is None else json.dumps(ids, ensure_ascii=False) for ids in lists]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
    frame = data_frame(table)
    frame.columns = frame.columns.map(no_formula)
    for name, field in zip(frame.columns, table.schema, strict=True):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            frame[name] = frame[name].map(no_formula, na_action="ignore")
    # without a timestamp, the same results give the same bytes
    packing: Any = {"method": "gzip", "mtime": 0} if packed else None
    with writing_whole(out) as stream:
        # if lines end in "\n" alone, csv writes "\r" in a cell without quotes
        frame.to_csv(stream, index=False, lineterminator="\r\n", mode="wb", compression=packing)


NO_ORIGIN = Origin(facts=UNKNOWN)
"""The origin of an import of another program's predictions."""


def origins(cells: Iterable[CellMeta]) -> dict[str, Origin]:
    """Variant -> its origin."""
    by_variant: dict[str, Origin] = {}
    for cell in cells:
        metrics = list(cell.task.metrics) if cell.task is not None else None
        origin = by_variant.setdefault(
            cell.variant, Origin(facts=cell.facts, versions=[], label_order=cell.label_order, metrics=metrics)
        )
        if cell.versions not in origin.versions:
            origin.versions.append(cell.versions)
    return by_variant


def stated_origins(raw: bytes) -> bytes | None:
    """The origins in an export's metadata; None if the file is not an export or its origins cannot be read."""
    import pyarrow.parquet as pq

    try:
        stored = (pq.read_schema(pa.BufferReader(raw)).metadata or {}).get(EXPORT_META)
        if stored is not None:
            read_origins(stored)
    except (pa.ArrowException, OSError, ValueError):
        return None
    return stored


def imported_origins(place: Place) -> dict[str, Origin]:
    """Variant -> its origin, for imports of exports of this program."""
    by_variant: dict[str, Origin] = {}
    for _, content in imports(place):
        if (stored := stated_origins(content)) is not None:
            by_variant |= read_origins(stored)
    return by_variant
