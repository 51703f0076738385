"""``icl-bench finetune``: the same examples, learnt instead of prompted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from icl_bench.cli import options as o
from icl_bench.cli.several import Named, do_each, finish

if TYPE_CHECKING:
    from icl_bench.training.spec import FinetuneSpec

Shots = Annotated[
    str, typer.Option("--k", metavar="LIST", help="Numbers of examples: 10,100,1000.", show_default=False)
]


Methods = Annotated[
    str,
    typer.Option(
        "--method",
        metavar="LIST",
        help="lora, full (fine-tuning), probe (logistic regression on the frozen model's states), "
        "knn (nearest neighbours by sentence embeddings). Several with commas.",
    ),
]


Draws = Annotated[int, typer.Option("--draws", metavar="N", min=1, help="Random permutations of the pool.")]


HeadOption = Annotated[
    Literal["lm", "random"],
    typer.Option(
        "--head",
        metavar="HOW",
        help="lm: the head begins with the language-model head's rows of the labels' first tokens; random.",
    ),
]


ValidationOption = Annotated[
    Literal["pool", "examples"],
    typer.Option(
        "--validation",
        metavar="FROM",
        help="What chooses the checkpoint: rows of the pool that follow the k examples, or a "
        "fifth of the examples themselves.",
    ),
]


Epochs = Annotated[int, typer.Option("--epochs", metavar="N", min=1, help="Passes over the k.")]


Batch = Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Rows per step.")]


Rate = Annotated[
    float | None,
    typer.Option("--learning-rate", metavar="RATE", help="Default: 1e-3 for lora, 5e-5 for full.", show_default=False),
]


Keep = Annotated[
    Path | None,
    typer.Option(
        "--keep-checkpoints",
        metavar="DIR",
        help="Keep the weights of each chosen epoch there; else no weights are written.",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(o.DataOptions, o.TaskOptions):
    """What ``finetune`` is told."""

    k: Shots
    method: Methods = "lora"
    draws: Draws = 3
    head: HeadOption = "lm"
    validation: ValidationOption = "pool"
    epochs: Epochs = 30
    batch: Batch = 32
    learning_rate: Rate = None
    keep_checkpoints: Keep = None

    def spec(self) -> FinetuneSpec:
        """Read them. Raises ``UserError``."""
        from icl_bench.training.spec import FinetuneSpec

        return FinetuneSpec(
            task=self.task,
            model=self.model,
            k=self.k,
            method=self.method,
            draws=self.draws,
            seed=self.seed,
            test_size=self.test_size,
            data_dir=self.data_dir,
            head=self.head,
            validation=self.validation,
            epochs=self.epochs,
            batch=self.batch,
            learning_rate=self.learning_rate,
            device=self.device,
            dtype=self.dtype,
            keep=self.keep_checkpoints,
        )


@o.taking(FinetuneOptions)
def finetune(
    options: FinetuneOptions,
    results: o.Results = o.DEFAULT_RESULTS,
    on: o.On = None,
    engines: o.Engines = None,
    gpus_per_engine: o.GpusPerEngine = None,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Train on the examples that a prompt would show.

    Each draw's first k examples, the same test rows; results land beside those of run. Two
    checkpoints are reported: the one that validation rows choose, and as lora-paper or full-paper
    the one that the test rows would choose, an upper bound. Finished cells are kept.
    """
    from icl_bench.cli.output.progress import Display, show_results
    from icl_bench.training.finetune import Finetuning

    display = Display(quiet=quiet or json)
    if (cluster := o.cluster_of(on, engines, gpus_per_engine)) is not None:
        from icl_bench.cli.clusters import run_on
        from icl_bench.studies.file import Job
        from icl_bench.studies.parts import TrainingPart

        def lay_out(one: FinetuneOptions) -> TrainingPart:
            with display.preparing() as say:
                return TrainingPart.of(Job.alone("finetune", one.task, one.model), Finetuning.prepare(one.spec(), say))

        run_on(cluster, options, lay_out, results, display, quiet=quiet, json=json)
        return

    def train_one(one: FinetuneOptions) -> Named:
        with display.preparing() as say:
            runs = Finetuning.prepare(one.spec(), say)
        for text in runs.notes():
            display.note(f"  note: {text}")
        outcome = runs.run(results, display.note)
        display.outcome(outcome, results)
        named = runs.task.data.spec.name, runs.task.model.name
        if not json:
            show_results(results, [named], quiet=quiet, json=False)
        return Named(*named, bool(outcome.failed))

    done, problem = do_each(options, train_one, display.problem)
    finish(done, problem, results, quiet=quiet, json=json)
