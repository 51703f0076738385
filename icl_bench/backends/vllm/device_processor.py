"""The label constraint inside vLLM's V2 model runner: tables of the automata on the device.

A request has a slot, and its output is on the device. Each step walks the automata from their starts
over the output, at most a label's tokens. No state is kept between steps, so requests may be
preempted and resumed, and no step waits for the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

from icl_bench.backends.vllm.label_file import FILE, States, read_states

FREE = -1
"""The start state of a request without constraint."""


class Tables:
    """Concatenated automata, with a row for each state.

    ``tokens`` and ``targets`` are ``(states, widest)`` int64: the tokens that are allowed in a state
    and the states they lead to. The first one is repeated to the width of the widest state.
    """

    def __init__(self, device: torch.device) -> None:
        self.tokens = self.targets = torch.zeros(0, 1, dtype=torch.long, device=device)
        self._starts: dict[str, int] = {}

    def start(self, path: str) -> int:
        """The first state of the automaton in a file."""
        if path not in self._starts:
            self._starts[path] = len(self.tokens)
            self._add(read_states(path))
        return self._starts[path]

    def _add(self, states: States) -> None:
        first, widest = len(self.tokens), max(self.tokens.shape[1], *map(len, states))
        rows = []
        for number, moves in enumerate(states):
            pairs = [(token, first + (number if to is None else to)) for token, to in moves.items()]
            rows.append(pairs + pairs[:1] * (widest - len(pairs)))
        new = torch.tensor(rows, device=self.tokens.device)
        self.tokens = torch.cat([_wider(self.tokens, widest), new[..., 0]])
        self.targets = torch.cat([_wider(self.targets, widest), new[..., 1]])

    def after(self, state: Tensor, token: Tensor) -> Tensor:
        """The states after tokens, ``(rows,)`` each. A token that is not allowed keeps the state."""
        matches = self.tokens[state] == token.unsqueeze(1)
        target = self.targets[state].gather(1, matches.int().argmax(1, keepdim=True)).squeeze(1)
        return torch.where(matches.any(1), target, state)


def _wider(table: Tensor, width: int) -> Tensor:
    more = table[:, :1].expand(-1, width - table.shape[1])
    return torch.cat([table, more], 1)


class DeviceLabelProcessor(LogitsProcessor):  # type: ignore[misc]
    """Masks the tokens that a constrained request's automaton does not allow."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:  # noqa: ARG002
        self._requests = req_states
        self._tables = Tables(req_states.device)
        self._starts = torch.full((req_states.max_num_reqs,), FREE)
        self._on_device = self._starts.to(req_states.device)
        self._changed = False

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Add a request to a slot. Returns whether it is constrained."""
        path = (sampling_params.extra_args or {}).get(FILE)
        self._starts[req_idx] = self._tables.start(path) if path else FREE
        self._changed = True
        return path is not None

    def apply_staged_writes(self) -> None:
        """Copy the slots' start states to the device."""
        if self._changed:
            # a clone: the next step may write while this copy is in progress
            self._on_device = self._starts.clone().to(self._on_device.device, non_blocking=True)
            self._changed = False

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Mask ``(rows, vocabulary)`` logits in place."""
        slots = ctx.expanded_idx_mapping.long()
        start = self._on_device[slots]
        constrained = (start != FREE).unsqueeze(1)
        state = self._written(start.clamp_min(0), slots, ctx)
        allowed = self._tables.tokens[state]
        masked = torch.full_like(logits, float("-inf"))
        masked.scatter_(1, allowed, logits.gather(1, allowed))
        return logits.copy_(torch.where(constrained, masked, logits))

    def _written(self, state: Tensor, slots: Tensor, ctx: Any) -> Tensor:
        """The states that the requests' outputs have reached: ``(rows,)``."""
        prompt = self._requests.prompt_len
        # the upper bound is on the host, so the number of iterations does not depend on the device
        written = ctx.seq_lens_upper_bound_np - prompt.np[ctx.idx_mapping_np]
        first = prompt.gpu[slots].long()
        length = ctx.pos.long() + 1 - first
        all_tokens = self._requests.all_token_ids.gpu
        for place in range(int(written.max(initial=0))):
            at = (first + place).clamp_max(all_tokens.shape[1] - 1)
            after = self._tables.after(state, all_tokens[slots, at].long())
            state = torch.where(place < length, after, state)
        return state
