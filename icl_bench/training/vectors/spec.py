"""The options of ``train-vectors``."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from icl_bench.backends.spec import Device, Dtype, check_dtype
from icl_bench.errors import UserError
from icl_bench.options import TRAINING, Option, Options
from icl_bench.sweep.options import DataDir, ModelOption, Seed, TaskOption, seed_field
from icl_bench.training.spec import OutFolder


class VectorSpec(Options):
    """Options of ``train-vectors``."""

    about: ClassVar[str] = "train-vectors"

    task: TaskOption
    model: ModelOption
    out: OutFolder
    vectors: Annotated[
        int,
        Option(
            "Number of texts that are read as one vector each: a row's first N passages if the task has passages, else "
            "N demonstrations.",
            TRAINING,
            "N",
        ),
    ]
    text: Annotated[
        int, Option("Number of demonstrations that are shown as text, in addition to the vectors.", TRAINING, "K")
    ] = Field(default=0, ge=0)
    encoder: Annotated[
        str | None,
        Option(
            "Encoder of the texts: the folder or hub id of a model like BERT (default: all-MiniLM-L6-v2, which is "
            "packaged).",
            TRAINING,
            "NAME",
        ),
    ] = None
    pooling: Annotated[
        Literal["mean", "cls"],
        Option("mean: over a text's tokens; cls: the first token's state, as in the paper.", TRAINING, "HOW"),
    ] = "mean"
    train: Annotated[
        Literal["added", "all"],
        Option("added: the decoder's own weights are frozen; all: they are trained, too.", TRAINING, "WHAT"),
    ] = "added"
    loss: Annotated[
        Literal["answer", "sequence"],
        Option(
            "answer: loss of the answer's tokens; sequence: loss of all tokens of prompt and answer, as in the paper.",
            TRAINING,
            "OF",
        ),
    ] = "answer"
    """``sequence`` is equation 2 of the paper, per token."""
    unfreeze_after: Annotated[
        int | None, Option("Also train the encoder, after N epochs (default: never).", TRAINING, "N")
    ] = Field(default=None, ge=0)
    rows: Annotated[
        int | None,
        Option(
            "Use N rows of the pool (default: all). A tenth of them, at most 100, selects the checkpoint.",
            TRAINING,
            "N",
        ),
    ] = Field(default=None, ge=2)
    """Includes the rows on which the checkpoint is chosen."""
    without_vectors: Annotated[
        float,
        Option(
            "With --train all: share of the rows that are read without vectors, so that the decoder also learns to "
            "answer without them.",
            TRAINING,
            "SHARE",
        ),
    ] = Field(default=0.0, ge=0, lt=1)
    epochs: Annotated[int, Option("Passes over these rows.", TRAINING, "N")] = Field(default=3, ge=1)
    batch: Annotated[int, Option("Rows per step.", TRAINING, "N")] = Field(default=16, ge=1)
    learning_rate: Annotated[float, Option("Learning rate of added weights.", TRAINING, "RATE")] = 3e-4
    decoder_rate: Annotated[
        float | None,
        Option("Learning rate of the decoder's own weights, with --train all (default: the same).", TRAINING, "RATE"),
    ] = None
    spare_k: Annotated[int, Option("Do not train on rows that random selection shows up to this k.", TRAINING, "K")] = (
        Field(default=0, ge=0)
    )
    spare_draws: Annotated[int, Option("Number of draws that --spare-k applies to.", TRAINING, "N")] = Field(
        default=3, ge=1
    )
    seed: Seed = seed_field()
    data_dir: DataDir = None
    device: Device = None
    dtype: Dtype = "auto"

    def check(self) -> None:
        """Raise ``UserError`` for options that are wrong regardless of data and model."""
        check_dtype(self.dtype)
        if self.vectors < 0:
            raise UserError(f"--vectors {self.vectors}: expected 0 or more")
        if self.vectors == 0 and self.train == "added":
            raise UserError(
                "--vectors 0: nothing would be trained; add --train all to train the decoder "
                "on the same rows without vectors, or give 1 or more"
            )
        if self.vectors == 0 and self.unfreeze_after is not None:
            raise UserError("--unfreeze-after: with --vectors 0 nothing is encoded; omit it")
        if not 0 < self.learning_rate < math.inf:
            raise UserError(f"--learning-rate {self.learning_rate}: expected more than 0, like 3e-4")
        if self.decoder_rate is not None:
            if self.train == "added":
                raise UserError("--decoder-rate: the decoder's own weights are frozen; add --train all, or omit it")
            if not 0 < self.decoder_rate < math.inf:
                raise UserError(f"--decoder-rate {self.decoder_rate}: expected more than 0, like 5e-5")
        if self.without_vectors and self.train == "added":
            raise UserError(
                "--without-vectors: rows without vectors change only the decoder's own weights, which are frozen; "
                "add --train all, or omit it"
            )
        if self.without_vectors and not self.vectors:
            raise UserError("--without-vectors: with --vectors 0 no row has vectors; omit one of the two")
        if self.unfreeze_after is not None and self.unfreeze_after >= self.epochs:
            raise UserError(
                f"--unfreeze-after {self.unfreeze_after}: training ends after {self.epochs} "
                "epochs, so the encoder would never be trained; give fewer, or more --epochs"
            )
        if self.out.exists() and not self.out.is_dir():
            raise UserError(f"--out {self.out}: is a file; give a folder")

    def decisive(self) -> dict[str, object]:
        """Settings that decide the trained weights, besides data and model."""
        left_out = {"out", "data_dir", "device"}
        for name in ("loss", "without_vectors"):  # trainings from before the option existed
            if getattr(self, name) == type(self).model_fields[name].default:
                left_out.add(name)
        return self.model_dump(mode="json", exclude=left_out)
