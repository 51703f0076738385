"""``icl-bench train-vectors``: a model that reads demonstrations or passages as vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from icl_bench.cli import options as o

if TYPE_CHECKING:
    from icl_bench.training.vectors.spec import VectorSpec

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


Text = Annotated[int, typer.Option("--text", metavar="K", min=0, help="Demonstrations that stay text beside them.")]


EncoderOption = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        metavar="NAME",
        help="What makes vectors of texts: a BERT-like folder or hub id (all-MiniLM-L6-v2, which is packaged).",
        show_default=False,
    ),
]


PoolingOption = Annotated[
    Literal["mean", "cls"],
    typer.Option(
        "--pooling", metavar="HOW", help="mean: over a text's tokens; cls: the first token's state, as in the paper."
    ),
]


Train = Annotated[
    Literal["added", "all"],
    typer.Option(
        "--train", metavar="WHAT", help="added: the decoder's own weights stay as they are; all: they are trained too."
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


Rows = Annotated[
    int | None,
    typer.Option(
        "--rows",
        metavar="N",
        min=2,
        help="Learn from so many rows of the pool, a tenth of which (at most 100) choose the "
        "checkpoint; all unless given.",
        show_default=False,
    ),
]


Epochs = Annotated[int, typer.Option("--epochs", metavar="N", min=1, help="Passes over these rows.")]


Batch = Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Rows per step.")]


Rate = Annotated[float, typer.Option("--learning-rate", metavar="RATE", help="Of added weights.")]


DecoderRate = Annotated[
    float | None,
    typer.Option(
        "--decoder-rate",
        metavar="RATE",
        help="Learning rate of the decoder's own weights, with --train all; the same unless given.",
        show_default=False,
    ),
]


SpareK = Annotated[
    int,
    typer.Option(
        "--spare-k", metavar="K", min=0, help="Leave out of training the rows that random selection shows up to this k."
    ),
]


SpareDraws = Annotated[
    int, typer.Option("--spare-draws", metavar="N", min=1, help="In how many draws --spare-k looks.")
]


@dataclass(frozen=True, kw_only=True)
class TrainVectorsOptions:
    """What ``train-vectors`` is told."""

    task: o.Task
    model: o.Model
    vectors: Vectors
    out: o.OutFolder
    text: Text = 0
    encoder: EncoderOption = None
    pooling: PoolingOption = "mean"
    train: Train = "added"
    unfreeze_after: Unfreeze = None
    rows: Rows = None
    epochs: Epochs = 3
    batch: Batch = 16
    learning_rate: Rate = 3e-4
    decoder_rate: DecoderRate = None
    spare_k: SpareK = 0
    spare_draws: SpareDraws = 3
    seed: o.Seed = 0
    data_dir: o.DataDir = None
    dtype: o.Dtype = "auto"
    device: o.Device = None

    def spec(self) -> VectorSpec:
        """Read them. Raises ``UserError``."""
        from icl_bench.training.vectors.spec import VectorSpec

        return VectorSpec(**vars(self))


@o.taking(TrainVectorsOptions)
def train_vectors(options: TrainVectorsOptions, quiet: o.Quiet = False) -> None:
    """Train a model to read texts as vectors, one each (Vec-RA).

    On the task's pool; test rows are never seen. What was stopped goes on where it was. Then:
    icl-bench run --model DIR --attention vectors:N.
    """
    from icl_bench.cli.training import carry_out
    from icl_bench.training.vectors.training import VectorTraining

    carry_out(VectorTraining.prepare, options.spec(), quiet=quiet)
