"""Orders: how the chosen demonstrations are arranged in the prompt.

In a hybrid selection, only the shared demonstrations are arranged. The query's own always follow
them, the most similar last.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from icl_bench.demonstrations.interface import NO_LABELS, Encoders, Pool, sentence_encoder_fact
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.prompts.rendering import demonstration_text
from icl_bench.registry import ORDERS
from icl_bench.seeds import generator
from icl_bench.wording import nearest, short


@dataclass(frozen=True)
class Order(ABC):
    """Base of all orders, written as in ``--order``: ``Order.parse(str(order)) == order``."""

    name: ClassVar[str]
    written: ClassVar[str]
    """Its syntax, for messages."""
    nested: ClassVar[bool] = False
    """Whether the prompt of a smaller k begins the prompt of a larger k, for all test examples.

    (``relevance-reversed`` also grows at its end, but each test example has its own prompt, so there is no prefix to
    share.)
    """
    for_neighbours: ClassVar[bool] = False
    """Whether it makes sense only if demonstrations see each other."""
    embeds: ClassVar[bool] = False
    """Whether it depends on a sentence encoder."""

    @staticmethod
    def parse(text: str) -> Order:
        """Parse an order. Raises UserError for an unknown name or a wrong argument."""
        name, colon, argument = text.partition(":")
        if name not in ORDERS:
            hint = nearest(name, (order.written for order in ORDERS.values()))
            raise UserError(f"unknown order {short(text)}: {hint}")
        order: Order = ORDERS[name].parse_argument(argument if colon else None, text)
        return order

    @classmethod
    def parse_argument(cls, argument: str | None, text: str) -> Order:
        """Create an order from the text after its name and colon; ``text`` is the whole option."""
        if argument is not None:
            raise UserError(f"order {short(text)}: only a shuffle has a seed; write {cls.name}")
        return cls()

    def __str__(self) -> str:
        return self.name

    def check_allowed(self, spec: SelectorSpec, *, labelled: bool = True) -> None:
        """Raise UserError if the selector's demonstrations cannot be put in this order.

        ``labelled``: whether the task's answers are labels that rows have in common.
        """
        del spec, labelled

    def of(self, pool: Pool) -> Order:
        """The order for one pool's demonstrations. Most orders do not need the pool."""
        del pool
        return self

    def facts(self, encoders: Encoders) -> Mapping[str, Any]:
        """Facts that it depends on besides the data. Part of a cell's identity."""
        return sentence_encoder_fact(encoders) if self.embeds else {}

    def arrange(self, indices: np.ndarray, labels: Sequence[str], *names: str | int) -> np.ndarray:
        """Return the demonstrations ``(k,)`` in the order of the prompt, first to last.

        ``indices`` are in the order of selection: of the draw, or the most similar first.
        ``labels`` are their labels, in the same order, as the prompt shows them. ``names`` identify
        the prompt (draw, test example, ...) and seed random orders.

        Raises ValueError if the numbers of labels and demonstrations differ.
        """
        if len(labels) != len(indices):
            raise ValueError(f"{len(labels)} labels for {len(indices)} demonstrations")
        return self.arranged(indices, labels, *names)

    @abstractmethod
    def arranged(self, indices: np.ndarray, labels: Sequence[str], *names: str | int) -> np.ndarray:
        """Implements :meth:`arrange`, with one label for each demonstration."""


@dataclass(frozen=True)
class AsDrawn(Order):
    """The order of selection."""

    name = "drawn"
    written = "drawn"
    nested = True

    def check_allowed(self, spec: SelectorSpec, *, labelled: bool = True) -> None:
        """See ``Order``."""
        del labelled
        if spec.retrieves:
            raise UserError(
                f"order {self}: {spec} demonstrations are ranked, not sampled; "
                "write relevance (most similar last) or relevance-reversed (most similar first)"
            )

    def arranged(self, indices: np.ndarray, labels: Sequence[str], *names: str | int) -> np.ndarray:
        """See ``Order``."""
        del labels, names
        return indices


@dataclass(frozen=True)
class Shuffled(Order):
    """A random order (Bertsch et al. 2025, section 4).

    Shuffles of different demonstrations are independent, also with the same seed.
    """

    seed: int
    name = "shuffled"
    written = "shuffled:SEED"

    @classmethod
    def parse_argument(cls, argument: str | None, text: str) -> Order:
        """See ``Order``."""
        if not re.fullmatch(r"[0-9]{1,18}", argument or ""):
            raise UserError(f"order {short(text)}: a shuffle has a number of 1 to 18 digits, like shuffled:16")
        return cls(int(argument or ""))

    def __str__(self) -> str:
        return f"{self.name}:{self.seed}"

    def arranged(self, indices: np.ndarray, labels: Sequence[str], *names: str | int) -> np.ndarray:
        """See ``Order``."""
        del labels
        return generator(self.seed, "order", *names).permutation(indices)


