"""The options of ``finetune``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from icl_bench.backends.spec import Device, Dtype, check_dtype
from icl_bench.errors import UserError
from icl_bench.options import NAMES, TRAINING, Option, Options, read
from icl_bench.registry import TRAINING_METHODS
from icl_bench.sweep.options import (
    DataDir,
    LabelColumn,
    ModelOption,
    Seed,
    TaskOption,
    TestIds,
    TestSize,
    TextColumn,
    draws_field,
    seed_field,
)

if TYPE_CHECKING:
    from icl_bench.sweep.k_values import KValues
else:  # its parser validates the values
    KValues = Any

OutFolder = Annotated[Path, Option("Folder of the trained model; run takes it as --model.", TRAINING, "DIR")]
"""An option that long trainings share."""

HeadInit = Literal["lm", "random"]

Validation = Literal["pool", "examples"]


class FinetuneSpec(Options):
    """Options of ``finetune``, for one task and one model."""

    about: ClassVar[str] = "finetune"

    task: TaskOption
    text: TextColumn = None
    label: LabelColumn = None
    model: ModelOption
    k: Annotated[
        KValues,
        read("icl_bench.sweep.k_values:KValues"),
        Option("Numbers of examples: 10,100,1000.", TRAINING, "LIST", expected="numbers like 10,100,1000"),
    ]
    method: Annotated[
        tuple[str, ...],
        NAMES,
        Option(
            "lora, full (fine-tuning), probe (logistic regression on the frozen model's states), knn (nearest "
            "neighbours by sentence embeddings), encoder-probe (logistic regression on sentence embeddings). Several "
            "with commas.",
            TRAINING,
            "LIST",
            more=TRAINING_METHODS.added,
        ),
    ] = ("lora",)
    """Names of :data:`icl_bench.registry.TRAINING_METHODS`."""
    draws: Annotated[int, Option("Number of random draws of examples.", TRAINING, "N")] = draws_field(3)
    seed: Seed = seed_field()
    test_size: TestSize = Field(default=None, ge=1)
    test_ids: TestIds = None
    data_dir: DataDir = None
    head: Annotated[
        HeadInit,
        Option(
            "Initial weights of the classification head. lm: the language model's output rows for the labels' first "
            "tokens; random.",
            TRAINING,
            "HOW",
        ),
    ] = "lm"
    validation: Annotated[
        Validation,
        Option(
            "Rows that select the checkpoint. pool: rows of the pool after the k examples; examples: a fifth of the k.",
            TRAINING,
            "FROM",
        ),
    ] = "pool"
    epochs: Annotated[int, Option("Passes over the k examples.", TRAINING, "N")] = Field(default=30, ge=1)
    batch: Annotated[int, Option("Rows per step.", TRAINING, "N")] = Field(default=32, ge=1)
    learning_rate: Annotated[
        float | None, Option("Learning rate (default: 1e-3 for lora, 5e-5 for full).", TRAINING, "RATE")
    ] = None
    lora_rank: Annotated[int | None, Option("Rank of lora's added weights (default: 8).", TRAINING, "N")] = Field(
        default=None, ge=1
    )
    lora_alpha: Annotated[
        int | None,
        Option("Factor of lora's added weights, which are divided by the rank (default: 32).", TRAINING, "N"),
    ] = Field(default=None, ge=1)
    rslora: Annotated[
        bool, Option("Divide lora's added weights by the square root of the rank (rank-stabilised LoRA).", TRAINING)
    ] = False
    keep_checkpoints: Annotated[
        Path | None,
        Option(
            "Folder for the trained classifiers: weights of the selected epoch, or a classifier of scikit-learn "
            "(default: none are kept). A finished cell whose classifier is missing there is trained again.",
            TRAINING,
            "DIR",
        ),
    ] = None
    device: Device = None
    dtype: Dtype = "auto"

    def check(self) -> None:
        """Raise ``UserError`` for options that are wrong regardless of data and model."""
        if not self.method:
            known = ", ".join(TRAINING_METHODS.names)
            raise UserError(f"--method: empty; give {known}, several with commas")
        check_dtype(self.dtype)
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise UserError(f"--learning-rate {self.learning_rate}: expected more than 0, like 1e-3")
        for name in self.method:
            if name not in TRAINING_METHODS:
                raise UserError(f"--method {name}: {TRAINING_METHODS.unknown(name)}")
        for name in self.method:
            TRAINING_METHODS[name].check_installed()
        if 0 in self.k.numbers:
            raise UserError("--k 0: training needs examples; give numbers of at least 1, like 10,100,1000")
        if self.k.largest:
            raise UserError("--k: max and auto are for prompts; give numbers, like 10,100,1000")
