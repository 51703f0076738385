"""Everything that a user asks of fine-tuning runs, read once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from pydantic import InstanceOf

from icl_bench.backends.spec import check_dtype
from icl_bench.errors import UserError
from icl_bench.frozen import Frozen
from icl_bench.registry import TRAINING_METHODS
from icl_bench.sweep.k_values import KValues, check_draws
from icl_bench.sweep.run_spec import read_text
from icl_bench.training.classification_head import Head
from icl_bench.training.examples import Validation
from icl_bench.wording import comma_list


class FinetuneSpec(Frozen):
    """Everything that a user asks of fine-tuning runs."""

    task: str
    model: str
    k: Annotated[InstanceOf[KValues], read_text(KValues.parse)]
    method: Annotated[tuple[str, ...], read_text(lambda text: tuple(comma_list(text)))] = ("lora",)
    """Names of :data:`icl_bench.registry.TRAINING_METHODS`."""
    draws: int = 3
    seed: int = 0
    test_size: int | None = None
    data_dir: Path | None = None
    head: Head = "lm"
    validation: Validation = "pool"
    epochs: int = 30
    batch: int = 32
    learning_rate: float | None = None
    device: str | None = None
    dtype: str = "auto"
    keep: Path | None = None
    """Folder for the weights of the epochs that validation chooses."""

    def check(self) -> None:
        """Raise ``UserError`` for what can be told without data and model."""
        if not self.method:
            known = ", ".join(TRAINING_METHODS.names)
            raise UserError(f"--method: empty; give {known}, several with commas")
        check_draws(self.draws)
        check_dtype(self.dtype)
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise UserError(f"--learning-rate {self.learning_rate}: expected more than 0, like 1e-3")
        for name in self.method:
            if name not in TRAINING_METHODS:
                raise UserError(f"--method {name}: {TRAINING_METHODS.unknown(name)}")
        for name in self.method:
            TRAINING_METHODS[name].check_installed()
        if 0 in self.k.numbers:
            raise UserError("--k 0: training needs examples; give numbers from 1 up, like 10,100,1000")
        if self.k.largest:
            raise UserError("--k: training has no context window; give numbers, like 10,100,1000")
