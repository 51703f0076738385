"""Responses of servers: text, finish reason, and billed tokens.

Fields are those of OpenAI's reference (https://developers.openai.com/api/reference), of compatible servers, and of
Anthropic's (https://platform.claude.com/docs/en/api/messages).

Cached tokens: ``prompt_tokens_details.cached_tokens`` (OpenAI, vLLM, SGLang), ``prompt_cache_hit_tokens`` (DeepSeek,
https://api-docs.deepseek.com/guides/kv_cache), ``usage.cached_tokens`` (Moonshot), ``cache_read_input_tokens`` and
``cache_creation_input_tokens`` (Anthropic's names, which gateways pass on). Thoughts: ``reasoning_content`` (DeepSeek,
vLLM before 0.12) or ``reasoning`` (vLLM, OpenRouter).

Google and xAI count thoughts in ``total_tokens`` but not in ``completion_tokens``
(https://ai.google.dev/gemini-api/docs/openai, https://docs.x.ai/docs/guides/reasoning); they are billed as
tokens of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, Field

from icl_bench.prompts.written_labels import without_thoughts

Tokens = Annotated[int, Field(ge=0, lt=2**31)]

CUT = ("length", "model_length", "max_tokens")
"""Finish reasons of an answer at a limit of tokens: everyone's, Mistral's, and Anthropic's, which gateways pass on."""

INTERRUPTED = ("error", "abort", "insufficient_system_resource", "failed", "cancelled")
"""Finish reasons and states of an answer that a failing server did not complete: OpenRouter's and Mistral's, vLLM's and
SGLang's, DeepSeek's, and two states of OpenAI's responses."""


class _PromptDetails(BaseModel):
    cached_tokens: Tokens | None = None
    cache_write_tokens: Tokens | None = None


class _AnswerDetails(BaseModel):
    reasoning_tokens: Tokens | None = None


class _Usage(BaseModel):
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    total_tokens: Tokens | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _AnswerDetails | None = None
    prompt_cache_hit_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(BaseModel):
    text: str | None = None
    message: _Message | None = None
    finish_reason: Any = None
    error: Any = None


class Completion(BaseModel):
    """The parsed part of a completion or a chat completion."""

    choices: list[_Choice]
    usage: _Usage | None = None
    model: Any = None

    @property
    def billed(self) -> Billed:
        """The tokens of the request, as the server counts them."""
        usage = self.usage or _Usage()
        prompt, answer = usage.prompt_tokens_details, usage.completion_tokens_details
        cached = _first(
            prompt.cached_tokens if prompt else None,
            usage.prompt_cache_hit_tokens,
            usage.cached_tokens,
            usage.cache_read_input_tokens,
        )
        created = _first(prompt.cache_write_tokens if prompt else None, usage.cache_creation_input_tokens)
        tokens, written, total = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens
        reasoning = answer.reasoning_tokens if answer else None
        apart = None if tokens is None or written is None or total is None else total - tokens - written
        of_cache = (cached or 0) + (created or 0)
        own = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)  # Anthropic's names
        if tokens is not None and (
            max(cached or 0, created or 0) > tokens or (0 < own == of_cache and apart in (own, own + (reasoning or 0)))
        ):
            tokens += of_cache  # counted separately, as Anthropic does
            apart = None if apart is None else apart - of_cache
        if written is not None and apart is not None and apart > 0 and reasoning in (None, apart):
            written, reasoning = written + apart, apart
        return Billed(prompt=tokens, cached=cached, written=created, answer=written, reasoning=reasoning)

    def said(self, *, chat: bool) -> Said:
        """The text of the first choice, or why it is missing, and the tokens."""
        choice = self.choices[0] if self.choices else _Choice()
        message = choice.message or _Message()
        raw = message.content if chat else choice.text
        thoughts = message.reasoning_content or message.reasoning or ""
        ended, billed = choice.finish_reason, self.billed
        written = _written(raw, thoughts, billed, cut=ended in CUT)
        if message.refusal:
            written = replace(written, reason=f"refused: {message.refusal}")
        elif str(ended).startswith("content_filter"):  # Google adds its reason
            written = replace(written, reason="content_filter")
        elif raw is None and written.reason is None and ended is not None and choice.message:
            written = replace(written, reason=f"no text (finish_reason {ended})")
        return Said(written, billed, _name(self.model), _interruption("finish_reason", ended, choice.error))


class _Part(BaseModel):
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None


class _Item(BaseModel):
    type: str = ""
    content: list[_Part] | None = None
    summary: list[_Part] | None = None


class _Incomplete(BaseModel):
    reason: str | None = None


class _InputDetails(BaseModel):
    cached_tokens: Tokens | None = None
    cache_write_tokens: Tokens | None = None


class _ResponseUsage(BaseModel):
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _AnswerDetails | None = None


