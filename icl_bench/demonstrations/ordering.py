"""Orders: how the chosen demonstrations are arranged in the prompt.

In a hybrid selection, only the shared demonstrations are arranged. The query's own always follow
them, the most similar last.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from icl_bench.demonstrations.interface import NO_LABELS
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
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

    (``relevance-reversed`` grows at its end too, but there each test example has its own prompt, so
    there is no prefix to share.)"""
    for_neighbours: ClassVar[bool] = False
    """Whether it makes sense only if demonstrations see each other."""

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
        """Create an order from the text behind its name and colon; ``text`` is the whole option."""
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
        """What an order implements for :meth:`arrange`, with one label for each demonstration."""


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
                f"order {self}: {spec} demonstrations are ranked, not drawn; "
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
            why = f"{spec} has the query's own last anyway, the most similar last"
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
