"""``icl-bench study``: many tasks, models and settings, from a file."""

from __future__ import annotations

from typing import Annotated

import typer

from icl_bench.cli import options as o
from icl_bench.errors import UserError
from icl_bench.studies.options import MachineOptions

File = Annotated[
    str | None,
    typer.Argument(metavar="FILE", help="A YAML file, or the name of a shipped study; without it, these are listed."),
]


PlanOnly = Annotated[bool, typer.Option("--plan", help="Print cells, tokens and estimated time; run no model.")]


Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="KEY=VALUES",
        help="Run only a part: task=, model=, setting=, select=, order=, attention=, k= or draw= (the first is 0); "
        "several values with commas. Repeat it for several keys.",
    ),
]


@o.command(MachineOptions)
def study(
    machines: o.OptionValues,
    file: File = None,
    plan: PlanOnly = False,
    only: Only = None,
    results: o.ResultsDir = o.DEFAULT_RESULTS,
    data_dir: o.DataDir = None,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Run a study: many tasks, models and settings.

    A study is a file with tasks, models and blocks of settings. The whole study is checked and planned before anything
    is computed. Finished cells are kept: run the same command again to continue. icl-bench report shows which points
    are done, failed or missing.
    """
    from icl_bench.analysis.all_findings import read_findings
    from icl_bench.analysis.summary import records
    from icl_bench.cli.output.progress import Display
    from icl_bench.cli.output.study import StudyDisplay, plan_records, print_plan, print_state, unplanned_lines
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console
    from icl_bench.studies.cluster import ClusterSpec
    from icl_bench.studies.file import load_study
    from icl_bench.studies.on_ray import connected
    from icl_bench.studies.rules import PointFilter, Rule
    from icl_bench.studies.study import Study
    from icl_bench.studies.workers import LocalWorkers, WorkerSpec

    if file is None:
        if plan or only is not None:
            raise UserError(
                f"{'--plan' if plan else '--only'}: needs a study; without these options, studies are listed"
            )
        _list_shipped(json)
        return
    display = Display(quiet=quiet or json)
    cluster = ClusterSpec.of(MachineOptions(**machines))
    workers = WorkerSpec.of(MachineOptions(**machines))
    read = load_study(file, data_dir)
    wanted = PointFilter(read.exclude, Rule.parse(only) if only else None)
    failed = False
    with connected(None if plan else cluster) as connection:
        with display.preparing() as say:
            laid_out = Study.prepare(read, wanted, say, results, to_run=not plan)
        for job, reason in laid_out.left.items():
            display.problem(f"{job}: {reason}")
        if not plan:
            with StudyDisplay(display) as listener:
                outcome = laid_out.run(results, listener, LocalWorkers(workers) if workers else connection)
    if plan:
        if json:
            print_json(plan_records(laid_out))
            for text in unplanned_lines(laid_out):
                display.remark(text)
        else:
            print_plan(laid_out, console())
    else:
        display.outcome(outcome, results)
        try:
            points = read_findings(results).study_points
        except UserError:
            if outcome.stopped:  # nothing was computed, for the printed reasons
                raise typer.Exit(1) from None
            raise
        points = points[points["study"] == read.name]
        if json:
            print_json(records(points))
        elif not quiet:
            print_state(points, console())
        failed = bool(outcome.failed or outcome.stopped)
    laid_out.require_all()
    if failed:
        raise typer.Exit(1)


def _list_shipped(json: bool) -> None:
    from icl_bench.cli.output.study import print_studies
    from icl_bench.cli.output.tables import print_records
    from icl_bench.studies.file import known_studies, load_study

    shipped = [{"name": name, "description": load_study(name).fields.description} for name in known_studies()]
    print_records(shipped, print_studies, json=json)
