"""Names of training methods, which are the ``select`` of their cells."""

from __future__ import annotations

from icl_bench.registry import TRAINING_METHODS

UPPER = "-paper"
"""Suffix of the name of an upper bound: its checkpoint was selected on the test rows, as in Bertsch et al. 2025."""
BASELINES = frozenset(name + end for name in TRAINING_METHODS.names for end in ("", UPPER))
"""All names of training methods and of their upper bounds."""
PROMPTED = "prompt"


def kind(select: str) -> str:
    """The kind of a ``select``: each baseline is a separate kind, all selectors are one kind.

    Settings are distinguished within a kind: a learning rate, which only training has, does
    not distinguish two settings.
    """
    return select if select in BASELINES else PROMPTED


CLASSIFIER = "classifier"
"""The fact ``scoring`` of training methods' cells: a classifier gives the answers."""
