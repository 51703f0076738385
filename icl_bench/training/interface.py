"""Interface of training methods, which train on a prompt's k examples and answer the test rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from icl_bench.errors import UserError
from icl_bench.models.architecture import Architecture, architecture_of
from icl_bench.models.attention_patterns import Pattern
from icl_bench.models.text_encoders import SentenceEncoder
from icl_bench.models.trained import own_pattern
from icl_bench.results.stored_meta import TrainingMeta
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.training.embeddings import Embeddings
from icl_bench.training.examples import Examples
from icl_bench.training.spec import FinetuneSpec


@dataclass(frozen=True)
class Learned:
    """A method's result for one k and draw."""

    select: str
    """The name of its cell: the method, or its upper bound."""
    probabilities: np.ndarray
    """``(test, labels)``"""
    seconds: float
    """Seconds to answer the test rows."""
    training: TrainingMeta = field(default_factory=TrainingMeta)
    """The training and its cost."""
    query_flops: float | None = None
    """Operations of answering a single test row without padding (mean); None if unknown."""


@dataclass(frozen=True)
class LearningCost:
    """The cost of a method for one k and draw, by formula, before training."""

    tokens: float
    """Tokens of the training."""
    flops: float
    """Operations of the training."""
    query_tokens: float
    query_flops: float
    """Operations of answering a test row alone (mean)."""
    flops_of_answers: float
    """Operations of answering the test rows as often as the training does."""

    @property
    def all_flops(self) -> float:
        """Operations of the training and of all these answers."""
        return self.flops + self.flops_of_answers

    @property
    def all_tokens(self) -> float:
        """Tokens of the training and of all these answers."""
        return self.tokens + self.query_tokens * self.flops_of_answers / max(self.query_flops, 1.0)


@dataclass
class TrainingRun:
    """Settings that all methods of one run share."""

    spec: FinetuneSpec
    task: TokenizedTask
    device: str
    dtype: str

    @cached_property
    def architecture(self) -> Architecture:
        """The model's architecture, which decides its cost."""
        return architecture_of(self.task.model.source)

    @cached_property
    def embeddings(self) -> Embeddings:
        """Sentence embeddings by the packaged encoder. Raises ``UserError`` if it is missing."""
        return Embeddings(SentenceEncoder.find())

    @property
    def pattern(self) -> Pattern:
        """The attention pattern that the model was adapted to."""
        return own_pattern(self.task.model.source)


class TrainingMethod(ABC):
    """Base of all methods; one instance handles every k and draw of a run."""

    name: ClassVar[str]
    packages: ClassVar[Sequence[str]] = ()
    """Required modules, all in the extra ``finetune``."""
    backend: ClassVar[str]
    """Value of the column ``backend`` of its cells."""
    has_architecture: ClassVar[bool] = True
    """Whether the model's architecture decides the cost of its answers."""
    selects_checkpoint: ClassVar[bool] = False
    """Whether it selects a checkpoint on ``Examples.held_out``. Other methods train on all k rows."""
    has_upper_bound: ClassVar[bool] = False
    """Whether :meth:`learn` also returns the cell of its upper bound."""

    def __init__(self, run: TrainingRun) -> None:
        self.run = run

    @classmethod
    def check_installed(cls) -> None:
        """Raise ``UserError`` if a package is missing."""
        for package in cls.packages:
            if find_spec(package) is None:
                raise UserError(f"{package} is missing: pip install 'icl-bench[finetune]'")

    def notes(self) -> list[str]:
        """Notes for the user before the trainings."""
        return []

    def facts(self, select: str) -> Mapping[str, Any]:
        """Facts that decide the predictions of the cell ``select`` besides the examples, for its identity."""
        del select
        return {}

    def cost(self, examples: Examples) -> LearningCost | None:
        """The cost of :meth:`learn`; None without a formula. Raises ``CellError`` like it."""
        del examples
        return None

    @abstractmethod
    def learn(self, examples: Examples, keep: Path | None) -> list[Learned]:
        """Train on the examples and answer the test rows. The results include the method's own cell.

        ``keep`` is a folder for the trained model; None if it is not kept. Raises ``CellError`` if these examples
        cannot be trained on.
        """
