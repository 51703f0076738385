"""``icl-bench export``: predictions as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icl_bench.cli import options as o

Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="FILE.parquet, FILE.csv or FILE.csv.gz.")]


Scores = Annotated[
    bool,
    typer.Option(
        "--scores",
        help="Also write a column label_scores: the log-probability of every label, where --score exact stored it.",
    ),
]


def export(out: Out, results: o.ResultsDir = o.DEFAULT_RESULTS, scores: Scores = False, quiet: o.Quiet = False) -> None:
    """Write all predictions into one Parquet or CSV file."""
    from icl_bench.cli.output.working import watched, working
    from icl_bench.results.exporting import export_results

    with working() as say:
        rows = export_results(watched(results, say), out, scores)
    if not quiet:
        print(f"{rows:,} predictions in {out}")
