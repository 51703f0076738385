"""``icl-bench run``: the main job."""

from __future__ import annotations

from icl_bench.cli import options as o
from icl_bench.cli.several import SEVERAL, Named, do_each, finish
from icl_bench.studies.options import MachineOptions
from icl_bench.sweep.options import RunOptions


@o.command(RunOptions, MachineOptions, several=SEVERAL)
def run(
    given: o.Given,
    machines: o.Given,
    results: o.Results = o.DEFAULT_RESULTS,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Sweep the number of demonstrations on a task with a model.

    Several selectors, orders, attention patterns and values of k are combined with each other; combinations that
    make no sense are skipped, with the reason.

    Finished cells are kept: run the same command again to continue after an interruption, or with more values of k.
    Several processes may share one results folder; --on ray starts them and distributes the work.
    """
    from icl_bench.cli.output.progress import Display, show_results
    from icl_bench.studies.cluster import ClusterSpec
    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep

    display = Display(quiet=quiet or json)
    if (cluster := ClusterSpec.of(MachineOptions(**machines))) is not None:
        from icl_bench.cli.clusters import run_on
        from icl_bench.studies.parts import PromptPart

        def lay_out(one: RunSpec) -> PromptPart:
            with display.preparing() as say:
                return PromptPart.of(Sweep.prepare(one, say))

        run_on(cluster, RunSpec, given, lay_out, results, display, quiet=quiet, json=json)
        return

    def sweep_one(one: RunSpec) -> Named:
        with display.preparing() as say:
            sweep = Sweep.prepare(one, say)
        display.plan(sweep)
        with display.running(sweep.plan) as watcher:
            outcome = sweep.run(results, watcher)
        display.outcome(outcome, results)
        named = sweep.task.data.spec.name, sweep.model.name
        if not json:
            show_results(results, [named], quiet=quiet, json=False)
        return Named(*named, bool(outcome.failed))

    done, problem = do_each(RunSpec, given, sweep_one, display.problem)
    finish(done, problem, results, quiet=quiet, json=json)
