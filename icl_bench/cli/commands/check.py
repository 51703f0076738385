"""``icl-bench check``: a run against a stored baseline, for continuous integration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icl_bench.cli import options as o

Baseline = Annotated[
    Path,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="A Parquet file of icl-bench export, or another results folder.",
        show_default=False,
    ),
]


Tolerance = Annotated[
    float,
    typer.Option("--tolerance", metavar="SHARE", help="A loss up to this is let pass (0.01: 1%)."),
]


Alpha = Annotated[
    float,
    typer.Option(
        "--alpha", metavar="P", help="The chance of a false alarm, over all points together."
    ),
]


def check(
    baseline: Baseline,
    results: o.Results = o.DEFAULT_RESULTS,
    tolerance: Tolerance = 0.01,
    alpha: Alpha = 0.05,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Compare the results with a baseline; exit with 1 on a significant loss.

    Predictions are paired by draw and test example. A point fails if its loss is significant, with
    all points taken into account, and larger than the tolerance. What was not asked the same (other
    data, template, labels, test rows, pool, seed or scoring) is refused; other model files, backend
    or version is what is checked.
    """
    from icl_bench.analysis.baseline_check import check_results
    from icl_bench.cli.output.baseline_check import print_check
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console

    found = check_results(baseline, results, tolerance, alpha)
    if json:
        print_json(found.as_json())
    elif not quiet:
        print_check(found, console())
    if not found.passed:
        raise typer.Exit(1)
