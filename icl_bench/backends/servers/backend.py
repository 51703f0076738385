"""A model on a server: requests, retries, limits, caches and counts, for any provider's interface.

Answers are free text unless the server constrains them to the labels. They are stripped and compared with the labels
(Bertsch et al., section 4, frontier models). Requests have the prompt's text, not ids, because the server has its own
tokenizer. The key is read from the environment only, and removed from every message.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import ValidationError

from icl_bench.backends.background import Together, packs
from icl_bench.backends.interface import Answer, Counters, Decoding, Exact, Free
from icl_bench.backends.servers.bodies import TooLargeError, limited
from icl_bench.backends.servers.budget import Budget
from icl_bench.backends.servers.cut_prompts import CutPrompts
from icl_bench.backends.servers.failures import (
    CANCELLED,
    RowError,
    code_of,
    content_type,
    error_in,
    failure_reason,
    was_sent,
)
from icl_bench.backends.servers.interface import End, Held, Interface, Question, shared_end
from icl_bench.backends.servers.models import listed_models
from icl_bench.backends.servers.providers import Connection
from icl_bench.backends.servers.replies import Billed, Said
from icl_bench.backends.servers.scoring import INTERFACE, How, ScoreRequest, score_requests
from icl_bench.backends.servers.thinking import Thinking
from icl_bench.errors import CellError, UserError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import Ids, PromptSet
from icl_bench.wording import few

RETRY_SECONDS = 600.0
"""How long requests are repeated if the server is unreachable, overloaded or failing."""

_PAUSE_SECONDS = 5.0  # between attempts; the library repeats each attempt with back-off

_TIMEOUT_SECONDS = 600.0  # between two bytes

_WHOLE_SECONDS = 1800.0
"""The maximum time of one request, however slowly its bytes arrive."""

LISTED = 8
"""The number of models that an error lists if the server does not have the requested one."""

LEAST_ANSWER = 64
"""The minimum token limit of a label in a chat: some models wrap it in a sentence or in markup."""

DEFAULT_TEMPERATURE = 1.0
"""The default temperature of requests, at OpenAI, Anthropic and Google."""

_T = TypeVar("_T")

_Reply = tuple[Answer, tuple[Billed, ...]]
"""A server's answer to one prompt, and the billed tokens of each of its requests."""

Bill = Callable[[Billed], None]
"""Receives the billed tokens of one response as soon as they are known. A rejected response is billed, too."""


class AnotherModelError(CellError):
    """The model that answers has changed, and ``--on-model-change`` does not allow this."""


@dataclass(frozen=True)
class Again:
    """A batch request to repeat."""

    reason: str
    bare: bool = False
    """Whether it is repeated without the texts that end an answer."""
    is_failure: bool = True
    """Whether the server failed. If false, the request is repeated with other arguments."""


