"""``icl-bench finetune``: trains on the same examples instead of prompting with them."""

from __future__ import annotations

from icl_bench.cli import options as o
from icl_bench.cli.jobs import SEVERAL
from icl_bench.studies.options import MachineOptions
from icl_bench.training.spec import FinetuneSpec


@o.command(FinetuneSpec, MachineOptions, several=SEVERAL)
def finetune(
    options: o.OptionValues,
    machines: o.OptionValues,
    results: o.ResultsDir = o.DEFAULT_RESULTS,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Train on the examples that a prompt would show.

    Trains on the first k examples of each draw, answers the same test rows as run, and stores the predictions in the
    same folder. lora and full report two checkpoints: the best one on validation rows and, as lora-paper or full-paper,
    the best one on the test rows, an upper bound. Finished cells are kept.
    """
    from icl_bench.cli.jobs import run_and_print

    run_and_print(FinetuneSpec, options, MachineOptions(**machines), results, quiet=quiet, json=json)
