"""``icl-bench plan``: the cells of a run, without running it."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Annotated, Any

import typer

from icl_bench.cli import options as o
from icl_bench.cli.jobs import SEVERAL, do_each
from icl_bench.studies.options import MachineOptions
from icl_bench.sweep.options import RunOptions

ResultsToCompare = Annotated[
    str | None,
    typer.Option(
        "--results",
        metavar="DIR",
        help="Results folder: the plan shows which cells are finished, and what is left to compute.",
        rich_help_panel="Output",
    ),
]


Detect = Annotated[
    float | None,
    typer.Option(
        "--detect",
        metavar="POINTS",
        help="Also print the smallest difference that the planned draws and test rows detect with 80% power, and how "
        "many draws or test rows a difference of POINTS needs. Variances are those of --results, or typical published "
        "ones.",
        rich_help_panel="Output",
    ),
]


@o.command(RunOptions, MachineOptions, several=SEVERAL)
def plan(
    options: o.OptionValues,
    machines: o.OptionValues,
    results: ResultsToCompare = None,
    detect: Detect = None,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Show what a run would compute, and what fits.

    Takes the options of run and lists the cells with their tokens and estimated time. It runs no model and writes
    nothing.
    """
    from icl_bench.cli.output.plan import (
        PlanTotal,
        finished_cells,
        plan_records,
        plan_total,
        print_plan,
        print_planned_money,
        print_planned_power,
    )
    from icl_bench.cli.output.progress import Display
    from icl_bench.cli.output.tables import print_json, print_lines
    from icl_bench.cli.output.terminal import console
    from icl_bench.errors import UserError
    from icl_bench.studies.cluster import ClusterSpec
    from icl_bench.studies.parts import PromptPart
    from icl_bench.studies.workers import WorkerSpec
    from icl_bench.sweep.plan_money import sweep_prices
    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep

    ClusterSpec.of(MachineOptions(**machines))  # refuses whatever run refuses
    workers = WorkerSpec.of(MachineOptions(**machines))
    wanted = None
    if detect is not None:
        if json:
            raise UserError("--detect: is not in the JSON; leave --json out")
        from icl_bench.analysis.detect import check_points  # needs SciPy, which the rest does not

        wanted = check_points(detect)
    display = Display(quiet=json)
    records: list[dict[str, Any]] = []
    totals: list[PlanTotal] = []
    what = "in all" if results is None else "left"

    def print_one(spec: RunSpec) -> None:
        with display.preparing() as say:
            sweep = Sweep.prepare(spec, say, to_run=False, results=results)
            if workers is not None:
                workers.check(PromptPart.of(sweep))
            sweep.estimates()  # takes a while
        prices = spec.price
        if prices is not None:
            sweep_prices(sweep, prices)  # refuses before the plan is printed
        if json:
            records.extend(plan_records(sweep, results, prices))
        elif not quiet:
            finished = finished_cells(sweep, results)
            sweep = sweep.continued(finished)
            print_plan(sweep, console(), results, finished)
            if wanted is not None:
                print_planned_power(sweep, console(), results, wanted)
            if prices is not None:
                print_planned_money(sweep, console(), finished, prices)
            totals.append(plan_total(sweep, finished, prices))
            print_lines(console(), f"{what}: {totals[-1]}")

    _, problem = do_each(RunSpec, options, print_one, display.problem)
    if len(totals) > 1:
        print_lines(console(), f"{what}, of {len(totals):,} plans: {reduce(add, totals)}")
    if json and (records or problem is None):
        print_json(records)
    if problem is not None:
        raise problem