class ServerBackend:
    """A model on a server."""

    peak_prefix_bytes = None

    def __init__(
        self,
        model: str,
        interface: Interface,
        connection: Connection,
        *,
        identity: Mapping[str, str],
        concurrency: int = 8,
        hold: Held | None = None,
        thinking: Thinking | None = None,
        arguments: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
        on_model_change: Literal["fail", "mark"] = "fail",
        scores: How | None = None,
        patience_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Connect to the server. Raises ``CellError`` if it does not respond.

        ``hold`` is how it constrains answers to labels, ``scores`` how it scores all labels. ``arguments`` are further
        request arguments; None removes one of the program's.
        """
        self.name = identity.get("backend", "openai")
        self.counters = Counters()
        self._library: Any = importlib.import_module(interface.library)
        self.interface, self.connection, self._identity = interface, connection, dict(identity)
        self._model, self._patience = model, patience_seconds
        self.concurrency = concurrency
        """How many requests may run at a time."""
        self._hold, self._thinking, self._further = hold, thinking, dict(arguments or {})
        self.budget, self._on_model_change, self._scores = budget, on_model_change, scores
        self.resumed: str | None = None
        """The models that answered the stored rows of this cell, separated by commas."""
        self._answering: dict[str, None] = {}
        """The models that answer this cell now."""
        self._lost = False
        self.cut_prompts = CutPrompts()
        self._refused: set[str] = set()
        """Arguments that the server refused and that are left out since."""
        self._limit = interface.limits[0]
        self._temperature: float | None = None
        """The temperature of samples; None without sampling."""
        self._before: tuple[Question, End] | None = None
        """A prompt of the last cell, and where its shared part ends."""
        self._models = listed_models(interface, connection)
        """The models that the server lists. Raises ``CellError``."""
        if PENALTY not in self._further and (listed := self._models.get(model)) is not None:
            self.counters.notes += [note for owner, note in _CHANGED_DEFAULTS.items() if owner == listed.owner]
        self._together: Together | None = None

    def beside(self, together: Together) -> ServerBackend:
        """The same server for one of several threads, with counters of its own, except what the server reports."""
        other = copy(self)
        other.counters, other._before, other._together = Counters(served=self.counters.served), None, together
        other._answering = {}
        return other

    def begin(self, resumed: str | None) -> None:
        """Answer another cell, whose stored rows were answered by the models ``resumed``."""
        self.resumed, self._answering = resumed, {}

    @property
    def answering(self) -> str | None:
        """The models that the server reported since the cell began, separated by commas; None for none."""
        return ", ".join(self._answering) or None

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

        start, together = time.perf_counter(), self._together
        for replies in packs(ask, together):
            now = time.perf_counter()
            self.counters.seconds += (now - start) / (1 if together is None else together.threads)
            start = now
            for _, billed in replies:
                self._count(*billed)
            yield [answer for answer, _ in replies]

    def _count(self, *requests: Billed) -> None:
        for billed in requests:
            self.counters.own_tokens += (billed.prompt or 0) - (billed.cached or 0)
            self.counters.answer_tokens += billed.answer or 0

    async def _ask_all(
        self, prompts: PromptSet, todo: Sequence[int], decodings: Sequence[Decoding], hand: Callable[[_Reply], None]
    ) -> None:
        """Answer prompts with concurrent requests. After a failure, no further request is started.

        If the prompts share a part that the server's cache may hold, the first one is answered before the others start,
        so that the part is computed and billed once.
        """
        in_flight = asyncio.Semaphore(self.concurrency) if self._together is None else self._together.requests
        failures: list[CellError | UserError] = []
        ends = self._shared_ends(prompts, todo)
        warms = len(todo) > 1 and len(prompts.prefix) >= self.interface.cached_from

        async def ask(index: int, *, warm: bool) -> None:
            async with in_flight:
                if failures:
                    return
                decoding = decodings[index]
                try:
                    if isinstance(decoding, Exact):
                        answer, billed = await self._score(client, index, prompts.ids(index), decoding)
                    else:
                        assert isinstance(decoding, Free), "a server's answers cannot be constrained"
                        question = self._question(prompts, index, ends)
                        answer, billed = await self._ask(client, index, question, decoding, prompts.size(index))
                        if answer.prompt_tokens is not None:
                            self._check_count(prompts.size(index), answer.prompt_tokens)
                    if warm:
                        self._check_cache(len(prompts.prefix), billed[0])
                    hand((answer, billed))
                except (CellError, UserError) as error:
                    failures.append(error)

        async with self._client() as client:
            if warms:
                await ask(todo[0], warm=False)
            await asyncio.gather(*(ask(index, warm=warms) for index in (todo[1:] if warms else todo)))
        if failures:
            raise failures[0]

    def _client(self) -> Any:
        """A client of the provider's library."""
        kind = getattr(self._library, self.interface.client)
        return kind(
            **self.connection.client_arguments,
            timeout=_TIMEOUT_SECONDS,
            # within a budget each request that is sent has its own reservation
            max_retries=2 if self.budget is None else 0,
            http_client=limited(self._library.DefaultAsyncHttpxClient),
        )

    # -- prompts ------------------------------------------------------------------------------------

    def _shared_ends(self, prompts: PromptSet, todo: Sequence[int]) -> tuple[End, ...]:
        """The ends of shared parts: that of the previous cell, if these prompts begin with it, and their own."""
        if not self.interface.chat or len(prompts.prefix) < self.interface.cached_from:
            return ()
        if (end := shared_end(prompts, todo)) is None:
            return ()
        question = Question("", prompts.messages(todo[0]))
        before, self._before = self._before, (question, end)
        if before is not None and before[1] < end and _begins_alike(*before, question):
            return before[1], end
        return (end,)

    def _question(self, prompts: PromptSet, index: int, ends: tuple[End, ...]) -> Question:
        """One prompt: its messages, or its text."""
        if self.interface.chat:
            return Question("", prompts.messages(index), ends)
        return Question(prompts.text(index), ())

    def _check_count(self, counted: int, said: int) -> None:
        """Compare the local tokenizer's count of a prompt with the server's. Raises ``CellError`` if the prompt was
        truncated.
        """
        self.cut_prompts.check(counted, said)
        if said == counted - 1:
            self._note(_NO_BOS)

    def _check_cache(self, shared: int, billed: Billed) -> None:
        """Note a prompt whose shared part the server computed again."""
        if billed.cached is not None and billed.cached < shared // 2:
            self._note(_MISSED)

    def _note(self, text: str) -> None:
        if text not in self.counters.notes:
            self.counters.notes.append(text)

    # -- one request --------------------------------------------------------------------------------

    async def _ask(self, client: Any, index: int, question: Question, decoding: Free, counted: int) -> _Reply:
        """The answer to one prompt. ``counted`` is its number of tokens by the local tokenizer.

        If the server's filter stops a row, the answer has the reason.
        """
        prompt = self.interface.marked(question)
        stops = self._stops(decoding)
        before: tuple[Billed, ...] = ()
        while True:
            try:
                answer, billed = await self._send(
                    self.interface.create(client),
                    lambda: {**prompt, **self._arguments(decoding, stops)},  # noqa: B023 - called at once
                    lambda http, bill: self._reply(index, http.content, content_type(http), decoding, bill),
                    counted,
                    self._longest(decoding, stops),
                )
            except _FilteredError:
                return _stopped(index), (*before, Billed())
            if stops and _ended_at_once(answer, decoding):
                self._note(_ASKED_AGAIN)
                stops, before = [], (billed,)
                continue
            return answer, (*before, billed)

    async def _score(self, client: Any, index: int, prompt: Ids, decoding: Exact) -> _Reply:
        """The scores of all labels after one prompt. Tokens are those of all its requests."""
        assert self._scores is not None, "settled before"
        self.counters.served["scores"] = self._scores
        trie, parts = decoding.trie, []
        logs = np.zeros(len(trie.tokens))
        for request in score_requests(self._scores, trie):
            values, billed = await self._send(
                INTERFACE.create(client),
                lambda: self._joined_further(request.arguments(prompt)),  # noqa: B023 - called at once
                lambda response, bill: self._read_scores(response, request, len(prompt), bill),  # noqa: B023
                len(prompt) + len(request.path),
                1,
            )
            logs[request.nodes] = values
            parts.append(billed)
        billed = Billed.of(parts)
        answer = replace(
            Answer.of_scores(index, trie.sums(logs), decoding.sizes, billed.cached or 0),
            answer_tokens=billed.answer or 0,
            prompt_tokens=billed.prompt,
            written_tokens=billed.written,
        )
        return answer, (billed,)

    def _joined_further(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a scoring request, merged with the user's."""
        further = {name: value for name, value in self._further.items() if value is not None}
        kept = {name: value for name, value in arguments.items() if name not in self._refused}
        return _joined(kept, {"extra_body": further} if further else {})

    def _read_scores(self, response: Any, request: ScoreRequest, prompt: int, bill: Bill) -> np.ndarray:
        """The log-probabilities in a response. Raises ``CellError``, also if the server read another prompt."""
        said = self._checked(INTERFACE, response.content, content_type(response), bill)
        tokens = prompt + len(request.path)
        if said.billed.prompt not in (None, tokens):
            raise self._failure(f"the server counts {said.billed.prompt:,} tokens for a prompt of {tokens:,} token ids")
        return request.read(response.content, prompt)

    async def _send(
        self,
        create: Callable[..., Any],
        arguments_now: Callable[[], Mapping[str, Any]],
        read: Callable[[Any, Bill], _T],
        counted: int,
        longest: int,
    ) -> tuple[_T, Billed]:
        """Send a request, and retry it while the server is unreachable, overloaded or failing.

        If the server refuses an argument, the request is repeated without it. ``counted`` is the prompt's number of
        tokens by the local tokenizer, ``longest`` the maximum number of tokens of its answer. Raises ``CellError``.
        """
        library = self._library
        passing = (library.APIConnectionError, library.RateLimitError, library.InternalServerError)
        deadline = time.monotonic() + (0.0 if self._lost else self._patience)
        while True:
            arguments = arguments_now()
            reserved = await self._reserved(counted, longest)
            billed: list[Billed] = []
            try:
                async with asyncio.timeout(_WHOLE_SECONDS):
                    response = await create(model=self._model, **arguments)
                http = response.http_response
                if http.history:
                    self.counters.served["host"] = str(http.url.host)[:300]
                reply = read(http, billed.append)
            except TooLargeError:
                billed.append(Billed())
                raise
            except (*passing, _ErrorBodyError, TimeoutError) as error:
                if isinstance(error.__cause__, TooLargeError):  # some versions of the libraries wrap it
                    billed.append(Billed())
                    raise error.__cause__ from None
                if was_sent(error):
                    billed.append(Billed())
                if code_of(error) == "insufficient_quota":
                    raise self._no_credit(error) from None
                if time.monotonic() > deadline:
                    self._lost = True  # later cells are tried once, without waiting
                    reason = f"the server kept failing ({failure_reason(error)})"
                    raise self._failure(reason) from None
                await asyncio.sleep(min(_PAUSE_SECONDS, self._patience / 10))
            except library.AuthenticationError:
                raise self._failure(f"the server refuses the key in {self.connection.variable}") from None
            except library.APIError as error:
                if code_of(error) == "content_filter":  # Azure's filter of prompts, which bills them
                    billed.append(Billed())
                    raise _FilteredError("the server's filter stops the prompt") from None
                if self._leaves_out(error, {*arguments, *arguments.get("extra_body", ())}):
                    continue
                raise self._refusal(error) from None
            else:
                self._lost = False
                return reply, billed[0]
            finally:
                if self.budget is not None and reserved is not None:
                    self.budget.ended(reserved, counted, billed[0] if billed else None)

    async def _reserved(self, prompt: int, answer: int) -> float | None:
        """Reserve money for a request. Raises ``OutOfBudgetError`` if it could exceed the budget."""
        budget = self.budget
        if budget is None:
            return None
        purse = budget.purse
        while (reserved := budget.reserve(prompt, answer)) is None:
            if not purse.under_way:
                raise budget.passed("one", budget.most(prompt, answer))
            await asyncio.sleep(0.05)  # until the actual cost of running requests is known to be lower
        return reserved

    def _ends_at_stops(self, decoding: Free) -> bool:
        """Whether an answer ends at its stops. A chat's label is the first line with text, and JSON may have several
        lines.
        """
        return not decoding.of_labels or (not self.interface.chat and self._hold is None)

    def _stops(self, decoding: Free) -> list[str]:
        """The texts that end an answer and that can be sent."""
        return list(decoding.stops) if self._ends_at_stops(decoding) else []

    def _no_credit(self, error: Any) -> CellError:
        return self._failure(f"the account has no credit left ({failure_reason(error)})")

    def _refusal(self, error: Any) -> CellError | UserError:
        """The error of a refused request: ``UserError`` for an unknown model or a refused ``--temperature``."""
        if getattr(error, "status_code", None) == 404 and self._models and self._model not in self._models:
            lists = few(list(self._models), LISTED)
            said = f"--model {self._model}: the server does not know it ({failure_reason(error)}); it lists {lists}"
            return UserError(self.connection.without_key(said))
        if self._temperature is not None and _refused_argument(error, {"temperature"}):
            said = f"--temperature {self._temperature:g}: the server refuses it ({failure_reason(error)})"
            said += f"; reasoning models sample only at temperature {DEFAULT_TEMPERATURE:g}: use --temperature 1"
            return UserError(self.connection.without_key(said))
        return self._failure(f"the server refuses the request ({failure_reason(error)})")

    def _longest(self, decoding: Free, stops: Sequence[str]) -> int:
        """The maximum tokens of an answer including its thoughts, or the user's own limit."""
        if given := [size for name in self.interface.limits if type(size := self._further.get(name)) is int]:
            return max(given)
        # the server's tokenizer may need more tokens for the same text
        limit = 2 * decoding.max_tokens + 8 if decoding.of_labels else decoding.max_tokens
        if decoding.of_labels and not stops:
            limit = max(limit, LEAST_ANSWER)
        return limit + (self._thinking.tokens if self._thinking else 0)

    def _arguments(self, decoding: Free, stops: Sequence[str]) -> dict[str, Any]:
        """A request's arguments besides the prompt, without those that the server refuses."""
        interface = self.interface
        arguments: dict[str, Any] = {self._limit: self._longest(decoding, stops), "temperature": 0}
        self._temperature = None
        if (sampled := decoding.sampling) is not None:
            self._temperature = arguments["temperature"] = sampled.temperature
            if interface.seed is not None:
                arguments[interface.seed] = sampled.request_seed
        # an answer is truncated here at stops that are not sent
        if interface.stop and (sent := [stop for stop in stops if stop.strip() or interface.blank_stops]):
            arguments[interface.stop] = sent
        if self._thinking is not None:
            arguments = _joined(arguments, interface.thinking(self._thinking))
            if self._thinking.how != "off" and not interface.thinks_at_zero:
                del arguments["temperature"]
        if self._hold is not None and decoding.labels:
            arguments = _joined(arguments, interface.held(self._hold, decoding.labels))
        arguments |= self._further
        if self._limit not in self._further and set(interface.limits) & set(self._further):
            del arguments[self._limit]
        kept = {n: value for n, value in arguments.items() if n not in self._refused and value is not None}
        named = {name: kept.pop(name) for name in interface.named & kept.keys()}
        return {**named, "extra_body": kept}  # which the library sends unchanged

    def _leaves_out(self, error: Any, arguments: Collection[str]) -> bool:
        """Whether the server refuses one of the program's own arguments. If so, it is renamed or left out from now on.

        The user's arguments are never left out.
        """
        if getattr(error, "status_code", None) not in (400, 422):
            return False
        limits = self.interface.limits
        name = _refused_argument(error, self._own & set(arguments))
        if name is None or name in self._further:
            return False
        if name in self._refused:  # several requests were in flight
            return True
        others = [limit for limit in limits if limit != self._limit and limit not in self._refused]
        self._refused.add(name)
        self.counters.served["left_out"] = ", ".join(sorted(self._refused))
        if name == self._limit and others:
            self._limit = others[0]
            said = f"{name}: the server refuses it; {others[0]} is sent instead"
        else:
            differ = "" if name == "temperature" and self._temperature is not None else _MAY_DIFFER
            said = f"{name}: the server refuses it, it is left out{differ}"
        self._note(said)
        return True

    @property
    def _own(self) -> set[str]:
        """The program's own arguments. A server may refuse them.

        The temperature of samples is included only if it is the server's default.
        """
        own = {*self.interface.limits, self.interface.stop or "stop", self.interface.seed or "seed"}
        own |= {"temperature"} if self._temperature in (None, DEFAULT_TEMPERATURE) else set()
        return own - self.interface.named

    # -- requests of a batch --------------------------------------------------------------------------

    def bodies(
        self, prompts: PromptSet, todo: Sequence[int], decodings: Sequence[Decoding], *, bare: bool = False
    ) -> list[dict[str, Any]]:
        """The bodies that single requests of these prompts would have.

        With ``bare``, texts that end an answer are not sent.
        """
        ends = self._shared_ends(prompts, todo)
        return [self._body(self._question(prompts, at, ends), decodings[at], bare=bare) for at in todo]

    def _body(self, question: Question, decoding: Decoding, *, bare: bool) -> dict[str, Any]:
        assert isinstance(decoding, Free), "a server's answers cannot be constrained"
        arguments = self._arguments(decoding, [] if bare else self._stops(decoding))
        extra = arguments.pop("extra_body", {})
        return {"model": self._model, **self.interface.marked(question), **arguments, **extra}

    def own_arguments(self, body: Mapping[str, Any]) -> list[str]:
        """The arguments of a body that can be renamed or left out if the server refuses them."""
        return sorted(self._own & body.keys())

    @property
    def refused(self) -> list[str]:
        """Arguments that the server refuses."""
        return sorted(self._refused)

    def leave_out(self, names: Collection[str]) -> None:
        """Leave out arguments that the server refused in an earlier run."""
        self._refused |= set(names)
        if self._refused:
            self.counters.served["left_out"] = ", ".join(sorted(self._refused))
        self._limit = next((name for name in self.interface.limits if name not in self._refused), self._limit)

    def most(self, counted: int, decoding: Free, *, bare: bool) -> tuple[int, int]:
        """The maximum tokens of a batch request: its prompt's, counted locally, and its answer's."""
        return counted, self._longest(decoding, [] if bare else self._stops(decoding))

    def batch_reply(
        self,
        index: int,
        content: bytes | RowError,
        decoding: Free,
        counted: int,
        bill: Bill,
        *,
        bare: bool,
        sent: Collection[str],
    ) -> Answer | Again:
        """Parse the answer to one request of a batch.

        ``content`` is the body of its response, or its error; ``counted`` is the prompt's number of tokens by the local
        tokenizer; ``sent`` are :meth:`own_arguments` of its body. Raises ``CellError`` as for a single request.
        """

        def billed(tokens: Billed) -> None:
            self._count(tokens)
            bill(tokens)

        if isinstance(content, RowError):
            if content.code == "content_filter":
                billed(Billed())
                return _stopped(index)
            return self._batch_failure(content, sent)
        try:
            answer = self._reply(index, content, "application/json", decoding, billed)
        except _ErrorBodyError as error:
            return Again(str(error))
        if answer.prompt_tokens is not None:
            self._check_count(counted, answer.prompt_tokens)
        if not bare and self._stops(decoding) and _ended_at_once(answer, decoding):
            self._note(_ASKED_AGAIN)
            return Again("an empty answer", bare=True, is_failure=False)
        return answer

    def _batch_failure(self, error: RowError, sent: Collection[str]) -> Again:
        """Handle a batch request with an error. Raises ``CellError`` if it is refused."""
        status = error.status_code
        if error.code == "insufficient_quota":
            raise self._no_credit(error)
        if error.code == CANCELLED:
            raise self._failure("the batch was cancelled at the server; run it again for the rest")
        if status is None or status in (408, 409, 429) or status >= 500:
            return Again(str(error))
        if self._leaves_out(error, sent):
            return Again(str(error), is_failure=False)
        raise self._refusal(error)

    # -- one response -------------------------------------------------------------------------------

    def _reply(self, index: int, content: bytes, kind: str, decoding: Free, bill: Bill) -> Answer:
        """The answer in the body of a response with this content type. See :meth:`_checked`."""
        said = self._checked(self.interface, content, kind, bill)
        written, billed = said.written, said.billed
        if written.raw is None and written.reason is None:
            raise self._failure("the server answered with nothing instead of text")
        text = written.text.lstrip() if decoding.of_labels else written.text
        ended = decoding.before_stop(text) if self._ends_at_stops(decoding) else None
        return Answer(
            index,
            billed.cached or 0,
            billed.answer or 0,
            text=text if ended is None else ended,
            truncated=written.truncated and ended is None,
            raw=written.raw or "",
            reason=None if written.reason is None else self.connection.without_key(written.reason)[:300],
            prompt_tokens=billed.prompt,
            written_tokens=billed.written,
            reasoning_tokens=billed.reasoning,
        )

    def _checked(self, interface: Interface, content: bytes, kind: str, bill: Bill) -> Said:
        """The content of a response. It is billed even if it is rejected.

        Raises ``CellError`` if it is not valid or another model's, and :class:`_ErrorBodyError` if it is an
        error with status 200 or an interrupted answer.
        """
        if (message := error_in(content)) is not None:
            raise _ErrorBodyError(message)
        try:
            said = interface.read(content)
        except ValidationError as error:
            bill(Billed())
            begin = self.connection.without_key(content[:2000].decode(errors="replace"))
            raise self._failure(_invalid_answer(error, kind, begin)) from None
        bill(said.billed)
        if said.interruption is not None:
            raise _ErrorBodyError(said.interruption)
        self._check_model(said.model)
        return said

    def _check_model(self, model: str | None) -> None:
        """Record which model answers. Raises :class:`AnotherModelError` if it changes, in this run or within a cell."""
        served = self.counters.served
        if model is None:
            return
        model = model[:300]
        self._answering[model] = None
        already = served.setdefault("model", model)
        before = next((one for one in (self.resumed, already) if one and model not in one.split(", ")), None)
        if before is None:
            return
        said = f"a different model answers than before ({model[:100]}, not {before[:100]})"
        if self._on_model_change == "fail":
            advice = "use a fixed name, like one with a date, or --on-model-change mark"
            raise AnotherModelError(self.connection.without_key(f"{said}: {advice}"))
        if model not in already.split(", "):
            served["model"] = f"{already}, {model}"
        self._note(said)

    def _failure(self, reason: str) -> CellError:
        """The error of a failed cell, with a reason that is shown and stored."""
        return CellError(self.connection.without_key(reason))


PENALTY = "repetition_penalty"
_OF_MODEL = (
    "the server applies the sampling settings of the model's generation_config.json, if it has any; a repetition "
    f"penalty makes labels in the prompt less probable: start the server with {{}}, or add --server-arg {PENALTY}=1"
)
_CHANGED_DEFAULTS = {
    "vllm": _OF_MODEL.format("--generation-config vllm"),
    "sglang": _OF_MODEL.format("--sampling-defaults openai"),
}
"""Who provides the model, in a server's list -> a note on defaults of requests."""
_NO_BOS = (
    "the server counts one token fewer than --tokenizer: it puts no beginning-of-text token before prompts, so its "
    "answers may differ from those of the same model run here"
)
_MISSED = (
    "the server's cache did not have the demonstrations of some requests, though an earlier request had sent them: "
    "they are billed as new (column cached_tokens)"
)
_ASKED_AGAIN = (
    "some answers were empty and asked again without stop texts; tokens of rows are those of the second request, "
    "--budget counts both"
)


_MAY_DIFFER = ": answers may differ from run to run"


def _begins_alike(before: Question, end: End, question: Question) -> bool:
    """Whether a prompt begins with the first part of another, up to ``end``."""
    old, new = before.messages, question.messages
    if len(new) <= end.message or list(old[: end.message]) != list(new[: end.message]):
        return False
    size = end.characters
    return not size or old[end.message]["content"][:size] == new[end.message]["content"][:size]


def _joined(arguments: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge arguments. If both have an argument, its parts are merged."""
    both = {name: {**arguments[name], **more[name]} for name in arguments.keys() & more.keys()}
    return {**arguments, **more, **both}


def _stopped(index: int) -> Answer:
    """The answer to a prompt that the server's filter stops."""
    return Answer(index, 0, 0, text="", reason="content_filter")


def _ended_at_once(answer: Answer, decoding: Free) -> bool:
    """Whether an answer is empty because it begins with the line break that ends it."""
    return decoding.of_labels and answer.text == "" and answer.reason is None


class _FilteredError(CellError):
    """A prompt that the server's filter stops."""


class _ErrorBodyError(Exception):
    """A failure that a server reports with status 200, as gateways do."""


_REFUSALS = ("unsupported", "not support", "unknown", "unrecognized", "extra", "deprecated")


def _refused_argument(error: Any, arguments: Collection[str]) -> str | None:
    """The one of these arguments that a server refuses, by the error's ``param`` or by its message.

    OpenAI: ``Unsupported parameter: 'max_tokens' is not supported with this model`` with ``param``;
    pydantic servers: ``extra_forbidden`` with the name; others quote the name.
    """
    body = getattr(error, "body", None)
    param = body.get("param") if isinstance(body, Mapping) else None
    text = str(error).lower()
    refuses = any(word in text for word in _REFUSALS)
    if isinstance(param, str):
        is_value = param.startswith("max_") and not refuses  # of a limit that is too large for the model or the prompt
        return param if param in arguments and not is_value else None
    if not refuses:
        return None
    named = [name for name in arguments if re.search(rf"\b{name}\b", text)]
    return named[0] if named else None


def _invalid_answer(error: ValidationError, kind: str, content: str) -> str:
    """Why a response is not valid in the provider's interface."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return (
            f"the server answered with something that is not JSON: {kind} {content[:80]!r}; "
            "is --base-url the address of its interface, like https://host/v1?"
        )
    where = ".".join(map(str, first["loc"])) or "the answer"
    return f"the server answered with something else instead of text ({where}: {first['msg']})"
