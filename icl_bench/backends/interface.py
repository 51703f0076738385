"""What the runner asks of an engine: token ids in, answers out, a pack at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from icl_bench.backends.label_constraint import LabelAutomaton, LabelTrie
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import PromptSet


@dataclass(frozen=True)
class Greedy:
    """Take the likeliest allowed token at each step until one label is left."""

    automaton: LabelAutomaton


@dataclass(frozen=True)
class Exact:
    """Score every label by the sum of its tokens' log-probabilities; the largest wins."""

    trie: LabelTrie


@dataclass(frozen=True)
class Free:
    """Generate greedily, without constraint, up to ``stop`` or ``max_tokens`` tokens."""

    stop: str
    max_tokens: int


Decoding = Greedy | Exact | Free


@dataclass(frozen=True)
class Answer:
    """What an engine says to one prompt."""

    index: int
    """Which prompt of the set."""
    cached_tokens: int
    """Prompt tokens that were not computed for this answer but shared or taken from a cache."""
    answer_tokens: int
    """Tokens that were decided one by one (0 where labels were scored)."""
    label: int | None = None
    """Which answer of the constraint; None for free text."""
    text: str | None = None
    """The generated text before the stop; None under a constraint."""
    probability: float | None = None
    """Probability of the answer with its end, given the prompt (exact scoring only)."""
    margin: float | None = None
    """``probability`` minus the second label's."""
    label_mass: float | None = None
    """Probability of all labels together: what is left of 1 is on text that is no label."""


@dataclass
class Counters:
    """Work done since the engine started."""

    prefix_tokens: int = 0
    """Prompt tokens computed once and shared."""
    own_tokens: int = 0
    """Prompt tokens computed for one query alone."""
    answer_tokens: int = 0
    """Answer tokens fed back to choose the next."""
    seconds: float = 0.0
    prefix_seconds: float = 0.0
    """Of ``seconds``, those in which shared tokens were computed."""

    @property
    def prompt_tokens(self) -> int:
        """All prompt tokens computed."""
        return self.prefix_tokens + self.own_tokens


class Backend(Protocol):
    """An engine with a loaded model."""

    name: str
    counters: Counters

    @property
    def peak_prefix_bytes(self) -> int | None:
        """Most bytes of keys and values that were kept while the last prompts were answered; None
        where the engine does not say.
        """

    def identity(self) -> dict[str, str]:
        """What of the engine decides the answers: its name, the dtype, ..."""
        ...

    def answer(
        self,
        prompts: PromptSet,
        todo: Sequence[int],
        decoding: Decoding,
        reserve: int,
        pattern: Pattern = FULL,
    ) -> Iterator[list[Answer]]:
        """Answer the prompts whose indices are in ``todo``, a pack at a time, in any order.

        Calls whose prefixes extend one another should follow each other: the engine keeps what it
        has computed. ``reserve`` is the longest prefix (tokens) that will follow. ``pattern`` says
        which tokens see which; an engine that has only ``full`` is not asked for another.

        Raises ``CellError`` where this cell cannot be computed, for example for lack of memory.
        """
        ...
