"""How a provider's interface is asked, and what it answers: one class for each interface.

An interface makes the arguments of a request and reads the response. Retries, limits, caches and
counts are the same for all (:class:`icl_bench.backends.servers.backend.ServerBackend`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from icl_bench.backends.servers.replies import Said
from icl_bench.prompts.encoding import PromptSet

if TYPE_CHECKING:
    from icl_bench.backends.servers.thinking import Thinking
    from icl_bench.prompts.rendering import Message

Held = Literal["choice", "json"]
"""How a server holds an answer to the labels: one of some texts, or JSON of a schema."""


@dataclass(frozen=True)
class Question:
    """One prompt as a server gets it."""

    text: str
    messages: Sequence[Message]
    ends: tuple[End, ...] = ()
    """Where parts end that other prompts begin with, too, the shortest first."""


@dataclass(frozen=True, order=True)
class End:
    """The end of a shared part of a conversation."""

    message: int
    """Messages before it."""
    characters: int
    """Characters of the message that it is in. 0: it ends with the message before."""


class Interface(ABC):
    """One interface of a provider."""

    name: ClassVar[str]
    """Its endpoint, a fact of cells."""
    library: ClassVar[Literal["openai", "anthropic"]] = "openai"
    """The Python package of its client. Both packages name their errors alike."""
    client: ClassVar[str] = "AsyncOpenAI"
    chat: ClassVar[bool] = True
    """Whether it is asked with messages."""
    holds: ClassVar[tuple[Held, ...]] = ("choice", "json")
    """How it may hold answers to labels."""
    limits: ClassVar[tuple[str, ...]]
    """Names of the limit of tokens, the likeliest first."""
    stop: ClassVar[str | None] = "stop"
    """The name of the argument with the texts that end an answer; None if there is none."""
    blank_stops: ClassVar[bool] = True
    """Whether these texts may be blanks alone."""
    thinks_at_zero: ClassVar[bool] = True
    """Whether the model may think at temperature 0."""
    seed: ClassVar[str | None] = None
    """The name of the argument with the seed of a sampled answer; None if there is none."""
    named: ClassVar[frozenset[str]] = frozenset()
    """Arguments beside the prompt's that the client needs by name."""
    cached_from: ClassVar[int] = 1024
    """Tokens of a shared part from which the provider's cache may hold it."""
    batches: ClassVar[str | None] = None
    """How it takes batches: ``openai``, ``anthropic`` or not at all."""

    def marked(self, question: Question) -> Mapping[str, Any]:
        """The arguments with the prompt."""
        return {"messages": [dict(message) for message in question.messages]}

    @abstractmethod
    def held(self, hold: Held, labels: Sequence[str]) -> dict[str, Any]:
        """The arguments that hold an answer to the labels."""

    @abstractmethod
    def thinking(self, thinking: Thinking) -> dict[str, Any]:
        """The arguments for how long the model may think."""

    @abstractmethod
    def create(self, client: Any) -> Any:
        """The client's method that sends a request and returns the raw response."""

    @abstractmethod
    def read(self, content: bytes) -> Said:
        """What a response says. Raises ``pydantic.ValidationError``."""


def label_schema(labels: Sequence[str]) -> dict[str, Any]:
    """A JSON schema of an object with one of the labels."""
    label = {"type": "string", "enum": [label.strip() for label in labels]}
    return {"type": "object", "properties": {"label": label}, "required": ["label"], "additionalProperties": False}


def shared_end(prompts: PromptSet, todo: Sequence[int]) -> End | None:
    """Where the part ends that these prompts' conversations all begin with; None if they share none.

    A part of a message ends after a line break, or, if it is the first message, a blank: no word is cut.
    """
    if len(todo) < 2 or not prompts.prefix:
        return None
    samples = [prompts.messages(todo[at]) for at in (0, len(todo) // 2, -1)]
    same = 0
    while all(len(one) > same + 1 and one[same] == samples[0][same] for one in samples):
        same += 1
    contents = [one[same]["content"] for one in samples]
    size = next((at for at, letters in enumerate(zip(*contents, strict=False)) if len(set(letters)) > 1), 0)
    cut = 1 + contents[0].rfind("\n", 0, size)
    if not cut and not same:
        cut = 1 + contents[0].rfind(" ", 0, size)
    if not contents[0][:cut].strip():
        cut = 0
    return End(same, cut) if same or cut else None


def as_json(content: bytes) -> Any:
    """A response's JSON; None if it is none."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
