"""``icl-bench export``: predictions as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icl_bench.cli import options as o

Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="FILE.parquet, FILE.csv or FILE.csv.gz.")]


def export(out: Out, results: o.ResultsDir = o.DEFAULT_RESULTS, quiet: o.Quiet = False) -> None:
    """Write all predictions into one Parquet or CSV file."""
    from icl_bench.cli.output.working import watched, working
    from icl_bench.results.exporting import export_results

    with working() as say:
        rows = export_results(watched(results, say), out)
    if not quiet:
        print(f"{rows:,} predictions in {out}")
