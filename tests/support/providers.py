"""Providers' interfaces on the loopback that count, cache and bill as their documents say.

A token is a word. Every request is logged with what it is billed, which is the truth of the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.api_server import Reply

STEP = 128
"""OpenAI's cache holds prompts from 1,024 tokens, in steps of 128
(https://developers.openai.com/api/docs/guides/prompt-caching)."""

LEAST = 1024
"""Anthropic's cache holds nothing shorter, depending on the model
(https://platform.claude.com/docs/en/build-with-claude/prompt-caching, "Cache limitations")."""

LOOKBACK = 20
"""Blocks before a breakpoint that Anthropic compares with what is cached (the same page, "automatic prefix checking")."""

MOST_BREAKPOINTS = 4


@dataclass
class Bill:
    """What one request is billed."""

    new: int
    cached: int
    written: int
    answer: int
    thoughts: int = 0

    @property
    def prompt(self) -> int:
        return self.new + self.cached + self.written


@dataclass
class Provider:
    """A provider with a cache. ``says`` makes the answer's text of a request's last content."""

    says: Callable[[str], str] = lambda _: "card lost"
    thinks: int = 0
    bills: list[Bill] = field(default_factory=list)
    forgets: bool = False
    """Whether nothing stays in the cache."""
    _cached: set[str] = field(default_factory=set)

    # -- Anthropic's Messages -------------------------------------------------------------------

    def messages(self, body: dict[str, Any]) -> Reply:
        blocks = [*body.get("system", []), *(block for turn in body["messages"] for block in turn["content"])]
        marks = [at for at, block in enumerate(blocks) if "cache_control" in block]
        if len(marks) > MOST_BREAKPOINTS:
            return _refused("A maximum of 4 blocks with cache_control may be provided.")
        if any(not block["text"].strip() for block in blocks):
            return _refused("text content blocks must contain non-whitespace text")
        if any(not stop.strip() for stop in body.get("stop_sequences", [])):
            return _refused("stop_sequences: each stop sequence must contain non-whitespace")
        thinking = body.get("thinking", {}).get("type")
        if thinking in ("enabled", "adaptive") and body.get("temperature", 1) != 1:
            return _refused("`temperature` may only be set to 1 when thinking is enabled")
        if thinking == "enabled" and not 1024 <= body["thinking"]["budget_tokens"] < body["max_tokens"]:
            return _refused("budget_tokens must be at least 1024 and less than max_tokens")
        starts = [json.dumps([b["text"] for b in blocks[: at + 1]]) for at in range(len(blocks))]
        sizes = [sum(len(b["text"].split()) for b in blocks[: at + 1]) for at in range(len(blocks))]
        read = max(
            (
                sizes[at]
                for mark in marks
                for at in range(max(mark - LOOKBACK, 0), mark + 1)
                if starts[at] in self._cached
            ),
            default=0,
        )
        whole = max((sizes[mark] for mark in marks if sizes[mark] >= LEAST), default=0)
        written = max(whole - read, 0)
        if not self.forgets:
            self._cached |= {starts[mark] for mark in marks if sizes[mark] >= LEAST}
        thoughts = self.thinks if thinking in ("enabled", "adaptive") else 0
        text = self.says(blocks[-1]["text"])
        bill = Bill(sizes[-1] - read - written, read, written, thoughts + len(text.split()), thoughts)
        self.bills.append(bill)
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if thoughts:
            content.insert(0, {"type": "thinking", "thinking": "I think", "signature": "x"})
        return 200, {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": content,
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": bill.new,
                "cache_read_input_tokens": bill.cached,
                "cache_creation_input_tokens": bill.written,
                "output_tokens": bill.answer,
            },
        }

    # -- OpenAI's interfaces --------------------------------------------------------------------

    def _openai(self, text: str, answer: str) -> Bill:
        words = text.split()
        steps = list(range(LEAST, len(words) + 1, STEP))
        read = max((n for n in steps if " ".join(words[:n]) in self._cached), default=0)
        if not self.forgets:
            self._cached |= {" ".join(words[:n]) for n in steps}
        bill = Bill(len(words) - read, read, 0, self.thinks + len(answer.split()), self.thinks)
        self.bills.append(bill)
        return bill

    def chat(self, body: dict[str, Any]) -> Reply:
        text = " ".join(message["content"] for message in body["messages"])
        answer = self.says(body["messages"][-1]["content"])
        bill = self._openai(text, answer)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
        usage = {
            "prompt_tokens": bill.prompt,
            "completion_tokens": bill.answer,
            "total_tokens": bill.prompt + bill.answer,
            "prompt_tokens_details": {"cached_tokens": bill.cached},
            "completion_tokens_details": {"reasoning_tokens": bill.thoughts},
        }
        return 200, {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }

    def google(self, body: dict[str, Any]) -> Reply:
        """Thoughts stand in the total alone (https://ai.google.dev/gemini-api/docs/openai)."""
        status, reply = self.chat(body)
        reply["usage"]["completion_tokens"] -= self.thinks
        del reply["usage"]["completion_tokens_details"]
        return status, reply

    def responses(self, body: dict[str, Any]) -> Reply:
        """https://developers.openai.com/api/reference/resources/responses/methods/create."""
        for name in ("stop", "messages", "max_tokens", "max_completion_tokens"):
            if name in body:
                return 400, {"error": {"message": f"Unknown parameter: '{name}'.", "param": name}}
        text = " ".join(message["content"] for message in body["input"])
        answer = self.says(body["input"][-1]["content"])
        bill = self._openai(text, answer)
        output: list[dict[str, Any]] = [
            {
                "id": "msg",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": answer, "annotations": []}],
            }
        ]
        if self.thinks:
            output.insert(
                0, {"id": "rs", "type": "reasoning", "summary": [{"type": "summary_text", "text": "I think"}]}
            )
        return 200, {
            "id": "resp_1",
            "object": "response",
            "created_at": 0,
            "model": "m",
            "status": "completed",
            "output": output,
            "usage": {
                "input_tokens": bill.prompt,
                "input_tokens_details": {"cached_tokens": bill.cached, "cache_write_tokens": 0},
                "output_tokens": bill.answer,
                "output_tokens_details": {"reasoning_tokens": bill.thoughts},
                "total_tokens": bill.prompt + bill.answer,
            },
        }


def _refused(message: str) -> Reply:
    """Anthropic's error of a request (https://platform.claude.com/docs/en/api/errors)."""
    return 400, {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
