"""``icl-bench import``: predictions that were made elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icl_bench.cli import options as o

File = Annotated[Path, typer.Argument(metavar="FILE", help="FILE.parquet, FILE.csv or FILE.csv.gz.")]


def import_(file: File, results: o.ResultsDir = o.DEFAULT_RESULTS, quiet: o.Quiet = False) -> None:
    """Import predictions that were made elsewhere.

    The file has the columns task, model, select, order, k, draw, test_id, gold and prediction, one
    row a prediction. Further columns of an export are read, and all others are kept. The same file is
    imported only once.
    """
    from icl_bench.results.importing import import_predictions
    from icl_bench.wording import one_line, plain

    done = import_predictions(file, results)
    if quiet:
        return
    if done.before:
        print(f"{plain(file)} was imported before, nothing to do: {done.where}")
        return
    print(f"{done.rows:,} predictions imported: {done.where}")
    if done.further:
        print(f"further columns, kept: {one_line(', '.join(map(plain, done.further)))}")
