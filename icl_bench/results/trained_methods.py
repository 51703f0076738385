"""Names of what the examples can be used for besides prompting: a cell's ``select`` says it."""

from __future__ import annotations

from icl_bench.registry import TRAINING_METHODS

UPPER = "-paper"
"""How the name of an upper bound ends: its checkpoint was chosen on the test rows, as in Bertsch
et al. 2025."""
BASELINES = frozenset(name + end for name in TRAINING_METHODS.names for end in ("", UPPER))
"""All names of training methods and of their upper bounds."""
PROMPT = "prompt"


def kind(select: str) -> str:
    """What a ``select`` is one of: a baseline is its own kind, all ways to prompt are one.

    Settings are told apart within a kind: that training has a learning rate and a prompt has none
    is no difference between two settings.
    """
    return select if select in BASELINES else PROMPT


CLASSIFIER = "classifier"
"""The fact ``scoring`` of their cells: answers are a classifier's, not a language model's."""
