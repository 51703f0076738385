"""All predictions of a results folder as one table in one file."""

from __future__ import annotations

from pathlib import Path

from icl_bench.errors import UserError
from icl_bench.store import read_results

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
    frame = read_results(results)
    frame = frame[[*FIRST, *(c for c in frame.columns if c not in FIRST)]]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            frame.to_parquet(out, index=False)
        else:
            frame.to_csv(out, index=False)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror or error})") from None
    return len(frame)
