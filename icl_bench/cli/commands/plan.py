"""``icl-bench plan``: what would run."""

from __future__ import annotations

from typing import Any

from icl_bench.cli import options as o
from icl_bench.cli.several import do_each


@o.taking(o.SweepOptions)
def plan(options: o.SweepOptions, json: o.Json = False) -> None:
    """Show what a run would compute, and what fits.

    Takes run's options and lists cells with their tokens and estimated time. Nothing is computed
    and nothing is written.
    """
    from icl_bench.cli.output.plan import plan_records, print_plan
    from icl_bench.cli.output.progress import Display
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console
    from icl_bench.sweep.sweep import Sweep

    display = Display(quiet=json)
    records: list[dict[str, Any]] = []

    def plan_one(one: o.SweepOptions) -> None:
        with display.preparing() as say:
            sweep = Sweep.prepare(one.spec(), say)
            seconds, works = sweep.estimates(), sweep.costs()
        if json:
            records.extend(plan_records(sweep, seconds, works))
        else:
            print_plan(sweep, seconds, works, console())

    _, problem = do_each(options, plan_one, display.problem)
    if json and (records or problem is None):
        print_json(records)
    if problem is not None:
        raise problem
