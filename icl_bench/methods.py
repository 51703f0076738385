"""Names of what the examples can be used for besides prompting: a cell's ``select`` says it."""

from __future__ import annotations

TRAINED = ("lora", "full")
"""Fine-tuning: the checkpoint is the one that validation rows choose."""
UPPER = "-paper"
"""How the name of an upper bound ends: its checkpoint was chosen on the test rows, as in Bertsch
et al. 2025."""
METHODS = (*TRAINED, "probe", "knn")
BASELINES = frozenset({*METHODS, *(name + UPPER for name in TRAINED)})
CLASSIFIER = "classifier"
"""The fact ``scoring`` of their cells: answers are a classifier's, not a language model's."""
