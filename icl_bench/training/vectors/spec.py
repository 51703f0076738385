"""Everything that a user asks of training a decoder to read vectors, read once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from icl_bench.backends.spec import check_dtype
from icl_bench.errors import UserError
from icl_bench.frozen import Frozen
from icl_bench.models.vector_encoder import Pooling


class VectorSpec(Frozen):
    """Everything that a user asks of ``train-vectors``."""

    task: str
    model: str
    out: Path
    vectors: int
    text: int = 0
    encoder: str | None = None
    pooling: Pooling = "mean"
    train: Literal["added", "all"] = "added"
    unfreeze_after: int | None = None
    """Epochs after which the encoder is trained too; None for never."""
    rows: int | None = None
    """Rows of the pool that are learnt from, those that choose the checkpoint among them; None for
    all."""
    epochs: int = 3
    batch: int = 16
    learning_rate: float = 3e-4
    decoder_rate: float | None = None
    """Learning rate of the decoder's own weights, where they are trained; None: the same."""
    seed: int = 0
    spare_k: int = 0
    spare_draws: int = 1
    data_dir: Path | None = None
    device: str | None = None
    dtype: str = "auto"

    def check(self) -> None:
        """Raise ``UserError`` for what can be told without data and model."""
        check_dtype(self.dtype)
        if self.vectors < 0:
            raise UserError(f"--vectors {self.vectors}: expected 0 or more")
        if self.vectors == 0 and self.train == "added":
            raise UserError(
                "--vectors 0: nothing would be trained; add --train all for the decoder that "
                "learns from the same rows without vectors, or give 1 or more"
            )
        if self.vectors == 0 and self.unfreeze_after is not None:
            raise UserError("--unfreeze-after: with --vectors 0 nothing is encoded; leave it out")
        if self.rows is not None and self.rows < 2:
            raise UserError(f"--rows {self.rows}: expected 2 or more; one chooses the checkpoint")
        if not 0 < self.learning_rate < math.inf:
            raise UserError(f"--learning-rate {self.learning_rate}: expected more than 0, like 3e-4")
        if self.decoder_rate is not None:
            if self.train == "added":
                raise UserError(
                    "--decoder-rate: the decoder's own weights stay as they are; add --train all, or leave it out"
                )
            if not 0 < self.decoder_rate < math.inf:
                raise UserError(f"--decoder-rate {self.decoder_rate}: expected more than 0, like 5e-5")
        if self.unfreeze_after is not None and self.unfreeze_after >= self.epochs:
            raise UserError(
                f"--unfreeze-after {self.unfreeze_after}: training ends after {self.epochs} "
                "epochs, so the encoder would never be trained; give fewer, or more --epochs"
            )
        if self.out.exists() and not self.out.is_dir():
            raise UserError(f"--out {self.out}: is a file; give a folder")

    def decisive(self) -> dict[str, object]:
        """What decides the weights that come out, beside data and model."""
        left_out = {"out", "data_dir", "device"}
        return self.model_dump(mode="json", exclude=left_out)
