"""What a training method is: it learns from a prompt's k examples and answers the test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from icl_bench.errors import UserError
from icl_bench.models.architecture import Architecture, architecture_of
from icl_bench.results.stored_meta import TrainingMeta
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.training.examples import Examples
from icl_bench.training.spec import FinetuneSpec


@dataclass(frozen=True)
class Learned:
    """What a method gives for one k and draw."""

    select: str
    """The name of its cell: the method's, or the method's with the ending of an upper bound."""
    probabilities: np.ndarray
    """``(test, labels)``"""
    seconds: float
    """Of answering the test rows."""
    training: TrainingMeta = field(default_factory=TrainingMeta)
    """How it was trained and at which cost."""


@dataclass
class TrainingRun:
    """What all methods of one run share."""

    spec: FinetuneSpec
    task: TokenizedTask
    device: str
    dtype: str

    @cached_property
    def architecture(self) -> Architecture:
        """What of the model decides its cost."""
        return architecture_of(self.task.model.source)


class TrainingMethod:
    """Base of all methods; one is made for a run and asked for every k and draw."""

    name: ClassVar[str]
    packages: ClassVar[Sequence[str]] = ()
    """Modules that it needs, all of the extra ``finetune``."""
    backend: ClassVar[str]
    """What its cells' column ``backend`` says."""
    has_architecture: ClassVar[bool] = True
    """Whether the model's architecture decides the cost of its answers."""

    def __init__(self, run: TrainingRun) -> None:
        self.run = run

    @classmethod
    def check_installed(cls) -> None:
        """Raise ``UserError`` where a package is missing."""
        for package in cls.packages:
            if find_spec(package) is None:
                raise UserError(f"{package} is missing: pip install 'icl-bench[finetune]'")

    def notes(self) -> list[str]:
        """What a user should know before the runs."""
        return []

    def facts(self, select: str) -> Mapping[str, Any]:
        """What decides its predictions beside the examples: goes into a cell's identity.

        ``select`` is the cell's name: the method's, or that of its upper bound.
        """
        del select
        return {}

    def learn(self, examples: Examples, keep: Path | None) -> list[Learned]:
        """Learn from the examples and answer the test rows, the method's own cell among them.

        ``keep`` is a folder for weights, where they are to be kept. Raises ``CellError`` where
        these examples cannot be learnt from.
        """
        raise NotImplementedError
