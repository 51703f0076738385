"""The interfaces of selectors: of demonstrations that all queries share, and of retrievers."""

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
"""The reason in messages why a task without common labels does not allow a selection."""


class Encoders(Protocol):
    """The text encoders, each loaded on first use, and sentence embeddings of the pool and of the queries, as unit
    vectors. Members that need an encoder raise ``UserError`` if there is none.
    """

    @property
    def unicode_words(self) -> bool:
        """Whether the train rows need Unicode's rules to find words."""

    @property
    def bertscore_encoder(self) -> Encoder:
        """The encoder of tokens."""

    @property
    def sentence_encoder(self) -> SentenceEncoder:
        """The encoder of whole texts."""

    @property
    def pool_embeddings(self) -> np.ndarray:
        """``(pool, width)``."""

    @property
    def pool_inputs(self) -> Sequence[str]:
        """The input text of each row of the pool: ``(pool,)``."""

    @property
    def query_embeddings(self) -> np.ndarray:
        """``(test, width)``."""

    @property
    def cache_dir(self) -> Path:
        """The folder of cached results."""

    @property
    def queries(self) -> list[str]:
        """The input text of each test row: ``(test,)``."""

    def fitted(self, by: str) -> Retriever:
        """The retriever of this name, fitted to the train rows."""


class Pool(Protocol):
    """The pool that a selector chooses from (:class:`icl_bench.demonstrations.pool.DemonstrationPool`)."""

    data: TaskData

    @property
    def rows(self) -> np.ndarray:
        """Train indices of the pool, in file order: ``(pool,)``."""

    @property
    def answers(self) -> Sequence[str]:
        """The answer of each train row: ``(train,)``."""

    @property
    def similarity(self) -> Encoders:
        """Encoders, and embeddings of the pool's texts and of the queries."""

    def places(self, train: np.ndarray) -> np.ndarray:
        """The pool positions of train indices."""

    def drawn(self, draw: int) -> np.ndarray:
        """Train indices of the pool in the order of one draw: ``(pool,)``."""

    def rng(self, *names: str | int) -> np.random.Generator:
        """A random generator for a purpose, from the run's seed."""

    def __len__(self) -> int:
        """The number of demonstrations in the pool."""


class SharedSelector(ABC):
    """Base of selectors of demonstrations that all queries share.

    A subclass is a frozen data class. Its typed fields are its parameters, which ``--select`` writes after its name: a
    field without a default after a colon, the others as options (``centroids,of=queries``). See
    :mod:`icl_bench.demonstrations.parameters`.
    """

    name: ClassVar[str]
    nested: ClassVar[bool] = True
    """Whether the selection for k begins the selection for every larger k."""
    embeds: ClassVar[bool] = False
    """Whether it depends on a sentence encoder."""
    needs_labels: ClassVar[bool] = False
    """Whether the task's answers must be labels."""
    drawn: ClassVar[bool] = True
    """Whether another draw may have other demonstrations."""
    similarity: ClassVar[str | None] = None
    """The retriever whose similarity it uses, if any."""
    refuses: ClassVar[bool] = False
    """Whether :meth:`choose` itself explains why k is larger than the pool allows."""

    @abstractmethod
    def choose(self, pool: Pool, draw: int, k: int) -> np.ndarray:
        """Train indices of the k demonstrations of one draw, in the order of selection: ``(k,)``.

        Take random generators from ``pool.rng(...)``. Raises ``ChoiceError`` if there are not
        enough: a sweep then skips this k and runs the others.
        """

    def most(self, pool: Pool, draw: int) -> int:
        """The largest possible k."""
        del draw
        return len(pool)

    @property
    def sees_queries(self) -> bool:
        """Whether it uses the (unlabelled) test queries."""
        return False

    def facts(self, encoders: Encoders) -> Mapping[str, Any]:
        """Facts that its selection depends on besides the data. Part of a cell's identity."""
        return sentence_encoder_fact(encoders) if self.embeds else {}

    def __str__(self) -> str:
        return self.name + parameters.written(self)


class Diversity(ABC):
    """Base of selectors of each query's own demonstrations that depend on each other.

    A subclass is a frozen data class, with parameters like those of ``SharedSelector``.
    """

    name: ClassVar[str]
    by: ClassVar[str]
    """The retriever whose similarity it uses, and whose facts its selection depends on."""

    @abstractmethod
    def choose(self, pool: Pool, k: int) -> np.ndarray:
        """Pool positions of each test row's k demonstrations, in the order of selection: ``(test, k)``.

        The selection for k begins the selection for every larger k. ``k`` is at most the pool's size.
        """

    def __str__(self) -> str:
        return self.name + parameters.written(self)


def sentence_encoder_fact(encoders: Encoders) -> Mapping[str, Any]:
    """The fact that names the sentence encoder. Raises ``UserError`` if there is none."""
    return {"sentence_encoder": encoders.sentence_encoder.fact}


class Retriever(ABC):
    """Base of similarities that rank the pool for each query."""

    name: ClassVar[str]
    embeds: ClassVar[bool] = False
    """Whether it depends on the sentence encoder of ``--encoder``."""
    compares: ClassVar[Literal["demonstrations", "inputs"]] = "demonstrations"
    """Whether a query's input is compared with whole demonstrations or only with their inputs."""

    @classmethod
    def of(cls, encoders: Encoders) -> Self:
        """Create a retriever with the encoder that it needs."""
        del encoders
        return cls()

    @classmethod
    def facts(cls, encoders: Encoders) -> Mapping[str, Any]:
        """Facts that its rankings depend on besides the texts. Part of a cell's identity."""
        return sentence_encoder_fact(encoders) if cls.embeds else {}

    @abstractmethod
    def fit(self, demonstrations: Sequence[str]) -> None:
        """Index the pool's texts."""

    @abstractmethod
    def rank(self, queries: Sequence[str]) -> Iterator[Ranking]:
        """Rank the pool for each query (a test example's input text), in the order given."""
