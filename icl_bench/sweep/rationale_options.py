"""The options of ``rationales``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from icl_bench.errors import UserError
from icl_bench.options import OUTPUT, PROMPTS, TASK, Declared, Option
from icl_bench.sweep.options import MOST_SAMPLES, RunOptions

NOT_FOR_THEM = frozenset(
    (
        *("text", "label", "per_label", "select", "encoder", "long_texts", "perturbation", "order", "attention"),
        *("draws", "score", "keep_scores", "calibrate", "unconstrained", "test_size", "labels", "queries", "batch"),
        "hold",
    )
)
"""Options of ``run`` that ``rationales`` does not have."""


class RationalesOptions(RunOptions):
    """Options of ``rationales``: the options of ``run`` that affect prompts, model and samples, and its own."""

    about: ClassVar[str] = "rationales"

    k: Annotated[
        int, Option("Number of demonstrations in a prompt; they are not among the tried rows.", PROMPTS, "N")
    ] = Field(default=0, ge=0)  # type: ignore[assignment]
    samples: Annotated[int, Option("Number of rationales sampled for each row.", PROMPTS, "N")] = Field(
        default=4, ge=1, le=MOST_SAMPLES
    )
    temperature: Annotated[float, Option("The temperature at which rationales are sampled.", PROMPTS, "T")] = Field(
        default=0.7, ge=0.01, le=100
    )
    rows: Annotated[
        int,
        Option(
            "Number of rows of the pool to try, in a seeded random order (of the train split if pool.file is set).",
            TASK,
            "N",
        ),
    ] = Field(default=256, ge=1)
    keep: Annotated[
        Literal["right", "all", "wrong"],
        Option("Rationales to keep: those with a right answer, all with an answer, or those with a wrong one.", OUTPUT),
    ] = "right"
    take: Annotated[
        Literal["shortest", "first"],
        Option("Which of a row's rationales to take; the shortest has the fewest tokens.", OUTPUT),
    ] = "shortest"
    out: Annotated[
        Path,
        Option(
            "The new task file (.yaml). Its rows are written beside it (.pool.jsonl, .test.jsonl), and computed cells "
            "into a folder (.cells).",
            OUTPUT,
            "FILE",
        ),
    ]

    @model_validator(mode="before")
    @classmethod
    def _has_none_of_the_others(cls, given: Any) -> Any:
        for name in given if isinstance(given, Mapping) else ():
            if name in NOT_FOR_THEM:
                raise UserError(f"--{name.replace('_', '-')}: not an option of rationales")
        return given

    @classmethod
    def declared(cls) -> dict[str, Declared]:
        """See ``Options``."""
        return {name: option for name, option in super().declared().items() if name not in NOT_FOR_THEM}

    @property
    def cells(self) -> Path:
        """The results folder of the computed cells."""
        return self.out.with_name(f"{self.out.stem}.cells")
