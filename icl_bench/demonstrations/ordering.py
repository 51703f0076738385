"""Orders: how the chosen demonstrations are arranged in the prompt.

A query's own demonstrations behind shared ones have an order of their own: the most similar last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.seeds import generator
from icl_bench.wording import nearest

Kind = Literal["drawn", "shuffled", "by-label", "relevance", "relevance-reversed"]


_WRITTEN = ("drawn", "shuffled:SEED", "by-label", "relevance", "relevance-reversed")


@dataclass(frozen=True)
class Order:
    """One order, written as in ``--order``: ``Order.parse(str(order)) == order``."""

    kind: Kind
    """``drawn``: as selected; ``shuffled``: a random order (Bertsch et al. 2025, section 4);
    ``by-label``: sorted by the label that is shown, as selected within a label; ``relevance``: the
    most similar last, next to the query; ``relevance-reversed``: the most similar first."""
    seed: int | None = None
    """Of ``shuffled``, and of nothing else."""

    def __post_init__(self) -> None:
        if (self.seed is not None) != (self.kind == "shuffled"):
            raise ValueError(f"a seed belongs to a shuffled order: {self.kind}, {self.seed}")

    @classmethod
    def parse(cls, text: str) -> Order:
        """Read an order. Raises UserError on an unknown name or a seed that is no number."""
        name, colon, seed = text.partition(":")
        for kind in get_args(Kind):
            if name == kind == "shuffled":
                if not re.fullmatch(r"[0-9]+", seed):
                    raise UserError(f"order {text!r}: a shuffle has a number, like shuffled:16")
                return cls(kind, int(seed))
            if name == kind:
                if colon:
                    raise UserError(f"order {text!r}: only a shuffle has a seed; write {kind}")
                return cls(kind)
        raise UserError(f"unknown order {text!r}: {nearest(name, _WRITTEN)}")

    def __str__(self) -> str:
        return self.kind if self.seed is None else f"{self.kind}:{self.seed}"

    @property
    def nested(self) -> bool:
        """Whether the prompt of a smaller k begins the prompt of a larger k, for all test examples.

        True for ``drawn`` alone. (``relevance-reversed`` grows at its end too, but each test
        example has its own prompt there, so there is no prefix to share.)
        """
        return self.kind == "drawn"

    def check_allowed(self, choice: SelectorSpec, *, labelled: bool = True) -> None:
        """Raise UserError if demonstrations that are chosen so cannot be put in this order.

        ``labelled`` says whether the task's answers are labels.
        """
        by_relevance = self.kind in ("relevance", "relevance-reversed")
        if by_relevance and not choice.retrieves:
            why = f"{choice} demonstrations have no relevance"
            if not choice.shared:
                why = f"{choice} has the query's own last anyway, the most similar last"
            raise UserError(f"order {self}: {why}; write drawn, shuffled:SEED or by-label")
        if self.kind == "drawn" and choice.retrieves:
            raise UserError(
                f"order {self}: {choice} demonstrations are ranked, not drawn; "
                "write relevance (most similar last) or relevance-reversed (most similar first)"
            )
        if self.kind == "by-label" and not labelled:
            raise UserError(f"order {self}: this task's answers are free text, not labels")

    def arrange(self, indices: np.ndarray, labels: Sequence[str], *names: str | int) -> np.ndarray:
        """Return the demonstrations ``(k,)`` in the order of the prompt, first to last.

        ``indices`` come as selected: drawn first to last, or the most similar first. ``labels``
        are theirs, in the same order. ``names`` say whose demonstrations these are (draw, test
        example, ...): shuffles with one seed but other names are independent.

        Raises ValueError if there are more or fewer labels than demonstrations.
        """
        if len(labels) != len(indices):
            raise ValueError(f"{len(labels)} labels for {len(indices)} demonstrations")
        if self.kind == "shuffled":
            assert self.seed is not None
            return generator(self.seed, "order", *names).permutation(indices)
        if self.kind == "by-label":
            by_label = sorted(range(len(indices)), key=lambda place: labels[place])
            return indices[np.array(by_label, dtype=np.int64)]
        return indices[::-1] if self.kind == "relevance" else indices
