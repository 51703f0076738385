"""Losses of long texts on disk: a Parquet file for each text, model and attention pattern."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.results.reading import ASIDE
from icl_bench.results.store import write_whole

META = b"icl_bench_perplexity"


def losses_folder(results: Path) -> Path:
    """Where they are in a results folder; predictions are read beside it."""
    return results / ASIDE


def write_losses(path: Path, windows: Sequence[np.ndarray], meta: Mapping[str, Any]) -> None:
    """Write each window's losses, ``(tokens - 1,)`` in nats, with what is to be said of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"window": i, "losses": row.astype(np.float32)} for i, row in enumerate(windows)]
    schema = pa.schema([("window", pa.int32()), ("losses", pa.list_(pa.float32()))])
    table = pa.Table.from_pylist(rows, schema)
    table = table.replace_schema_metadata({META: json.dumps(meta).encode()})
    write_whole(path, lambda stream: pq.write_table(table, stream, compression="zstd"))


def read_losses(results: Path) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Every file's meta and losses, ``(windows, tokens - 1)``, by name.

    A damaged file is left out with a warning, as among predictions.
    """
    import pyarrow.parquet as pq

    for path in sorted(losses_folder(results).rglob("*.parquet")):
        if path.name.startswith("."):
            continue
        try:
            table = pq.read_table(path)
            meta = json.loads((table.schema.metadata or {})[META])
        except (OSError, ValueError, KeyError):  # pyarrow's own errors are of these kinds
            warnings.warn(f"{path}: no file of losses, or a damaged one; left out", stacklevel=2)
            continue
        yield meta, np.array(table["losses"].to_pylist())
