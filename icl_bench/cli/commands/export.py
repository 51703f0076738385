"""``icl-bench export``: predictions as one file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icl_bench.cli import options as o

if TYPE_CHECKING:
    from icl_bench.report.every_eval_ever import Exported

Out = Annotated[
    Path,
    typer.Option("--out", metavar="PATH", help="FILE.parquet, FILE.csv or FILE.csv.gz; a folder for every-eval-ever."),
]


class Format(StrEnum):
    """Formats of an export."""

    TABLE = "table"
    EVERY_EVAL_EVER = "every-eval-ever"


As = Annotated[
    Format,
    typer.Option(
        "--format", help="One table, or Every Eval Ever's JSON: aggregates with intervals, and a line for each sample."
    ),
]


Scores = Annotated[
    bool,
    typer.Option(
        "--scores",
        help="Also write a column label_scores: the log-probabilities of the labels that --score exact stored.",
    ),
]


def export(
    out: Out,
    format: As = Format.TABLE,  # noqa: A002
    results: o.ResultsDir = o.DEFAULT_RESULTS,
    scores: Scores = False,
    data_dir: o.DataDir = None,
    anonymous: o.Anonymous = False,
    quiet: o.Quiet = False,
) -> None:
    """Write all predictions into one file.

    With --format every-eval-ever the output is a folder: aggregates with their intervals, and a line for each sample,
    with its question if --data-dir has it.
    """
    from icl_bench.cli.output.working import watched, working
    from icl_bench.errors import UserError

    if format is Format.EVERY_EVAL_EVER:
        if scores:
            raise UserError("--scores: Every Eval Ever has no field for them; export a table")
        from icl_bench.report.every_eval_ever import export_evaluations

        with working() as say:
            exported = export_evaluations(watched(results, say, anonymous), out, data_dir)
        if not quiet:
            print_exported(exported, out)
        return
    if data_dir is not None:
        raise UserError("--data-dir: a table has no questions; they are for --format every-eval-ever")
    from icl_bench.results.exporting import export_results

    with working() as say:
        rows = export_results(watched(results, say, anonymous), out, scores)
    if not quiet:
        print(f"{rows:,} predictions in {out}")


def print_exported(exported: Exported, out: Path) -> None:
    """Print what was written, and what the format does not support."""
    from icl_bench.wording import counted

    print(f"{counted(exported.samples, 'sample')} and {counted(len(exported.files), 'file')} of aggregates in {out}")
    if exported.unscored:
        print(f"left out: {counted(exported.unscored, 'prediction')} without a score")
    if exported.without_question:
        print(
            f"without a question: {counted(exported.without_question, 'sample')}, whose data is not at hand "
            "(--data-dir)"
        )
