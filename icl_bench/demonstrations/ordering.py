"""Orders: how the chosen demonstrations are arranged in the prompt.

A query's own demonstrations behind shared ones have an order of their own: the most similar last.
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
    """How it is written, for messages."""
    nested: ClassVar[bool] = False
    """Whether the prompt of a smaller k begins the prompt of a larger k, for all test examples.

    (``relevance-reversed`` grows at its end too, but there each test example has its own prompt, so
    there is no prefix to share.)"""
    for_neighbours: ClassVar[bool] = False
    """Whether it is for demonstrations that see each other."""

    @staticmethod
    def parse(text: str) -> Order:
        """Read an order. Raises UserError on an unknown name or what stands behind it."""
        name, colon, argument = text.partition(":")
        if name not in ORDERS:
            known = nearest(name, (order.written for order in ORDERS.values()))
            raise UserError(f"unknown order {short(text)}: {known}")
        found: Order = ORDERS[name].parse_argument(argument if colon else None, text)
        return found

    @classmethod
    def parse_argument(cls, argument: str | None, text: str) -> Order:
        """Make one from what stands behind its name and a colon; ``text`` is the whole of it."""
        if argument is not None:
            raise UserError(f"order {short(text)}: only a shuffle has a seed; write {cls.name}")
        return cls()

    def __str__(self) -> str:
        return self.name

    def check_allowed(self, spec: SelectorSpec, *, labelled: bool = True) -> None:
        """Raise UserError if demonstrations that are chosen so cannot be put in this order.

        ``labelled`` says whether the task's answers are labels that rows have in common.
        """
        del spec, labelled

    def arrange(self, indices: np.ndarray, labels: Sequence[str], *names: str | int) -> np.ndarray:
        """Return the demonstrations ``(k,)`` in the order of the prompt, first to last.

        ``indices`` come as selected: drawn first to last, or the most similar first. ``labels``
        are theirs, in the same order, as the prompt shows them. ``names`` say whose demonstrations
        these are (draw, test example, ...), for what is random.

        Raises ValueError if there are more or fewer labels than demonstrations.
        """
        if len(labels) != len(indices):
            raise ValueError(f"{len(labels)} labels for {len(indices)} demonstrations")
        return self.arranged(indices, labels, *names)

    @abstractmethod
    def arranged(self, indices: np.ndarray, labels: Sequence[str], *names: str | int) -> np.ndarray:
        """As :meth:`arrange`, for an order to say: of as many labels as demonstrations."""


@dataclass(frozen=True)
class Drawn(Order):
    """As selected."""

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

    Shuffles with one seed but of different demonstrations are independent.
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
    """Sorted by the label that is shown, as selected within a label."""

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
