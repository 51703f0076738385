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
    epochs: int = 3
    batch: int = 16
    learning_rate: float = 3e-4
    seed: int = 0
    spare_k: int = 0
    spare_draws: int = 1
    data_dir: Path | None = None
    device: str | None = None
    dtype: str = "auto"

    def check(self) -> None:
        """Raise ``UserError`` for what can be told without data and model."""
        check_dtype(self.dtype)
        if self.vectors < 1:
            raise UserError(f"--vectors {self.vectors}: expected 1 or more")
        if not 0 < self.learning_rate < math.inf:
            raise UserError(
                f"--learning-rate {self.learning_rate}: expected more than 0, like 3e-4"
            )
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