class Response(BaseModel):
    """The parsed part of a response of OpenAI's responses."""

    output: list[_Item]
    status: str | None = None
    incomplete_details: _Incomplete | None = None
    usage: _ResponseUsage | None = None
    model: Any = None
    error: Any = None

    def said(self) -> Said:
        """The texts of its messages, or why they are missing, and the tokens."""
        usage = self.usage or _ResponseUsage()
        prompt, answer = usage.input_tokens_details, usage.output_tokens_details
        billed = Billed(
            prompt=usage.input_tokens,
            cached=prompt.cached_tokens if prompt else None,
            written=prompt.cache_write_tokens if prompt else None,
            answer=usage.output_tokens,
            reasoning=answer.reasoning_tokens if answer else None,
        )
        parts = [part for item in self.output if item.type == "message" for part in item.content or ()]
        thoughts = "\n".join(
            part.text or "" for item in self.output if item.type == "reasoning" for part in item.summary or ()
        )
        texts = [part.text for part in parts if part.text is not None]
        ended = self.incomplete_details.reason if self.incomplete_details else None
        raw = "".join(texts) if texts else None
        written = _written(raw, thoughts, billed, cut=ended == "max_output_tokens")
        if refusals := [part.refusal for part in parts if part.refusal]:
            written = replace(written, reason=f"refused: {refusals[0]}")
        elif ended == "content_filter":
            written = replace(written, reason="content_filter")
        elif raw is None and written.reason is None:
            written = replace(written, reason=f"no text (status {ended or self.status})")
        return Said(written, billed, _name(self.model), _interruption("status", self.status, self.error))


class _MessagesDetails(BaseModel):
    thinking_tokens: Tokens | None = None


class _MessagesUsage(BaseModel):
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    output_tokens_details: _MessagesDetails | None = None


class Messages(BaseModel):
    """The parsed part of a response of Anthropic's messages."""

    content: list[_Part]
    stop_reason: str | None = None
    usage: _MessagesUsage | None = None
    model: Any = None

    def said(self) -> Said:
        """The texts of its blocks, or why they are missing, and the tokens.

        ``input_tokens`` are the tokens after the last breakpoint, neither read from the cache nor written into it.
        """
        usage = self.usage or _MessagesUsage()
        read, wrote = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
        details = usage.output_tokens_details
        billed = Billed(
            prompt=None if usage.input_tokens is None else usage.input_tokens + (read or 0) + (wrote or 0),
            cached=read,
            written=wrote,
            answer=usage.output_tokens,
            reasoning=details.thinking_tokens if details else None,
        )
        thoughts = "".join(part.thinking or "" for part in self.content if part.type == "thinking")
        thought = thoughts or any("thinking" in part.type for part in self.content)
        texts = [part.text for part in self.content if part.type == "text" and part.text is not None]
        raw = "".join(texts) if texts else None
        cut = self.stop_reason in ("max_tokens", "model_context_window_exceeded")
        written = _written(raw, thoughts, billed, cut=cut, thought=bool(thought))
        if self.stop_reason == "refusal":
            written = replace(written, reason="refused")
        elif raw is None and written.reason is None:
            written = replace(written, reason=f"no text (stop_reason {self.stop_reason})")
        return Said(written, billed, _name(self.model))


def _written(raw: str | None, thoughts: str, billed: Billed, *, cut: bool, thought: bool = False) -> Written:
    """An answer with its thoughts. ``raw`` contains them in the model's format."""
    text = without_thoughts(raw or "")
    whole = raw if not thoughts else f"<think>{thoughts}</think>{raw or ''}"
    thought = thought or bool((raw or "").strip() or thoughts or billed.reasoning)
    out = "ran out of tokens while thinking" if not text.strip() and cut and thought else None
    return Written(whole, text, out, cut)


def _interruption(name: str, ended: Any, error: Any) -> str | None:
    """Why the server did not complete an answer; None if it did."""
    if ended not in INTERRUPTED:
        return None
    return f"it interrupted the answer: {name} {ended}" + (f", {error}"[:300] if error else "")


def _name(model: Any) -> str | None:
    return model if isinstance(model, str) and model else None


@dataclass(frozen=True)
class Said:
    """The content of a response."""

    written: Written
    billed: Billed
    model: str | None
    """The model that the server reports."""
    interruption: str | None = None
    """Why a failing server did not complete the answer; None if it did."""


@dataclass(frozen=True)
class Billed:
    """Tokens of one request as the server counts them; None if not reported.

    ``prompt`` includes ``cached`` and ``written``, ``answer`` includes ``reasoning``.
    """

    prompt: int | None = None
    cached: int | None = None
    """Prompt tokens that were read from a cache."""
    written: int | None = None
    """Prompt tokens that were written into a cache, if these are billed."""
    answer: int | None = None
    reasoning: int | None = None

    @classmethod
    def of(cls, parts: Sequence[Billed]) -> Billed:
        """The sum over several requests; None for counts that one of them does not report."""
        columns = zip(*map(astuple, parts), strict=True)
        return cls(*(None if None in column else sum(column) for column in columns))


@dataclass(frozen=True)
class Written:
    """The text of an answer."""

    raw: str | None
    """The server's text including thoughts; None if there is none."""
    text: str
    """The text without thoughts."""
    reason: str | None
    """Why there is no answer (refused, filtered, out of tokens); None if there is one."""
    truncated: bool


def _first(*counts: int | None) -> int | None:
    """The first known count. A server uses only one of the names."""
    return next((count for count in counts if count is not None), None)
