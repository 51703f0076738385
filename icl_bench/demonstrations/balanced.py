"""Balanced selection: the same number of demonstrations of every label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from icl_bench.demonstrations.interface import Pool, SharedSelector
from icl_bench.errors import ChoiceError, UserError
from icl_bench.wording import short


@dataclass(frozen=True)
class Balanced(SharedSelector):
    """The first demonstrations of the draw, the same number for each label."""

    name = "balanced"
    needs_labels = True
    refuses = True

    def choose(self, pool: Pool, draw: int, k: int) -> np.ndarray:
        """See ``SharedSelector``."""
        return balanced(pool.drawn(draw), pool.answers, k, pool.rng("balanced", draw))

    def most(self, pool: Pool, draw: int) -> int:
        """See ``SharedSelector``."""
        return len(rounds(pool.drawn(draw), pool.answers, pool.rng("balanced", draw))[0])


def balanced(draw: np.ndarray, labels: Sequence[str], k: int, rng: np.random.Generator) -> np.ndarray:
    """Choose k of a draw so that the counts of labels differ by at most one: ``(k,)`` train indices.

    ``draw`` has the pool's indices in drawn order, ``labels`` the label of every train row. Each
    round takes the next demonstration of every label, in an order of labels that ``rng`` draws for
    that round. The last round may be incomplete. With a generator of the same seed, the selection
    for k begins the selection for every larger k.

    Raises ``ChoiceError`` if k needs more examples of a label than the pool has.
    """
    order, scarce = rounds(draw, labels, rng)
    if k > len(order):
        available = sum(labels[i] == scarce for i in draw)
        most = available * len(set(labels))  # whole rounds only: another draw may fit less of an incomplete one
        raise ChoiceError(
            f"--select balanced: {k:,} demonstrations need more than the {available:,} examples in the "
            f"pool of label {short(scarce)}; "
            + (f"at most {most:,} can be balanced" if most else "it cannot be balanced")
        )
    return order[:k]


def shots_per_label(each: int, draw: np.ndarray, labels: Sequence[str]) -> int:
    """The k of ``--per-label each``: ``each`` demonstrations of every label of the train rows.

    Raises ``UserError`` if ``each`` is below 1, ``ChoiceError`` if a label has fewer in the pool.
    """
    if each < 1:
        raise UserError(f"--per-label {each}: must be at least 1")
    available = Counter(dict.fromkeys(sorted(set(labels)), 0))
    available.update(labels[i] for i in draw)
    label, fewest = min(available.items(), key=lambda item: item[1], default=("", 0))
    if fewest < each:
        few = sum(number < each for number in available.values())
        also = f" (and {few - 1} more labels have too few)" if few > 1 else ""
        raise ChoiceError(
            f"--per-label {each:,}: label {short(label)} has {fewest:,} in the pool{also}; "
            + (f"ask for at most {fewest:,}" if fewest else "it cannot be balanced")
        )
    return each * len(available)


def rounds(draw: np.ndarray, labels: Sequence[str], rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """The longest balanced order, and the label that runs out."""
    queues: dict[str, list[int]] = {label: [] for label in sorted(set(labels))}
    for i in draw:
        queues[labels[i]].append(i)
    names = list(queues)
    order: list[int] = []
    for place in count() if names else ():
        for number in rng.permutation(len(names)):
            queue = queues[names[number]]
            if place == len(queue):
                return np.array(order, dtype=draw.dtype), names[number]
            order.append(queue[place])
    return draw[:0], ""
