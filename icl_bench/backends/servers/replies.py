"""What a server with OpenAI's interface answers: text, why it ended, and the tokens that it bills.

Fields are those of OpenAI's reference (https://platform.openai.com/docs/api-reference/chat/object) and
of servers that copy it. Cached tokens: ``prompt_tokens_details.cached_tokens`` (OpenAI, vLLM, SGLang),
``prompt_cache_hit_tokens`` (DeepSeek, https://api-docs.deepseek.com/guides/kv_cache),
``usage.cached_tokens`` (Moonshot), ``cache_read_input_tokens`` and ``cache_creation_input_tokens``
(Anthropic's names, which gateways hand through). Thoughts: ``reasoning_content`` (DeepSeek, vLLM before
0.12) or ``reasoning`` (vLLM, OpenRouter).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field

from icl_bench.prompts.written_labels import without_thoughts

Tokens = Annotated[int, Field(ge=0, lt=2**31)]


class _PromptDetails(BaseModel):
    cached_tokens: Tokens | None = None
    cache_write_tokens: Tokens | None = None


class _AnswerDetails(BaseModel):
    reasoning_tokens: Tokens | None = None


class _Usage(BaseModel):
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
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


class Completion(BaseModel):
    """The part of a response that is read, of a completion or a chat completion."""

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
        tokens = usage.prompt_tokens
        if tokens is not None and cached is not None and cached > tokens:
            tokens += cached  # counted apart, as Anthropic does
        return Billed(
            prompt=tokens,
            cached=cached,
            written=_first(prompt.cache_write_tokens if prompt else None, usage.cache_creation_input_tokens),
            answer=usage.completion_tokens,
            reasoning=answer.reasoning_tokens if answer else None,
        )

    def written(self, *, chat: bool) -> Written:
        """The text of the first choice, or why there is none."""
        choice = self.choices[0] if self.choices else _Choice()
        message = choice.message or _Message()
        raw = message.content if chat else choice.text
        text = without_thoughts(raw or "")
        thoughts = (raw or "").strip() or message.reasoning_content or message.reasoning or self.billed.reasoning
        ended = choice.finish_reason
        cut = ended == "length"
        reason = None
        if message.refusal:
            reason = f"refused: {message.refusal}"
        elif ended == "content_filter":
            reason = "content_filter"
        elif not text.strip() and cut and thoughts:
            reason = "ran out of tokens while thinking"
        elif raw is None:
            reason = f"no text (finish_reason {ended})" if ended is not None and choice.message else None
        return Written(raw, text, reason, cut)


@dataclass(frozen=True)
class Billed:
    """Tokens of one request as the server counts them; None where it says nothing.

    ``prompt`` includes ``cached`` and ``written`` ones, ``answer`` includes ``reasoning``.
    """

    prompt: int | None = None
    cached: int | None = None
    """Prompt tokens that were read from a cache."""
    written: int | None = None
    """Prompt tokens that were written into a cache, where this is billed."""
    answer: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True)
class Written:
    """The text of an answer."""

    raw: str | None
    """As the server has it; None if there is none."""
    text: str
    """Without thoughts."""
    reason: str | None
    """Why the answer is none: refused, filtered, no tokens left; None if it is one."""
    truncated: bool


def _first(*counts: int | None) -> int | None:
    """The first count that is known; of several names only one is in use."""
    return next((count for count in counts if count is not None), None)
