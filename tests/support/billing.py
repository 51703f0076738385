"""A server that bills: it counts tokens its own way, caches prefixes, and keeps a log of what it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from icl_bench.backends.interface import Answer, Decoding
from icl_bench.models.prices import Prices
from icl_bench.prompts.encoding import PromptSet
from icl_bench.sweep.plan import Plan
from support import fakes

SERVED = {"backend": "openai", "server": "https://api.example.com/v1", "endpoint": "completions"}


@dataclass(frozen=True)
class Request:
    """One line of the server's log."""

    prompt: int
    cached: int
    written: int
    answer: int
    """With its thoughts."""


@dataclass
class Bill:
    """The server's log, which is the truth."""

    writes: bool
    """Whether writing into the cache is billed apart: Anthropic's ``cache_creation_input_tokens``
    (https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching), not OpenAI's automatic caching
    (https://platform.openai.com/docs/guides/prompt-caching)."""
    requests: list[Request] = field(default_factory=list)
    held: int = 0
    """Tokens of the longest prefix in the cache."""

    def money(self, prices: Prices) -> float:
        """Added up request by request."""
        parts = [
            (one.prompt - one.cached - one.written) * prices.input
            + one.cached * prices.cached
            + one.written * prices.write
            + one.answer * prices.output
            for one in self.requests
        ]
        return sum(parts) / 1e6

    @property
    def tokens(self) -> int:
        """Computed ones, of prompts and answers."""
        return sum(one.prompt - one.cached + one.answer for one in self.requests)


class BilledBackend(fakes.FakeBackend):
    """Answers as the fake does, with the tokens of a server whose tokenizer is another one."""

    def __init__(self, bill: Bill) -> None:
        super().__init__()
        self._bill = bill

    def identity(self) -> dict[str, str]:
        return SERVED

    def _answered(self, prompts: PromptSet, index: int, decoding: Decoding) -> Answer:
        answer = super()._answered(prompts, index, decoding)
        prefix, own = 2 * len(prompts.prefix) + 3, 2 * len(prompts.suffixes[index])
        cached = min(self._bill.held, prefix)
        written = prefix - cached if self._bill.writes else 0
        self._bill.held = max(self._bill.held, prefix)
        thoughts = 5 + index
        one = Request(prefix + own, cached, written, 2 + thoughts)
        self._bill.requests.append(one)
        return replace(
            answer,
            prompt_tokens=one.prompt,
            cached_tokens=cached,
            written_tokens=written if self._bill.writes else None,
            answer_tokens=one.answer,
            reasoning_tokens=thoughts,
        )


def run_at_server(plan: Plan, results: Path, bill: Bill) -> None:
    """Run a plan against the server."""
    engine = BilledBackend(bill)
    replace(fakes.runner(plan, results, engine), identity_of_backend=SERVED).run()


def of_model(plan: Plan, name: str) -> Plan:
    """The plan of another model with the same tokenizer."""
    renamed = replace(plan.task.model, name=name, requested_name=name)
    task = replace(plan.task, model=renamed)
    ks = ",".join(str(k) for k in sorted({cell.spec.k for cell in plan.cells}))
    draws = 1 + max(cell.spec.draw for cell in plan.cells)
    selects: Sequence[str] = list(dict.fromkeys(cell.spec.select for cell in plan.cells))
    return fakes.planned(task, ks, selects=selects, draws=draws)
