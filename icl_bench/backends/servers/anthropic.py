"""Anthropic's Messages API: https://platform.claude.com/docs/en/api/messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icl_bench.backends.servers.interface import End, Held, Interface, Question, label_schema
from icl_bench.backends.servers.replies import Messages as Reply
from icl_bench.backends.servers.replies import Said
from icl_bench.backends.servers.thinking import Thinking

BREAKPOINT = {"cache_control": {"type": "ephemeral"}}
"""Marks the end of a cached part. A request has at most four
(https://platform.claude.com/docs/en/build-with-claude/prompt-caching).
"""


class Messages(Interface):
    """A conversation whose shared parts end at cache breakpoints."""

    name = "messages"
    library = "anthropic"
    client = "AsyncAnthropic"
    holds = ("json",)
    limits = ("max_tokens",)
    stop = "stop_sequences"
    blank_stops = False
    thinks_at_zero = False
    named = frozenset({"max_tokens"})
    batches = "anthropic"

    def marked(self, question: Question) -> Mapping[str, Any]:
        """See ``Interface.marked``: a separate system turn, and breakpoints after the shared parts."""
        ends = question.ends
        contents = [_blocks(turn["content"], _ends_in(ends, at)) for at, turn in enumerate(question.messages)]
        for end in ends:
            if not end.characters:
                contents[end.message - 1][-1] |= BREAKPOINT
        turns = [(turn["role"], blocks) for turn, blocks in zip(question.messages, contents, strict=True)]
        system = [block for role, blocks in turns if role == "system" for block in blocks]
        messages = [{"role": role, "content": blocks} for role, blocks in turns if role != "system"]
        return {"messages": messages} | ({"system": system} if system else {})

    def held(self, hold: Held, labels: Sequence[str]) -> dict[str, Any]:  # noqa: ARG002 - only one
        """See ``Interface.held``: https://platform.claude.com/docs/en/build-with-claude/structured-outputs."""
        return {"output_config": {"format": {"type": "json_schema", "schema": label_schema(labels)}}}

    def thinking(self, thinking: Thinking) -> dict[str, Any]:
        """See ``Interface.thinking``: https://platform.claude.com/docs/en/build-with-claude/thinking."""
        if thinking.effort is None:
            return {"thinking": {"type": "enabled", "budget_tokens": thinking.tokens}}
        if thinking.effort == "off":
            return {"thinking": {"type": "disabled"}}
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": thinking.effort}}

    def create(self, client: Any) -> Any:
        """See ``Interface.create``."""
        return client.messages.with_raw_response.create

    def read(self, content: bytes) -> Said:
        """See ``Interface.read``."""
        return Reply.model_validate_json(content).said()


def _ends_in(ends: Sequence[End], message: int) -> list[int]:
    """The characters of a message after which a shared part ends."""
    return [end.characters for end in ends if end.message == message and end.characters]


def _blocks(text: str, ends: Sequence[int]) -> list[dict[str, Any]]:
    """A message's content, with a breakpoint after each of these numbers of characters."""
    parts = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    blocks: list[dict[str, Any]] = [{"type": "text", "text": part} for part in parts if part]
    for block in blocks[: len(ends)]:
        block |= BREAKPOINT
    return blocks
