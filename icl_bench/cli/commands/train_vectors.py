"""``icl-bench train-vectors``: a model that reads demonstrations or passages as vectors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from icl_bench.cli import options as o

if TYPE_CHECKING:
    from icl_bench.training.vector_spec import VectorSpec

Vectors = Annotated[
    int,
    typer.Option(
        "--vectors",
        metavar="N",
        help="Texts that enter as vectors, one each: a row's first N passages where the task has "
        "passages, else N demonstrations.",
        show_default=False,
    ),
]


Text = Annotated[
    int,
    typer.Option("--text", metavar="K", min=0, help="Demonstrations that stay text beside them."),
]


Out = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Where the model is written; run takes it as --model.",
        show_default=False,
    ),
]


EncoderOption = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        metavar="NAME",
        help="What makes vectors of texts: a BERT-like folder or hub id (all-MiniLM-L6-v2, which "
        "is packaged).",
        show_default=False,
    ),
]


PoolingOption = Annotated[
    Literal["mean", "cls"],
    typer.Option(
        "--pooling",
        metavar="HOW",
        help="mean: over a text's tokens; cls: the first token's state, as in the paper.",
    ),
]


Train = Annotated[
    Literal["added", "all"],
    typer.Option(
        "--train",
        metavar="WHAT",
        help="added: the decoder's own weights stay as they are; all: they are trained too.",
    ),
]


Unfreeze = Annotated[
    int | None,
    typer.Option(
        "--unfreeze-after",
        metavar="N",
        min=0,
        help="Train the encoder too, after so many epochs; never unless given.",
        show_default=False,
    ),
]


Epochs = Annotated[int, typer.Option("--epochs", metavar="N", min=1, help="Passes over the pool.")]


Batch = Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Rows per step.")]


Rate = Annotated[float, typer.Option("--learning-rate", metavar="RATE", help="Of added weights.")]


SpareK = Annotated[
    int,
    typer.Option(
        "--spare-k",
        metavar="K",
        min=0,
        help="Leave out of training the rows that random selection shows up to this k.",
    ),
]


SpareDraws = Annotated[
    int,
    typer.Option("--spare-draws", metavar="N", min=1, help="In how many draws --spare-k looks."),
]


@dataclass(frozen=True, kw_only=True)
class TrainVectorsOptions:
    """What ``train-vectors`` is told."""

    task: o.Task
    model: o.Model
    vectors: Vectors
    out: Out
    text: Text = 0
    encoder: EncoderOption = None
    pooling: PoolingOption = "mean"
    train: Train = "added"
    unfreeze_after: Unfreeze = None
    epochs: Epochs = 3
    batch: Batch = 16
    learning_rate: Rate = 3e-4
    spare_k: SpareK = 0
    spare_draws: SpareDraws = 3
    seed: o.Seed = 0
    data_dir: o.DataDir = None
    dtype: o.Dtype = "auto"
    device: o.Device = None

    def spec(self) -> VectorSpec:
        """Read them. Raises ``UserError``."""
        from icl_bench.training.vector_spec import VectorSpec

        return VectorSpec(
            task=self.task, model=self.model, out=self.out, vectors=self.vectors, text=self.text,
            encoder=self.encoder, pooling=self.pooling, train=self.train,
            unfreeze_after=self.unfreeze_after, epochs=self.epochs, batch=self.batch,
            learning_rate=self.learning_rate, seed=self.seed, spare_k=self.spare_k,
            spare_draws=self.spare_draws, data_dir=self.data_dir, device=self.device,
            dtype=self.dtype,
        )  # fmt: skip


@o.taking(TrainVectorsOptions)
def train_vectors(options: TrainVectorsOptions, quiet: o.Quiet = False) -> None:
    """Train a model to read texts as vectors, one each (Vec-RA).

    On the task's pool; test rows are never seen. What was stopped goes on where it was. Then:
    icl-bench run --model DIR --attention vectors:N.
    """
    from icl_bench.cli.output.progress import Display
    from icl_bench.training.vectors import VectorTraining

    display = Display(quiet=quiet)
    with display.preparing() as say:
        training = VectorTraining.prepare(options.spec(), say)
        done = training.is_done()
    if done:
        display.note(f"{options.out} holds this training already")
        return
    for text in training.notes():
        display.note(f"  note: {text}")
    training.run(display.note)
    display.note(f"written: {options.out}")
