"""The label constraint inside vLLM's V1 model runner: a logits processor that walks the automaton.

The engine loads the class by name in its own process. A request has its automaton's file in
``extra_args``. Requests without one are not changed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from icl_bench.backends.vllm.label_file import FILE, States, read_states


@cache
def _load_automaton(path: str, device: torch.device) -> tuple[States, list[torch.Tensor]]:
    """States, and the tokens that each state allows, ``(allowed,)`` int64."""
    states = read_states(path)
    return states, [torch.tensor(list(moves), device=device) for moves in states]


class _Row:
    """One request: its automaton and the state after its output."""

    def __init__(self, states: States, allowed: list[torch.Tensor], output: list[int]) -> None:
        self._states, self._allowed, self._output = states, allowed, output
        self._state = self._read = 0

    def allowed(self) -> torch.Tensor:
        """Tokens that may follow the output so far."""
        for token in self._output[self._read :]:
            to = self._states[self._state].get(token)
            self._state = self._state if to is None else to
        self._read = len(self._output)
        return self._allowed[self._state]


class LabelProcessor(LogitsProcessor):  # type: ignore[misc]
    """Masks the tokens that a constrained request's automaton does not allow."""

    def __init__(
        self,
        vllm_config: Any,  # noqa: ARG002
        device: torch.device,
        is_pin_memory: bool,  # noqa: ARG002
    ) -> None:
        self._device = device
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        """Whether the most probable token never changes: false."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Update the requests that are added, removed or moved within the batch."""
        process_dict_updates(self._rows, batch_update, self._added)

    def _added(self, params: Any, _: Any, output: list[int]) -> _Row | None:
        path = (params.extra_args or {}).get(FILE)
        return _Row(*_load_automaton(path, self._device), output) if path else None

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask ``(requests, vocabulary)`` logits in place."""
        for index, row in self._rows.items():
            allowed = row.allowed()
            allowed_logits = logits[index, allowed]
            logits[index] = float("-inf")
            logits[index, allowed] = allowed_logits
        return logits
