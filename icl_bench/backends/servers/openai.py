"""The API backend: a server with OpenAI's interface, which generates free text.

Its answers cannot be constrained to labels; they are stripped and compared with them (Bertsch et
al., section 4, frontier models). Requests have the prompt's text, not ids, because the server has
its own tokenizer. The key is read from the environment only, and removed from every message.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, Field, ValidationError

from icl_bench.backends.background import packs
from icl_bench.backends.interface import Answer, Counters, Decoding, Free
from icl_bench.errors import CellError, UserError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import PromptSet
from icl_bench.wording import one_line

KEY = "OPENAI_API_KEY"

RETRY_SECONDS = 600.0
"""How long requests are repeated if the server is unreachable, overloaded or failing."""

_PAUSE_SECONDS = 5.0  # between attempts; the library repeats each attempt with back-off

_TIMEOUT_SECONDS = 600.0

_ALSO_SENT = ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID")
"""Environment variables that the library sends beside the key, if set."""


def address(base_url: str | None) -> str:
    """The server's address, checked. Raises ``UserError``."""
    if not base_url:
        raise UserError("--backend openai: needs --base-url, like https://host/v1")
    try:
        parts = urlsplit(base_url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UserError("--base-url: not an address like https://host/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UserError(f"--base-url: must hold no key, user or query; a key goes into {KEY}")
    return base_url.rstrip("/")


def api_key() -> str:
    """The key, from the environment. Raises ``UserError``, which does not contain it."""
    for name in (KEY, *_ALSO_SENT):
        value = os.environ.get(name, "").strip()
        if not all("!" <= letter <= "~" for letter in value):
            raise UserError(
                f"--backend openai: {name}: holds a blank, a line break or another character that "
                "cannot be sent; set it to the key alone, which is letters, digits and signs"
            )
    key = os.environ.get(KEY, "").strip()
    if not key:
        raise UserError(f"--backend openai: {KEY} is not set; for a server that needs no key set it to any word")
    return key


def without_key(text: str, key: str) -> str:
    """A message on one line, without the key in any spelling."""
    for spelled in (key, json.dumps(key)[1:-1], repr(key)[1:-1], quote(key), quote(key, safe="")):
        text = text.replace(spelled, "***")
    return one_line("".join(sign if sign.isprintable() else " " for sign in text))


_Tokens = Annotated[int, Field(ge=0, lt=2**31)]


class _Details(BaseModel):
    cached_tokens: _Tokens | None = None


class _Usage(BaseModel):
    prompt_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None
    prompt_tokens_details: _Details | None = None


class _Message(BaseModel):
    content: str | None = None


class _CompletionChoice(BaseModel):
    text: str | None = None
    message: _Message | None = None
    finish_reason: Any = None


class _Completion(BaseModel):
    """The part of a server's response that is read, of a completion or a chat completion."""

    choices: list[_CompletionChoice]
    usage: _Usage | None = None


_Reply = tuple[Answer, int]
"""A server's answer to one prompt, and the number of the prompt's tokens that were computed for it."""


class OpenAIBackend:
    """A model behind a server with OpenAI's completions or chat completions."""

    name = "openai"
    peak_prefix_bytes = None

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        identity: Mapping[str, str],
        endpoint: Literal["completions", "chat"] = "completions",
        concurrency: int = 8,
        patience_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Connect to the server. Raises ``CellError`` if it does not respond."""
        import openai

        self.counters = Counters()
        self._openai: Any = openai
        self._model, self._endpoint, self._identity = model, endpoint, dict(identity)
        self._concurrency, self._patience = concurrency, patience_seconds
        self._lost = False
        self._key = api_key()
        self._connection: dict[str, Any] = {
            "base_url": base_url,
            "api_key": self._key,
            "timeout": _TIMEOUT_SECONDS,
            "max_retries": 2,
        }
        try:
            openai.OpenAI(**self._connection).models.with_raw_response.list()
        except openai.APIConnectionError as error:
            raise self._failure(f"{base_url} does not answer ({_failure_reason(error)})") from None
        except openai.AuthenticationError:
            raise self._failure(f"{base_url} refuses the key in {KEY}") from None
        except openai.OpenAIError:
            pass  # a server need not list its models

    def identity(self) -> dict[str, str]:
        """See ``Backend.identity``."""
        return dict(self._identity)

    def answer(
        self,
        prompts: PromptSet,
        todo: Sequence[int],
        decodings: Sequence[Decoding],
        reserve: int,  # noqa: ARG002 - the server keeps what it likes
        pattern: Pattern = FULL,
    ) -> Iterator[list[Answer]]:
        """See ``Backend.answer``. If a request fails, completed answers are yielded first."""
        assert pattern == FULL, "attention patterns run on the transformers backend"

        def ask(hand: Callable[[_Reply], None]) -> Any:
            return self._ask_all(prompts, todo, decodings, hand)

        start = time.perf_counter()
        for replies in packs(ask):
            now = time.perf_counter()
            self.counters.seconds += now - start
            start = now
            for answer, computed in replies:
                self.counters.own_tokens += computed
                self.counters.answer_tokens += answer.answer_tokens
            yield [answer for answer, _ in replies]

    async def _ask_all(
        self, prompts: PromptSet, todo: Sequence[int], decodings: Sequence[Decoding], hand: Callable[[_Reply], None]
    ) -> None:
        """Send several requests at a time. After a failure, no further request is started."""
        in_flight = asyncio.Semaphore(self._concurrency)
        failures: list[CellError] = []

        async def ask(index: int) -> None:
            async with in_flight:
                if failures:
                    return
                decoding = decodings[index]
                assert isinstance(decoding, Free), "a server's answers cannot be constrained"
                try:
                    hand(await self._ask(client, index, self._prompt_arguments(prompts, index), decoding))
                except CellError as error:
                    failures.append(error)

        async with self._openai.AsyncOpenAI(**self._connection) as client:
            await asyncio.gather(*map(ask, todo))
        if failures:
            raise failures[0]

    def _prompt_arguments(self, prompts: PromptSet, index: int) -> dict[str, Any]:
        """A request's arguments for one prompt: its text, or its messages."""
        if self._endpoint == "chat":
            return {"messages": [dict(message) for message in prompts.messages(index)]}
        return {"prompt": prompts.text(index)}

    async def _ask(self, client: Any, index: int, prompt: Mapping[str, Any], decoding: Free) -> _Reply:
        """Send one prompt, repeatedly while the server is unreachable, overloaded or failing."""
        openai = self._openai
        deadline = time.monotonic() + (0.0 if self._lost else self._patience)
        while True:
            try:
                response = await self._request(client, prompt, decoding)
            except (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError) as error:
                if time.monotonic() > deadline:
                    self._lost = True  # later cells are tried once, without waiting
                    reason = f"the server failed for long ({_failure_reason(error)})"
                    raise self._failure(reason) from None
                await asyncio.sleep(min(_PAUSE_SECONDS, self._patience / 10))
            except openai.AuthenticationError:
                raise self._failure(f"the server refuses the key in {KEY}") from None
            except openai.OpenAIError as error:
                reason = f"the server refuses the request ({_failure_reason(error)})"
                raise self._failure(reason) from None
            else:
                self._lost = False
                return self._reply(index, response.http_response, decoding)

    def _request(self, client: Any, prompt: Mapping[str, Any], decoding: Free) -> Any:
        # the server's tokenizer may need more tokens for the same text
        limit = 2 * decoding.max_tokens + 8 if decoding.of_labels else decoding.max_tokens
        common: dict[str, Any] = {"model": self._model, "temperature": 0, "stop": list(decoding.stops)}
        if self._endpoint == "chat":
            return client.chat.completions.with_raw_response.create(max_completion_tokens=limit, **prompt, **common)
        return client.completions.with_raw_response.create(max_tokens=limit, **prompt, **common)

    def _reply(self, index: int, response: Any, decoding: Free) -> _Reply:
        """Parse a response. Raises ``CellError`` if it is not valid."""
        try:
            completion = _Completion.model_validate_json(response.content)
        except ValidationError as error:
            content = without_key(response.content[:2000].decode(errors="replace"), self._key)
            raise self._failure(_invalid_answer(error, _content_type(response), content)) from None
        choice = completion.choices[0] if completion.choices else _CompletionChoice()
        message = choice.message or _Message()
        text = message.content if self._endpoint == "chat" else choice.text
        if text is None:
            raise self._failure("the server answered with nothing instead of text")
        ended = decoding.before_stop(text)
        usage = completion.usage or _Usage()
        details = usage.prompt_tokens_details or _Details()
        cached, truncated = details.cached_tokens or 0, choice.finish_reason == "length"
        text = text if ended is None else ended
        answer = Answer(index, cached, usage.completion_tokens or 0, text=text, truncated=truncated)
        return answer, (usage.prompt_tokens or 0) - cached

    def _failure(self, reason: str) -> CellError:
        """The error of a failed cell, with a reason that is shown and stored."""
        return CellError(without_key(reason, self._key))


def _failure_reason(error: Any) -> str:
    """Why a request failed."""
    cause = error.__cause__ if str(error) == "Connection error." else None
    text = str(cause or error) or type(error).__name__
    kind = _content_type(error.response) if hasattr(error, "response") else ""
    # an HTML page has no message that fits on a line
    return f"status {error.status_code}, {kind}" if "html" in kind else text


def _invalid_answer(error: ValidationError, kind: str, content: str) -> str:
    """Why a response is not valid in OpenAI's interface."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return (
            f"the server answered with no JSON but {kind} {content[:80]!r}; "
            "is --base-url the address of its interface, like https://host/v1?"
        )
    where = ".".join(map(str, first["loc"])) or "the answer"
    return f"the server answered with something else instead of text ({where}: {first['msg']})"


def _content_type(response: Any) -> str:
    """The content type of a response: ``text/html``."""
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip()[:60] or "content of no kind"