@dataclass(frozen=True)
class ByLabel(Order):
    """Sorted by the label that the prompt shows. Within a label, the order of selection."""

    name = "by-label"
    written = "by-label"
    for_neighbours = True

    def check_allowed(self, spec: SelectorSpec, *, labelled: bool = True) -> None:
        """See ``Order``."""
        del spec
        if not labelled:
            raise UserError(f"order {self}: this task's {NO_LABELS}")

    def arranged(self, indices: np.ndarray, labels: Sequence[str], *names: str | int) -> np.ndarray:
        """See ``Order``."""
        del names
        by_label = sorted(range(len(indices)), key=lambda place: labels[place])
        arranged: np.ndarray = indices[np.array(by_label, dtype=np.int64)]
        return arranged


@dataclass(frozen=True)
class Relevance(Order):
    """The most similar last, next to the query."""

    name = "relevance"
    written = "relevance"

    def check_allowed(self, spec: SelectorSpec, *, labelled: bool = True) -> None:
        """See ``Order``."""
        del labelled
        if spec.retrieves:
            return
        why = f"{spec} demonstrations have no relevance"
        if not spec.shared:
            why = f"{spec} already puts the query's own last, the most similar last"
        raise UserError(f"order {self}: {why}; write drawn, shuffled:SEED or by-label")

    def arranged(self, indices: np.ndarray, labels: Sequence[str], *names: str | int) -> np.ndarray:
        """See ``Order``."""
        del labels, names
        return indices[::-1]


@dataclass(frozen=True)
class RelevanceReversed(Relevance):
    """The most similar first."""

    name = "relevance-reversed"
    written = "relevance-reversed"

    def arranged(self, indices: np.ndarray, labels: Sequence[str], *names: str | int) -> np.ndarray:
        """See ``Order``."""
        del labels, names
        return indices


@dataclass(frozen=True)
class InPoolOrder(Order):
    """As in the train file.

    The order of retrieved demonstrations in the code of Bertsch et al. 2025 (its text says by relevance).
    """

    name = "pool"
    written = "pool"

    def arranged(self, indices: np.ndarray, labels: Sequence[str], *names: str | int) -> np.ndarray:
        """See ``Order``."""
        del labels, names
        return np.sort(indices)


@dataclass(frozen=True)
class OfPool(Order):
    """Base of orders that read the demonstrations. They need :meth:`of` before arranging."""

    pool: Pool | None = field(default=None, compare=False, repr=False)

    def of(self, pool: Pool) -> Order:
        """See ``Order``."""
        return replace(self, pool=pool)

    def arranged(self, indices: np.ndarray, labels: Sequence[str], *names: str | int) -> np.ndarray:
        """See ``Order``."""
        del labels, names
        assert self.pool is not None, f"order {self} needs a pool"
        return self.arranged_of(self.pool, indices)

    @abstractmethod
    def arranged_of(self, pool: Pool, indices: np.ndarray) -> np.ndarray:
        """The demonstrations in the order of the prompt, implemented by a subclass."""


@dataclass(frozen=True)
class ByLength(OfPool):
    """The shortest first. Of equal length, the order of selection.

    The length is in characters of the whole demonstration as the data have it. So it depends neither
    on a tokenizer nor on a perturbation, and the order is the same for all models.
    """

    name = "by-length"
    written = "by-length"

    def arranged_of(self, pool: Pool, indices: np.ndarray) -> np.ndarray:
        """See ``OfPool``."""
        template, train = pool.data.spec.template, pool.data.train
        lengths = [len(demonstration_text(template, train[i])) for i in indices]
        arranged: np.ndarray = indices[np.argsort(np.array(lengths, dtype=np.int64), kind="stable")]
        return arranged


@dataclass(frozen=True)
class Smooth(OfPool):
    """A greedy nearest-neighbour path through the sentence embeddings of the inputs.

    The path starts at the first demonstration selected and moves to the nearest remaining one (by cosine). The prompt
    shows the path in reverse: the first one selected is last. So the most similar of a query's own demonstrations is
    next to the query, and the others lead to it.
    """

    name = "smooth"
    written = "smooth"
    for_neighbours = True
    embeds = True

    def arranged_of(self, pool: Pool, indices: np.ndarray) -> np.ndarray:
        """See ``OfPool``."""
        arranged: np.ndarray = indices[nearest_path(pool.similarity.pool_embeddings[pool.places(indices)])[::-1]]
        return arranged


def nearest_path(embeddings: np.ndarray) -> np.ndarray:
    """Visit unit embeddings ``(n, width)`` from the first, each time the most similar unvisited: ``(n,)``.

    Ties visit the first. Similarities are rounded to six decimals, so that rounding errors of the processor do not
    decide.
    """
    points = embeddings.astype(np.float64)
    similar = (points @ points.T).round(6)
    path = np.zeros(len(points), dtype=np.int64)
    for step in range(1, len(points)):
        similar[:, path[step - 1]] = -np.inf
        path[step] = similar[path[step - 1]].argmax()
    return path
