"""``icl-bench finetune``: trains on the same examples instead of prompting with them."""

from __future__ import annotations

from icl_bench.cli import options as o
from icl_bench.cli.several import SEVERAL, Named, do_each, finish
from icl_bench.studies.options import MachineOptions
from icl_bench.training.spec import FinetuneSpec


@o.command(FinetuneSpec, MachineOptions, several=SEVERAL)
def finetune(
    given: o.Given,
    machines: o.Given,
    results: o.Results = o.DEFAULT_RESULTS,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Train on the examples that a prompt would show.

    Takes each draw's first k examples and the same test rows as run, and writes beside its results. Two
    checkpoints are reported: the one that validation rows choose, and as lora-paper or full-paper the one that the
    test rows would choose, an upper bound. Finished cells are kept.
    """
    from icl_bench.cli.output.progress import Display, show_results
    from icl_bench.studies.cluster import ClusterSpec
    from icl_bench.training.finetune import Finetuning

    display = Display(quiet=quiet or json)
    if (cluster := ClusterSpec.of(MachineOptions(**machines))) is not None:
        from icl_bench.cli.clusters import run_on
        from icl_bench.studies.parts import TrainingPart

        def lay_out(one: FinetuneSpec) -> TrainingPart:
            with display.preparing() as say:
                return TrainingPart.of(Finetuning.prepare(one, say))

        run_on(cluster, FinetuneSpec, given, lay_out, results, display, quiet=quiet, json=json)
        return

    def train_one(one: FinetuneSpec) -> Named:
        with display.preparing() as say:
            runs = Finetuning.prepare(one, say)
        for text in runs.notes():
            display.note(f"  note: {text}")
        outcome = runs.run(results, display.note)
        display.outcome(outcome, results)
        named = runs.task.data.spec.name, runs.task.model.name
        if not json:
            show_results(results, [named], quiet=quiet, json=False)
        return Named(*named, bool(outcome.failed))

    done, problem = do_each(FinetuneSpec, given, train_one, display.problem)
    finish(done, problem, results, quiet=quiet, json=json)
