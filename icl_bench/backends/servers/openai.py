"""The API backend: a server with OpenAI's interface, which generates free text.

Its answers cannot be constrained to labels; they are stripped and compared with them (Bertsch et
al., section 4, frontier models). Requests have the prompt's text, not ids, because the server has
its own tokenizer. The key is read from the environment only, and removed from every message.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, urlsplit

from pydantic import ValidationError

from icl_bench.backends.background import packs
from icl_bench.backends.interface import Answer, Counters, Decoding, Free
from icl_bench.backends.servers.cut_prompts import CutPrompts
from icl_bench.backends.servers.replies import Completion
from icl_bench.errors import CellError, UserError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import PromptSet
from icl_bench.wording import one_line

KEY = "OPENAI_API_KEY"

API_VERSION = "api-version"
"""The only query of an address: Azure's (https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle)."""

RETRY_SECONDS = 600.0
"""How long requests are repeated if the server is unreachable, overloaded or failing."""

_PAUSE_SECONDS = 5.0  # between attempts; the library repeats each attempt with back-off

_TIMEOUT_SECONDS = 600.0  # between two bytes

_WHOLE_SECONDS = 1800.0
"""The longest time of one request, however slowly its bytes come."""

LISTED = 8
"""Models of a server that are named where it does not have the one that is asked for."""

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
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if parts.username or parts.password or parts.fragment or names not in ([], [API_VERSION]):
        raise UserError(f"--base-url: must hold no key, user or query but ?{API_VERSION}=; a key goes into {KEY}")
    where, sign, query = base_url.partition("?")
    return f"{where.rstrip('/')}{sign}{query}" if query else where.rstrip("/")


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


_Reply = tuple[Answer, int]
"""A server's answer to one prompt, and the number of the prompt's tokens that were computed for it."""

LEAST_ANSWER = 64
"""The least limit of tokens of a label in a chat: some models wrap it in a sentence or in markup."""

