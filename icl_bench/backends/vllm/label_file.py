"""A label constraint as a file, for an engine that runs in processes of its own."""

from __future__ import annotations

import json
from pathlib import Path

from icl_bench.backends.label_constraint import LabelAutomaton

FILE = "icl_bench_labels"
"""Under which of a request's ``extra_args`` its automaton's file is named."""

States = list[dict[int, int | None]]
"""Of each state the tokens that are allowed and the states to which they lead; where an answer is
decided, that is the token that ends it, and it leads nowhere."""


def write_automaton(automaton: LabelAutomaton, end: int, path: Path) -> None:
    """Save what the processor needs; ``end`` is the token that ends a decided answer."""
    states = [
        dict(zip(tokens.tolist(), targets.tolist(), strict=True))
        for tokens, targets in zip(automaton.tokens, automaton.targets, strict=True)
    ]
    decided = (automaton.decided >= 0).tolist()
    path.write_text(json.dumps({"states": states, "decided": decided, "end": end}))


def read_states(path: str) -> States:
    """What :func:`write_automaton` has saved."""
    held = json.loads(Path(path).read_text())
    return [
        {held["end"]: None} if decided else {int(token): to for token, to in moves.items()}
        for moves, decided in zip(held["states"], held["decided"], strict=True)
    ]
