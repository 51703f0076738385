"""A label constraint as a file, for an engine that runs in other processes."""

from __future__ import annotations

import json
from pathlib import Path

from icl_bench.backends.label_constraint import LabelAutomaton

FILE = "icl_bench_labels"
"""The key of the automaton's file in a request's ``extra_args``."""

States = list[dict[int, int | None]]
"""For each state, the allowed tokens and the states that they lead to. In a decided state, only the
token that ends the answer is allowed, and leads to None."""


def write_automaton(automaton: LabelAutomaton, end: int, path: Path) -> None:
    """Write an automaton for the processor. ``end`` is the token that ends a decided answer."""
    states = [
        dict(zip(tokens.tolist(), targets.tolist(), strict=True))
        for tokens, targets in zip(automaton.tokens, automaton.targets, strict=True)
    ]
    decided = (automaton.decided >= 0).tolist()
    path.write_text(json.dumps({"states": states, "decided": decided, "end": end}))


def read_states(path: str) -> States:
    """Read the states that :func:`write_automaton` has written."""
    saved = json.loads(Path(path).read_text())
    return [
        {saved["end"]: None} if decided else {int(token): to for token, to in moves.items()}
        for moves, decided in zip(saved["states"], saved["decided"], strict=True)
    ]
