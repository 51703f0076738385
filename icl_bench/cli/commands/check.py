"""``icl-bench check``: a run against a stored baseline, for continuous integration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icl_bench.cli import options as o

Baseline = Annotated[
    Path,
    typer.Option(
        "--baseline", metavar="FILE", help="A Parquet file of export, another results folder, or a leaderboard's CSV."
    ),
]


Tolerance = Annotated[
    float, typer.Option("--tolerance", metavar="SHARE", help="Accept losses of up to this share (0.01: one point).")
]


Alpha = Annotated[
    float, typer.Option("--alpha", metavar="P", help="Probability of a false alarm, for all tests together.")
]


AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Accept a run that lacks points or draws of the baseline.")
]


def check(
    baseline: Baseline,
    results: o.ResultsDir = o.DEFAULT_RESULTS,
    tolerance: Tolerance = 0.01,
    alpha: Alpha = 0.05,
    allow_missing: AllowMissing = False,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Compare with a baseline; exit with 1 on a significant loss.

    Predictions of both are paired by draw and test example. A point fails if its loss is larger than the
    tolerance and significant (corrected for the number of points); all points together are tested in
    the same way. A run that lacks points of the baseline is refused (exit with 2), and so is a run with
    other data, template, labels, test rows, pool, seed or scoring. Model files, backend and versions
    may differ: their effect is what is checked. Against a leaderboard's CSV, means are compared with
    their intervals, which finds large losses only.
    """
    from icl_bench.cli.output.baseline_check import print_check
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console
    from icl_bench.cli.output.working import watched, working
    from icl_bench.report.leaderboard_check import check_baseline

    with working() as say:
        place = watched(results, say)
        comparison = check_baseline(baseline, place, tolerance, alpha, allow_missing)
    if json:
        print_json(comparison.as_json())
    elif not quiet:
        print_check(comparison, console())
    if comparison.lost:
        raise typer.Exit(1)
    comparison.require_all()
