"""``icl-bench run``: the main job."""

from __future__ import annotations

from icl_bench.cli import options as o
from icl_bench.cli.several import Named, do_each, finish


@o.taking(o.SweepOptions)
def run(
    options: o.SweepOptions,
    results: o.Results = o.DEFAULT_RESULTS,
    on: o.On = None,
    engines: o.Engines = None,
    gpus_per_engine: o.GpusPerEngine = None,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Sweep the number of demonstrations on a task with a model.

    Of several selections, orders, attention patterns and k each is combined with each; what makes
    no sense together is left out, with the reason.

    Finished cells are kept: run the same command again to go on after an interruption, or with
    more k. Several processes may share one results folder; --on ray starts them and shares out.
    """
    from icl_bench.cli.output.progress import Display, show_results
    from icl_bench.sweep.sweep import Sweep

    display = Display(quiet=quiet or json)
    if (cluster := o.cluster_of(on, engines, gpus_per_engine)) is not None:
        from icl_bench.cli.clusters import run_on
        from icl_bench.studies.file import Job
        from icl_bench.studies.parts import PromptPart

        def lay_out(one: o.SweepOptions) -> PromptPart:
            with display.preparing() as say:
                return PromptPart.of(Job.alone("run", one.task, one.model), Sweep.prepare(one.spec(), say))

        run_on(cluster, options, lay_out, results, display, quiet=quiet, json=json)
        return

    def sweep_one(one: o.SweepOptions) -> Named:
        with display.preparing() as say:
            sweep = Sweep.prepare(one.spec(), say)
        display.plan(sweep)
        with display.running(sweep.plan) as watcher:
            outcome = sweep.run(results, watcher)
        display.outcome(outcome, results)
        named = sweep.task.data.spec.name, sweep.model.name
        if not json:
            show_results(results, [named], quiet=quiet, json=False)
        return Named(*named, bool(outcome.failed))

    done, problem = do_each(options, sweep_one, display.problem)
    finish(done, problem, results, quiet=quiet, json=json)
