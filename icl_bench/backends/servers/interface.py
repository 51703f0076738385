"""Requests and responses of a provider's interface: one class for each interface.

An interface creates the arguments of a request and reads the response. Retries, limits, caches and counts are the same
for all (:class:`icl_bench.backends.servers.backend.ServerBackend`).
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
"""How a server constrains an answer to the labels: to one of several texts, or to JSON of a schema."""


@dataclass(frozen=True)
class Question:
    """One prompt as it is sent to a server."""

    text: str
    messages: Sequence[Message]
    ends: tuple[End, ...] = ()
    """The ends of parts that other prompts begin with, too, the shortest first."""


@dataclass(frozen=True, order=True)
class End:
    """The end of a shared part of a conversation."""

    message: int
    """Messages before it."""
    characters: int
    """Characters of the message in which it ends. 0: it ends with the previous message."""


class Interface(ABC):
    """One interface of a provider."""

    name: ClassVar[str]
    """Its endpoint, a fact of cells."""
    library: ClassVar[Literal["openai", "anthropic"]] = "openai"
    """The Python package of its client. Both packages name their errors alike."""
    client: ClassVar[str] = "AsyncOpenAI"
    chat: ClassVar[bool] = True
    """Whether requests contain messages."""
    holds: ClassVar[tuple[Held, ...]] = ("choice", "json")
    """The ways of constraining answers to labels."""
    limits: ClassVar[tuple[str, ...]]
    """Names of the token limit, the most common first."""
    stop: ClassVar[str | None] = "stop"
    """The name of the argument with the texts that end an answer; None if there is none."""
    blank_stops: ClassVar[bool] = True
    """Whether these texts may consist of blanks only."""
    thinks_at_zero: ClassVar[bool] = True
    """Whether the model may think at temperature 0."""
    seed: ClassVar[str | None] = None
    """The name of the argument with the seed of a sampled answer; None if there is none."""
    named: ClassVar[frozenset[str]] = frozenset()
    """Arguments besides the prompt that the client requires by name."""
    cached_from: ClassVar[int] = 1024
    """The minimum tokens of a shared part that the provider's cache may hold."""
    batches: ClassVar[str | None] = None
    """The batch interface: ``openai``, ``anthropic`` or none."""

    def marked(self, question: Question) -> Mapping[str, Any]:
        """The arguments with the prompt."""
        return {"messages": [dict(message) for message in question.messages]}

    @abstractmethod
    def held(self, hold: Held, labels: Sequence[str]) -> dict[str, Any]:
        """The arguments that constrain the answer to the labels."""

    @abstractmethod
    def thinking(self, thinking: Thinking) -> dict[str, Any]:
        """The arguments that limit the model's thoughts."""

    @abstractmethod
    def create(self, client: Any) -> Any:
        """The client's method that sends a request and returns the raw response."""

    @abstractmethod
    def read(self, content: bytes) -> Said:
        """The content of a response. Raises ``pydantic.ValidationError``."""


def label_schema(labels: Sequence[str]) -> dict[str, Any]:
    """A JSON schema of an object with one of the labels."""
    label = {"type": "string", "enum": [label.strip() for label in labels]}
    return {"type": "object", "properties": {"label": label}, "required": ["label"], "additionalProperties": False}


def shared_end(prompts: PromptSet, todo: Sequence[int]) -> End | None:
    """The end of the common beginning of these prompts' conversations; None without one.

    A part of a message ends after a line break, or in the first message after a blank, so that words stay whole.
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
    """A response's JSON; None if it is not JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
