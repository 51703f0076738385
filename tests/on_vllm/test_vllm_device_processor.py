"""The label processor of vLLM's V2 model runner, in that runner's own interface, on the CPU.

The runner itself needs a GPU: its requests' state is laid out here as it lays it out.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import small_tokenizer

from icl_bench.backends.label_constraint import LabelAutomaton, compile_labels
from icl_bench.backends.vllm.label_file import FILE, write_automaton

SLOTS, ROOM, VOCABULARY = 6, 64, 400
END = VOCABULARY - 1


class Requests:
    """Slots with prompts and outputs, as the runner holds them, and the processor beside it."""

    def __init__(self) -> None:
        from icl_bench.backends.vllm.device_processor import DeviceLabelProcessor

        prompts = np.zeros(SLOTS, dtype=np.int32)
        self.prompt_len = SimpleNamespace(np=prompts, gpu=torch.from_numpy(prompts))
        self.tokens = torch.zeros(SLOTS, ROOM, dtype=torch.int32)
        self.total = [0] * SLOTS
        self.processor = DeviceLabelProcessor(
            None,
            SimpleNamespace(
                device=torch.device("cpu"),
                max_num_reqs=SLOTS,
                vocab_size=VOCABULARY,
                all_token_ids=SimpleNamespace(gpu=self.tokens),
                prompt_len=self.prompt_len,
            ),
        )

    def add(self, slot: int, prompt: int, automaton: Path | None) -> bool:
        self.tokens[slot] = 5  # what is left of another request
        self.prompt_len.np[slot] = self.total[slot] = prompt
        extra = None if automaton is None else {FILE: str(automaton)}
        return self.processor.add_request(slot, SimpleNamespace(extra_args=extra))

    def write(self, slot: int, token: int) -> None:
        self.tokens[slot, self.total[slot]] = token
        self.total[slot] += 1

    def step(self, slots: list[int], done: dict[int, int] | None = None) -> list[set[int] | None]:
        """What each row may write next; None for all. ``done`` tokens of a prompt are read."""
        from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext

        self.processor.apply_staged_writes()
        read = [(done or {}).get(slot, self.total[slot]) for slot in slots]
        rows = torch.tensor(slots, dtype=torch.int32)
        logits = torch.randn(len(slots), VOCABULARY)
        before = logits.clone()
        after = self.processor.apply(
            logits,
            LogitsContext(
                expanded_idx_mapping=rows,
                idx_mapping=rows,
                idx_mapping_np=rows.numpy(),
                expanded_local_pos=torch.zeros_like(rows),
                input_ids=rows,
                pos=torch.tensor(read) - 1,
                seq_lens_upper_bound_np=np.array(read),
            ),
        )
        found: list[set[int] | None] = []
        for row, old in zip(after, before, strict=True):
            kept = row > -torch.inf
            assert torch.equal(row[kept], old[kept])
            found.append(None if kept.all() else set(kept.nonzero().flatten().tolist()))
        return found


@pytest.fixture
def automata(tmp_path: Path) -> list[tuple[LabelAutomaton, Path]]:
    tokenizer = small_tokenizer()
    made = []
    for number, labels in enumerate((["yes", "no"], ["order", "order status", "other", "a"])):
        automaton = compile_labels([f" {label}\n" for label in labels], tokenizer)
        write_automaton(automaton, END, tmp_path / f"{number}.json")
        made.append((automaton, tmp_path / f"{number}.json"))
    return made


def allowed(automaton: LabelAutomaton, written: list[int]) -> set[int]:
    """By the automaton itself."""
    state = 0
    for token in written:
        state = int(automaton.targets[state][np.searchsorted(automaton.tokens[state], token)])
    return {END} if automaton.decided[state] >= 0 else set(automaton.tokens[state].tolist())


def test_rows_are_held_to_their_own_automata_however_they_come_and_go(automata: Any):
    random, requests = np.random.default_rng(0), Requests()
    held: dict[int, tuple[LabelAutomaton | None, list[int]]] = {}
    seen = set()
    for _ in range(150):
        free = [slot for slot in range(SLOTS) if slot not in held]
        if free and random.random() < 0.5:
            automaton, path = (*automata, (None, None))[random.integers(3)]
            assert requests.add(free[0], int(random.integers(1, 9)), path) == (path is not None)
            held[free[0]] = automaton, []
        slots = [int(slot) for slot in random.permutation(list(held))]
        for slot, found in zip(slots, requests.step(slots) if slots else [], strict=True):
            automaton, written = held[slot]
            if automaton is None:
                assert found is None
                written.append(int(random.integers(VOCABULARY)))
            else:
                assert found == allowed(automaton, written)
                seen.add((len(automaton.answers), len(written)))
                written.append(int(random.choice(sorted(found))))
            requests.write(slot, written[-1])
            if written[-1] == END or len(written) > 20:
                del held[slot]
    assert len(seen) > 8


def test_a_request_whose_prompt_is_still_being_read_stands_at_the_start(automata: Any):
    automaton, path = automata[1]
    requests = Requests()
    requests.add(2, 8, path)
    assert requests.step([2], {2: 3}) == [allowed(automaton, [])]
    assert requests.step([2]) == [allowed(automaton, [])]
