"""``icl-bench run``: prompts a model and stores its predictions."""

from __future__ import annotations

from icl_bench.cli import options as o
from icl_bench.cli.jobs import SEVERAL
from icl_bench.studies.options import MachineOptions
from icl_bench.sweep.options import RunOptions


@o.command(RunOptions, MachineOptions, several=SEVERAL)
def run(
    options: o.OptionValues,
    machines: o.OptionValues,
    results: o.ResultsDir = o.DEFAULT_RESULTS,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Sweep the number of demonstrations on a task with a model.

    All combinations of the selectors, orders, attention patterns and values of k are run. Impossible ones are skipped
    and reported with the reason.

    Finished cells are kept: run the same command again to continue after an interruption, or with more values of k.
    Several processes may share one results folder; --on ray starts them and distributes the work.
    """
    from icl_bench.cli.jobs import run_and_print
    from icl_bench.sweep.run_spec import RunSpec

    run_and_print(RunSpec, options, MachineOptions(**machines), results, quiet=quiet, json=json)
