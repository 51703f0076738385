"""What chooses demonstrations: selectors of what all queries share, and retrievers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from icl_bench.demonstrations import parameters
from icl_bench.demonstrations.ranking import Ranking

if TYPE_CHECKING:
    from typing import Self

    from icl_bench.models.text_encoders import Encoder, SentenceEncoder
    from icl_bench.tasks.examples import TaskData


NO_LABELS = "answers are free text, or choices of each row's own, not labels that rows share"
"""What is said of a task where something needs its labels."""


class Embeddings(Protocol):
    """Sentence embeddings of the pool and of the queries, of length 1."""

    @property
    def pool_embeddings(self) -> np.ndarray:
        """``(pool, width)``. Raises ``UserError`` where there is no encoder."""

    @property
    def query_embeddings(self) -> np.ndarray:
        """``(test, width)``. Raises ``UserError`` where there is no encoder."""

    @property
    def cache_dir(self) -> Path:
        """Where what is computed once is kept."""


class Pool(Protocol):
    """What a selector chooses from (:class:`icl_bench.demonstrations.pool.DemonstrationPool`)."""

    data: TaskData

    @property
    def rows(self) -> np.ndarray:
        """Train indices of the pool, in file order: ``(pool,)``."""

    @property
    def answers(self) -> Sequence[str]:
        """The answer of each train row: ``(train,)``."""

    @property
    def similarity(self) -> Embeddings:
        """Embeddings of the pool's texts and of the queries."""

    def drawn(self, draw: int) -> np.ndarray:
        """Train indices of the pool in the order of one draw: ``(pool,)``."""

    def rng(self, *names: str | int) -> np.random.Generator:
        """The generator of a purpose, of the run's seed."""

    def __len__(self) -> int:
        """Demonstrations there are."""


class SharedSelector(ABC):
    """Base of what chooses demonstrations that all queries share.

    A subclass is a frozen data class. Its typed fields are its parameters, which ``--select`` writes
    behind its name: a field without a default behind a colon, the others as options
    (``centroids,of=queries``). See :mod:`icl_bench.demonstrations.parameters`.
    """

    name: ClassVar[str]
    nested: ClassVar[bool] = True
    """Whether the choice for k begins the choice for every larger k."""
    embeds: ClassVar[bool] = False
    """Whether it depends on a sentence encoder."""
    needs_labels: ClassVar[bool] = False
    """Whether it is for tasks whose answers are labels."""
    refuses: ClassVar[bool] = False
    """Whether :meth:`choose` itself says what is wrong with a k that is more than the pool."""

    @abstractmethod
    def choose(self, pool: Pool, draw: int, k: int) -> np.ndarray:
        """Train indices of the k demonstrations of one draw, as selected: ``(k,)``.

        What is random takes its generator from ``pool.rng(...)``. Raises ``ChoiceError`` where
        there are not enough: this k is left out then, and others go on.
        """

    def most(self, pool: Pool, draw: int) -> int:
        """The largest k there is."""
        del draw
        return len(pool)

    @property
    def sees_queries(self) -> bool:
        """Whether it looks at the (unlabelled) test queries."""
        return False

    def facts(self, encoders: Encoders) -> Mapping[str, Any]:
        """What decides its choice beside the data: goes into a cell's identity."""
        return sentence_encoder_fact(encoders) if self.embeds else {}

    def __str__(self) -> str:
        return self.name + parameters.written(self)


class Encoders(Protocol):
    """What a retriever may compare texts by; each is loaded when it is asked for."""

    @property
    def bertscore_encoder(self) -> Encoder:
        """Compares tokens. Raises ``UserError`` where there is none."""

    @property
    def sentence_encoder(self) -> SentenceEncoder:
        """Embeds whole texts. Raises ``UserError`` where there is none."""

    @property
    def cache_dir(self) -> Path:
        """Where what is computed once is kept."""


def sentence_encoder_fact(encoders: Encoders) -> Mapping[str, Any]:
    """The fact that names the sentence encoder. Raises ``UserError`` where there is none."""
    return {"sentence_encoder": encoders.sentence_encoder.name}


class Retriever(ABC):
    """Base of measures of similarity that rank the pool for each query."""

    name: ClassVar[str]
    embeds: ClassVar[bool] = False
    """Whether it depends on the sentence encoder of ``--encoder``."""
    compares: ClassVar[Literal["demonstrations", "inputs"]] = "demonstrations"
    """What of the pool a query's input is compared with: answers too, or inputs alone."""

    @classmethod
    def of(cls, encoders: Encoders) -> Self:
        """Make one, with the encoder that it needs."""
        del encoders
        return cls()

    @classmethod
    def facts(cls, encoders: Encoders) -> Mapping[str, Any]:
        """What decides its rankings beside the texts: goes into a cell's identity."""
        return sentence_encoder_fact(encoders) if cls.embeds else {}

    @abstractmethod
    def fit(self, demonstrations: Sequence[str]) -> None:
        """Take in the pool's texts."""

    @abstractmethod
    def rank(self, queries: Sequence[str]) -> Iterator[Ranking]:
        """Rank the pool for each query (a test example's input text), in the order given."""
