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
    """The same number of each label, the first of the draw."""

    name = "balanced"
    needs_labels = True
    refuses = True

    def choose(self, pool: Pool, draw: int, k: int) -> np.ndarray:
        """See ``SharedSelector``."""
        return balanced(pool.drawn(draw), pool.answers, k, pool.rng("balanced", draw))

    def most(self, pool: Pool, draw: int) -> int:
        """See ``SharedSelector``."""
        return largest(pool.drawn(draw), pool.answers, pool.rng("balanced", draw))


def balanced(draw: np.ndarray, labels: Sequence[str], k: int, rng: np.random.Generator) -> np.ndarray:
    """Choose k of a draw so that labels' numbers differ by one at most: ``(k,)`` train indices.

    ``draw`` has the pool's indices in drawn order, ``labels`` the label of every train row. Each
    round takes one demonstration of every label, the first of the draw that is left, in an order of
    labels that ``rng`` draws for that round; a last round that is not whole is the remainder. So
    the choice for k begins the choice for every larger k, with a generator of the same seed.

    Raises ``ChoiceError`` where k asks for more of a label than the pool has.
    """
    order, scarce = _rounds(draw, labels, rng)
    if k > len(order):
        there = sum(labels[i] == scarce for i in draw)
        most = there * len(set(labels))  # of a remainder, another draw may have less
        raise ChoiceError(
            f"--select balanced: {k:,} demonstrations need more than the {there:,} examples in the "
            f"pool of label {short(scarce)}; "
            + (f"at most {most:,} can be balanced" if most else "it cannot be balanced")
        )
    return order[:k]


def largest(draw: np.ndarray, labels: Sequence[str], rng: np.random.Generator) -> int:
    """The largest k that :func:`balanced` can give for this draw and generator."""
    return len(_rounds(draw, labels, rng)[0])


def shots_per_label(each: int, draw: np.ndarray, labels: Sequence[str]) -> int:
    """The k of ``--per-label each``: so many demonstrations of every label of the train rows.

    Raises ``ChoiceError`` where it is no number from 1 up, or a label has fewer in the pool.
    """
    if each < 1:
        raise UserError(f"--per-label {each}: must be at least 1")
    there = Counter(dict.fromkeys(sorted(set(labels)), 0))
    there.update(labels[i] for i in draw)
    label, fewest = min(there.items(), key=lambda item: item[1], default=("", 0))
    if fewest < each:
        few = sum(number < each for number in there.values())
        others = f" (and {few - 1} more labels have too few)" if few > 1 else ""
        raise ChoiceError(
            f"--per-label {each:,}: label {short(label)} has {fewest:,} in the pool{others}; "
            + (f"ask for at most {fewest:,}" if fewest else "it cannot be balanced")
        )
    return each * len(there)


def _rounds(draw: np.ndarray, labels: Sequence[str], rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """The longest balanced order there is, and the label that the pool has no more of."""
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
