"""The API backend: a server with OpenAI's interface, asked for free text.

Its answers cannot be held to the labels; they are stripped and compared with them (Bertsch et al.,
section 4, frontier models). The prompt's text is sent, never ids: the server has a tokenizer of its
own. The key comes from the environment alone, and is cut out of every message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from icl_bench.backends.interface import Answer, Counters, Decoding, Free
from icl_bench.errors import CellError, UserError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import PromptSet
from icl_bench.wording import one_line

KEY = "OPENAI_API_KEY"


PATIENCE_SECONDS = 600.0
"""How long a server that is away, overloaded or failing is asked again."""


_PAUSE_SECONDS = 5.0  # between attempts, each of which the library itself repeats with back-off


_TIMEOUT_SECONDS = 600.0


def address(base_url: str | None) -> str:
    """The server's address, checked. Raises ``UserError``."""
    if not base_url:
        raise UserError("--backend openai: needs --base-url, like https://host/v1")
    try:
        parts = urlsplit(base_url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise UserError("--base-url: not an address like https://host/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UserError(f"--base-url: must hold no key, user or query; a key goes into {KEY}")
    return base_url.rstrip("/")


def api_key() -> str:
    """The key, from the environment. Raises ``UserError``."""
    key = os.environ.get(KEY, "").strip()
    if not key:
        raise UserError(
            f"--backend openai: {KEY} is not set; for a server that needs no key set it to any word"
        )
    return key


@dataclass(frozen=True)
class _Reply:
    """What a server said to one prompt."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    truncated: bool


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
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Connect to the server. Raises ``CellError`` where it does not answer."""
        import openai

        self.counters = Counters()
        self._openai: Any = openai
        self._model, self._endpoint, self._identity = model, endpoint, dict(identity)
        self._concurrency, self._patience = concurrency, patience_seconds
        self._lost = False
        self._key = api_key()
        self._client = openai.OpenAI(
            base_url=base_url, api_key=self._key, timeout=_TIMEOUT_SECONDS, max_retries=2
        )
        try:
            self._client.models.list()
        except openai.APIConnectionError as error:
            raise CellError(f"{base_url} does not answer ({self._said(error)})") from None
        except openai.AuthenticationError:
            raise CellError(f"{base_url} refuses the key in {KEY}") from None
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
        """See ``Backend.answer``. What has been answered when a request fails is yielded first."""
        assert pattern == FULL, "attention patterns run on the transformers backend"
        start, failure = time.perf_counter(), None
        with ThreadPoolExecutor(self._concurrency) as pool:
            asked = {pool.submit(self._ask, prompts.text(i), _free(decodings[i])): i for i in todo}
            try:
                while asked:
                    done, _ = wait(asked, return_when=FIRST_COMPLETED)
                    answers = []
                    for future in done:
                        index = asked.pop(future)
                        if future.cancelled():
                            continue
                        if error := future.exception():
                            failure = failure or error
                            _cancel(asked)
                        else:
                            answers.append(self._answer(index, future.result()))
                    now = time.perf_counter()
                    self.counters.seconds += now - start
                    start = now
                    if answers:
                        yield answers
            finally:
                _cancel(asked)
        if failure is not None:
            raise failure

    def _answer(self, index: int, reply: _Reply) -> Answer:
        self.counters.own_tokens += reply.prompt_tokens - reply.cached_tokens
        self.counters.answer_tokens += reply.answer_tokens
        return Answer(index, reply.cached_tokens, reply.answer_tokens, text=reply.text,
                      truncated=reply.truncated)  # fmt: skip

    def _ask(self, prompt: str, decoding: Free) -> _Reply:
        """Ask one prompt, again and again while the server is away, overloaded or failing."""
        openai = self._openai
        deadline = time.monotonic() + (0.0 if self._lost else self._patience)
        while True:
            try:
                reply = self._request(prompt, decoding)
            except (openai.APIConnectionError, openai.RateLimitError,
                    openai.InternalServerError) as error:  # fmt: skip
                if time.monotonic() > deadline:
                    self._lost = True  # later cells are tried, but not waited for
                    raise CellError(f"the server failed for long ({self._said(error)})") from None
                time.sleep(min(_PAUSE_SECONDS, self._patience / 10))
            except openai.AuthenticationError:
                raise CellError(f"the server refuses the key in {KEY}") from None
            except openai.OpenAIError as error:
                raise CellError(f"the server refuses the request ({self._said(error)})") from None
            else:
                self._lost = False
                return reply

    def _request(self, prompt: str, decoding: Free) -> _Reply:
        # the server's tokenizer may need more tokens for the same text
        limit = 2 * decoding.max_tokens + 8 if decoding.stop == "\n" else decoding.max_tokens
        common: dict[str, Any] = {"model": self._model, "temperature": 0, "stop": [decoding.stop]}
        text: Any
        if self._endpoint == "chat":
            said = self._client.chat.completions.create(
                messages=[{"role": "user", "content": prompt}],
                max_completion_tokens=limit,
                **common,
            )
            text = said.choices[0].message.content if said.choices else None
        else:
            done = self._client.completions.create(prompt=prompt, max_tokens=limit, **common)
            said, text = done, done.choices[0].text if done.choices else None
        if not isinstance(text, str):
            kind = "nothing" if text is None else f"a {type(text).__name__}"
            raise CellError(f"the server answered with {kind} instead of text")
        usage: Any = getattr(said, "usage", None)
        details = getattr(usage, "prompt_tokens_details", None)
        return _Reply(
            text.split(decoding.stop)[0],
            int(getattr(usage, "prompt_tokens", 0) or 0),
            int(getattr(details, "cached_tokens", 0) or 0),
            int(getattr(usage, "completion_tokens", 0) or 0),
            said.choices[0].finish_reason == "length",
        )

    def _said(self, error: Exception) -> str:
        """The error's message on one line, without the key."""
        cause = error.__cause__ if str(error) == "Connection error." else None
        text = str(cause or error) or type(error).__name__
        return one_line(text.replace(self._key, "***"))[:300]


def _free(decoding: Decoding) -> Free:
    assert isinstance(decoding, Free), "a server's answers cannot be constrained"
    return decoding


def _cancel(futures: Mapping[Future[_Reply], int]) -> None:
    for future in futures:
        future.cancel()
