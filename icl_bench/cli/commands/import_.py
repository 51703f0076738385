"""``icl-bench import``: predictions that were made elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icl_bench.cli import options as o

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="FILE.parquet, .csv, .tsv, .jsonl or .json (also .gz); lm-eval's samples_*.jsonl, a log of Inspect "
        "(.eval or .json), a folder of a run of HELM, or samples of Every Eval Ever.",
    ),
]


def _stated(name: str, metavar: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        f"--{name}", metavar=metavar, help=f"The {name} of all predictions, if the file does not contain it."
    )
    return option


def import_(
    file: File,
    task: Annotated[str | None, _stated("task", "NAME")] = None,
    model: Annotated[str | None, _stated("model", "NAME")] = None,
    k: Annotated[int | None, _stated("k", "N")] = None,
    select: Annotated[str | None, _stated("select", "NAME")] = None,
    order: Annotated[str | None, _stated("order", "NAME")] = None,
    results: o.ResultsDir = o.DEFAULT_RESULTS,
    quiet: o.Quiet = False,
) -> None:
    """Import predictions that were made elsewhere.

    A table has one row for each prediction, with the columns task, model, k, test_id, gold and prediction, and select,
    order and draw if they are known. The further columns of an export are read, and all others are kept. For a log of
    another harness, the options override its values. The same file is imported only once.
    """
    from icl_bench.results.importing import Stated, import_predictions
    from icl_bench.wording import one_line, plain

    done = import_predictions(file, results, Stated(task, model, k, select, order))
    if quiet:
        return
    if done.before:
        print(f"{plain(file)} is already imported: {done.where}")
        return
    print(f"{done.rows:,} predictions imported: {done.where}")
    for note in done.notes:
        print(f"note: {one_line(note)}")
    if done.further:
        print(f"further columns, kept: {one_line(', '.join(map(plain, done.further)))}")