LIMITS = ("max_completion_tokens", "max_tokens")
"""Names of the limit of tokens: newer models of OpenAI take the first alone, most servers the second."""


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
        hold: Literal["choice", "json"] | None = None,
        arguments: Mapping[str, Any] | None = None,
        patience_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Connect to the server. Raises ``CellError`` if it does not respond.

        ``hold`` is how it holds answers to the labels. ``arguments`` are further ones of requests; None leaves out
        one of the program's.
        """
        import openai

        self.counters = Counters()
        self._openai: Any = openai
        self._model, self._endpoint, self._identity = model, endpoint, dict(identity)
        self._concurrency, self._patience = concurrency, patience_seconds
        self._lost = False
        self._key = api_key()
        self._hold, self._further = hold, dict(arguments or {})
        self._cut_prompts = CutPrompts()
        self._models: list[str] = []
        """The models that the server lists."""
        self._served_by: str | None = None
        """The model that the server says it answers with."""
        self._refused: set[str] = set()
        """Arguments that the server refuses, which are left out since."""
        self._limit = LIMITS[0] if endpoint == "chat" else LIMITS[1]
        where, _, query = base_url.partition("?")
        self._connection: dict[str, Any] = {
            "base_url": where,
            "default_query": dict(parse_qsl(query)),
            "api_key": self._key,
            "timeout": _TIMEOUT_SECONDS,
            "max_retries": 2,
        }
        try:
            listed = openai.OpenAI(**self._connection).models.with_raw_response.list()
            self._models = _model_names(listed.http_response.content)
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
                    answer, computed = await self._ask(client, index, self._prompt_arguments(prompts, index), decoding)
                    if answer.prompt_tokens is not None:
                        self._check_count(len(prompts.ids(index)), answer.prompt_tokens)
                    hand((answer, computed))
                except CellError as error:
                    failures.append(error)

        async with self._openai.AsyncOpenAI(**self._connection) as client:
            await asyncio.gather(*map(ask, todo))
        if failures:
            raise failures[0]

    def _check_count(self, counted: int, said: int) -> None:
        """Compare the local tokenizer's count of a prompt with the server's. Raises ``CellError`` if it was cut."""
        self._cut_prompts.check(counted, said)
        if said == counted - 1 and _NO_BOS not in self.counters.notes:
            self.counters.notes.append(_NO_BOS)

    def _prompt_arguments(self, prompts: PromptSet, index: int) -> dict[str, Any]:
        """A request's arguments for one prompt: its text, or its messages."""
        if self._endpoint == "chat":
            return {"messages": [dict(message) for message in prompts.messages(index)]}
        return {"prompt": prompts.text(index)}

    async def _ask(self, client: Any, index: int, prompt: Mapping[str, Any], decoding: Free) -> _Reply:
        """Send one prompt, repeatedly while the server is unreachable, overloaded or failing.

        A row that the server's filter stops is answered with the reason. An argument that it refuses is left out, and
        the request repeated.
        """
        openai = self._openai
        passing = (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError)
        deadline = time.monotonic() + (0.0 if self._lost else self._patience)
        lines = self._endpoint == "completions" and self._hold is None
        stops = list(decoding.stops) if lines or not decoding.of_labels else []
        while True:
            arguments = self._arguments(decoding, stops)
            try:
                async with asyncio.timeout(_WHOLE_SECONDS):
                    response = await self._create(client, **prompt, **arguments)
                reply = self._reply(index, response.http_response, decoding)
            except (*passing, _ErrorBodyError, TimeoutError) as error:
                if _code(error) == "insufficient_quota":
                    raise self._failure(f"the account has no credit left ({_failure_reason(error)})") from None
                if time.monotonic() > deadline:
                    self._lost = True  # later cells are tried once, without waiting
                    reason = f"the server failed for long ({_failure_reason(error)})"
                    raise self._failure(reason) from None
                await asyncio.sleep(min(_PAUSE_SECONDS, self._patience / 10))
            except openai.AuthenticationError:
                raise self._failure(f"the server refuses the key in {KEY}") from None
            except openai.OpenAIError as error:
                if _code(error) == "content_filter":  # Azure's filter of prompts
                    return Answer(index, 0, 0, text="", reason="content_filter"), 0
                if self._leaves_out(error, arguments):
                    continue
                lists = ""
                if getattr(error, "status_code", None) == 404 and self._models and self._model not in self._models:
                    lists = f"; it lists {', '.join(self._models[:LISTED])}{', ...' * (len(self._models) > LISTED)}"
                reason = f"the server refuses the request ({_failure_reason(error)}){lists}"
                raise self._failure(reason) from None
            else:
                self._lost = False
                if stops and decoding.of_labels and reply[0].text == "" and reply[0].reason is None:
                    stops = []  # its answer begins with the line break that ends it
                    continue
                return reply

    def _arguments(self, decoding: Free, stops: Sequence[str]) -> dict[str, Any]:
        """A request's arguments other than the prompt, without those that the server refuses."""
        # the server's tokenizer may need more tokens for the same text
        limit = 2 * decoding.max_tokens + 8 if decoding.of_labels else decoding.max_tokens
        if decoding.of_labels and not stops:
            limit = max(limit, LEAST_ANSWER)
        arguments: dict[str, Any] = {self._limit: limit, "temperature": 0}
        if stops:
            arguments["stop"] = list(stops)
        arguments |= self._held(decoding) | self._further
        if self._limit not in self._further and set(LIMITS) & set(self._further):
            del arguments[self._limit]
        kept = {n: value for n, value in arguments.items() if n not in self._refused and value is not None}
        # the library knows some arguments by name, and sends any of these
        known = {self._limit, "temperature", "stop", "response_format"}
        extra = {name: kept.pop(name) for name in list(kept) if name not in known}
        return kept | ({"extra_body": extra} if extra else {})

    def _held(self, decoding: Free) -> dict[str, Any]:
        """The argument that holds an answer to the labels.

        vLLM: https://docs.vllm.ai/en/latest/features/structured_outputs; OpenAI:
        https://platform.openai.com/docs/guides/structured-outputs.
        """
        if self._hold is None or not decoding.labels:
            return {}
        chat = self._endpoint == "chat"
        if self._hold == "choice":
            return {"structured_outputs": {"choice": [x.strip() if chat else x for x in decoding.labels]}}
        label = {"type": "string", "enum": [x.strip() for x in decoding.labels]}
        schema = {
            "type": "object",
            "properties": {"label": label},
            "required": ["label"],
            "additionalProperties": False,
        }
        format_ = {"name": "answer", "strict": True, "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": format_}}

    def _leaves_out(self, error: Any, arguments: Mapping[str, Any]) -> bool:
        """Whether the server refuses one of the program's own arguments, which is renamed or left out from here on.

        What the user asks for is never left out.
        """
        if getattr(error, "status_code", None) not in (400, 422):
            return False
        name = _refused_argument(error, {*LIMITS, "temperature", "stop"} & arguments.keys())
        if name is None or name in self._further:
            return False
        if name in self._refused:  # several requests were under way
            return True
        other = next(limit for limit in LIMITS if limit != self._limit)
        if name == self._limit and other not in self._refused:
            self._refused.add(name)
            self._limit = other
            said = f"{name}: the server refuses it; {other} is sent instead"
        else:
            self._refused.add(name)
            said = f"{name}: the server refuses it, it is left out: answers may differ from run to run"
        if said not in self.counters.notes:
            self.counters.notes.append(said)
        return True

    def _create(self, client: Any, **arguments: Any) -> Any:
        side = client.chat.completions if self._endpoint == "chat" else client.completions
        return side.with_raw_response.create(model=self._model, **arguments)

    def _reply(self, index: int, response: Any, decoding: Free) -> _Reply:
        """Parse a response.

        Raises ``CellError`` if it is not valid, and :class:`_ErrorBodyError` if it is an error with
        status 200.
        """
        if (said := _error_in(response.content)) is not None:
            raise _ErrorBodyError(said)
        try:
            completion = Completion.model_validate_json(response.content)
        except ValidationError as error:
            content = without_key(response.content[:2000].decode(errors="replace"), self._key)
            raise self._failure(_invalid_answer(error, _content_type(response), content)) from None
        self._check_model(completion.model)
        written, billed = completion.written(chat=self._endpoint == "chat"), completion.billed
        if written.raw is None and written.reason is None:
            raise self._failure("the server answered with nothing instead of text")
        text = written.text.lstrip() if decoding.of_labels else written.text
        # of a chat's label the first line with a text is read, or JSON of several lines
        ended = None if decoding.of_labels and self._endpoint == "chat" else decoding.before_stop(text)
        answer = Answer(
            index,
            billed.cached or 0,
            billed.answer or 0,
            text=text if ended is None else ended,
            truncated=written.truncated,
            raw=written.raw or "",
            reason=None if written.reason is None else without_key(written.reason, self._key)[:300],
            prompt_tokens=billed.prompt,
            written_tokens=billed.written,
            reasoning_tokens=billed.reasoning,
        )
        return answer, (billed.prompt or 0) - (billed.cached or 0)

    def _check_model(self, model: Any) -> None:
        """Raise ``CellError`` if another model answers than before."""
        if not isinstance(model, str) or not model:
            return
        if self._served_by is not None and model != self._served_by:
            raise self._failure(
                f"another model answers than before ({model[:100]}, not {self._served_by[:100]}): name one that does "
                "not change, like one with a date"
            )
        self._served_by = model

    def _failure(self, reason: str) -> CellError:
        """The error of a failed cell, with a reason that is shown and stored."""
        return CellError(without_key(reason, self._key))


