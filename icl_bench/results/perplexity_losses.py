"""Losses of long texts on disk: a Parquet file for each text, model and attention pattern."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from icl_bench.results.reading import ASIDE
from icl_bench.results.storage import Place, Storage, put_or_refuse, storage_at
from icl_bench.results.stored_meta import LossesMeta, as_stored, checked
from icl_bench.table_files import parquet_bytes, parquet_table

META = b"icl_bench_perplexity"

UNREADABLE = (OSError, ValueError, KeyError, TypeError)
"""Errors of a damaged file, with pyarrow's own."""


def losses_name(model: str, file: str) -> str:
    """The name of a file of losses in a results folder, next to the predictions."""
    return f"{ASIDE}/{model}/{file}.parquet"


def write_losses(storage: Storage, name: str, windows: Sequence[np.ndarray], meta: LossesMeta) -> None:
    """Write each window's losses, ``(tokens - 1,)`` in nats, with their metadata.

    ``name`` comes from ``losses_name``. Raises ``UserError`` if it cannot be written.
    """
    rows = [{"window": i, "losses": row.astype(np.float32)} for i, row in enumerate(windows)]
    schema = pa.schema([("window", pa.int32()), ("losses", pa.list_(pa.float32()))])
    table = pa.Table.from_pylist(rows, schema)
    table = table.replace_schema_metadata({META: json.dumps(as_stored(meta)).encode()})
    put_or_refuse(storage, name, parquet_bytes(table))


def add_lengths(storage: Storage, name: str, costs: Mapping[int, Mapping[str, float]]) -> None:
    """Add lengths with their costs to a file of losses that lacks them; a damaged file is left.

    Raises ``UserError`` if it cannot be written.
    """
    try:
        meta, losses = _read(storage, name)
    except UNREADABLE:
        return
    lacking = {str(length): dict(cost) for length, cost in costs.items() if str(length) not in meta.by_length}
    if lacking:
        by_length = {**meta.by_length, **lacking}
        more = {"by_length": by_length, "lengths": sorted(map(int, by_length))}
        write_losses(storage, name, list(losses), meta.model_copy(update=more))


def _read(storage: Storage, name: str) -> tuple[LossesMeta, np.ndarray]:
    table = parquet_table(storage.read(name))
    meta = checked((table.schema.metadata or {})[META], LossesMeta)
    return meta, np.array(table["losses"].to_pylist(), np.float64)


def read_losses(results: Place) -> Iterator[tuple[LossesMeta, np.ndarray]]:
    """Metadata and losses, ``(windows, tokens - 1)``, of every file, sorted by name.

    A damaged file is skipped with a warning.
    """
    storage = storage_at(results)
    names = [name for name in storage.names(ASIDE) if name.endswith(".parquet")]
    for name in sorted(names, key=lambda name: name.split("/")):
        try:
            meta, losses = _read(storage, name)
        except UNREADABLE:
            where = storage.where(name)
            warnings.warn(f"{where}: not a file of losses, or damaged; left out", stacklevel=2)
            continue
        yield meta, losses
