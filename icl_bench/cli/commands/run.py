"""``icl-bench run``: the main job."""

from __future__ import annotations

import typer

from icl_bench.cli import options as o


@o.taking(o.SweepOptions)
def run(
    options: o.SweepOptions,
    results: o.Results = o.DEFAULT_RESULTS,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Sweep the number of demonstrations on a task with a model.

    Finished cells are kept: run the same command again to go on after an interruption, or with
    more k. Several processes may share one results folder.
    """
    from icl_bench.cli.output.progress import Display, show_results
    from icl_bench.sweep.sweep import Sweep

    display = Display(quiet=quiet or json)
    with display.preparing() as say:
        sweep = Sweep.prepare(options.spec(), say)
    display.plan(sweep)
    with display.running(sweep.plan) as watcher:
        outcome = sweep.run(results, watcher)
    display.outcome(outcome, results)
    named = sweep.task.data.spec.name, sweep.model.name
    show_results(results, *named, quiet=quiet, json=json)
    if outcome.failed:
        raise typer.Exit(1)