_NO_BOS = (
    "the server counts one token fewer than --tokenizer: it puts no beginning-of-text token before prompts, so its "
    "answers may differ from those of the same model run here"
)


def _model_names(content: bytes) -> list[str]:
    """The names in a server's list of models; none if it is something else."""
    try:
        rows = json.loads(content)["data"]
        return [row["id"] for row in rows if isinstance(row["id"], str)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


class _ErrorBodyError(Exception):
    """An error that a server reports with status 200, as gateways do."""


def _error_in(content: bytes) -> str | None:
    """The message of an error in a response with status 200; None if it is none."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    error = body.get("error") if isinstance(body, dict) and not body.get("choices") else None
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:300]


def _code(error: Any) -> str:
    """The code of a provider's error: ``insufficient_quota``, ``content_filter``, ..."""
    body = getattr(error, "body", None)
    code = getattr(error, "code", None) or (body.get("code") if isinstance(body, Mapping) else None)
    kind = body.get("type") if isinstance(body, Mapping) else None
    return str(kind if kind == "insufficient_quota" else code or "")


_REFUSALS = ("unsupported", "not support", "unknown", "unrecognized", "extra", "deprecated")


def _refused_argument(error: Any, arguments: Collection[str]) -> str | None:
    """The one of these arguments that a server refuses, by the error's ``param`` or by its message.

    OpenAI: ``Unsupported parameter: 'max_tokens' is not supported with this model`` with ``param``;
    pydantic servers: ``extra_forbidden`` with the name; others quote the name.
    """
    body = getattr(error, "body", None)
    param = body.get("param") if isinstance(body, Mapping) else None
    if isinstance(param, str):
        return param if param in arguments else None
    text = str(error).lower()
    if not any(word in text for word in _REFUSALS):
        return None
    named = [name for name in arguments if re.search(rf"\b{name}\b", text)]
    return named[0] if named else None


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
