"""Batches of requests at half price: creation, lookup, progress and results, for each interface that has them.

OpenAI: https://developers.openai.com/api/docs/guides/batch. Anthropic:
https://platform.claude.com/docs/en/build-with-claude/batch-processing. A batch is created with a token of this program,
so that it is found if the response to its creation was lost.
"""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, Field, ValidationError

from icl_bench.backends.servers.bodies import TooLargeError, limited_blocking
from icl_bench.backends.servers.failures import CANCELLED, RowError, code_of, failure_reason
from icl_bench.backends.servers.interface import Interface, as_json
from icl_bench.backends.servers.providers import Connection
from icl_bench.errors import CellError, UserError

LARGEST_RESULTS = 2 * 2**30
"""Bytes of the largest file of results that is read: 50,000 answers of 40 KB."""

_SECONDS = 600.0
"""The longest time between two bytes of an answer."""

_PAGE = 100
"""Batches in a page of a list."""

Model = TypeVar("Model", bound=BaseModel)


class PassingError(Exception):
    """The server is unreachable, overloaded or failing; the same request can be retried later."""

    def __init__(self, reason: str, *, nothing_done: bool = False) -> None:
        super().__init__(reason)
        self.nothing_done = nothing_done
        """Whether the request certainly had no effect."""


@dataclass(frozen=True)
class Progress:
    """Progress of a batch."""

    ended: bool
    done: int = 0
    """The number of its requests that are answered or have failed."""
    failure: str | None = None
    """Why the server refuses the whole batch and answers none of it."""
    queue_is_full: bool = False
    """Whether the server refuses the batch because its queue is full."""


@dataclass(frozen=True)
class Intent:
    """A batch that is, or may have been, created."""

    token: str
    requests: int
    file: str | None
    """The uploaded file with its requests; None if there is none."""
    after: str | None
    """The newest batch before it; None if there is none."""


@dataclass(frozen=True)
class Found:
    """Result of a lookup of a batch that may have been created."""

    id: str | None = None
    """None if it was not found."""
    is_sure: bool = True
    """Whether the lookup is conclusive. If false, batches that have not ended may be this one."""


@dataclass(frozen=True)
class Results:
    """The results of a batch's requests."""

    by_name: Mapping[str, bytes | RowError]
    """The body of each response, or its error, by the request's name."""
    cancelled: bool
    """Whether requests without a result were cancelled."""

    def of(self, *names: str) -> bytes | RowError:
        """The result of the request with one of these names; if there is none, an error that says so."""
        for name in names:
            if name in self.by_name:
                return self.by_name[name]
        if self.cancelled:
            return RowError("cancelled", code=CANCELLED)
        return RowError("the batch ended without an answer to it")


class Batches(ABC):
    """The batches of one account at one server.

    Temporary failures raise :class:`PassingError`, refusals and a wrong key ``CellError``.
    """

    most_requests: ClassVar[int]
    most_bytes: ClassVar[int]
    """The limits of one batch."""

    def __init__(self, interface: Interface, connection: Connection) -> None:
        self._interface, self._connection = interface, connection
        self._library: Any = importlib.import_module(interface.library)
        kind = getattr(self._library, interface.client.removeprefix("Async"))
        # no automatic retries: a request that creates a batch may have had an effect
        self._client: Any = kind(
            **connection.client_arguments,
            timeout=_SECONDS,
            max_retries=0,
            http_client=limited_blocking(self._library.DefaultHttpxClient, LARGEST_RESULTS),
        )

    @abstractmethod
    def line(self, name: str, body: Mapping[str, Any]) -> bytes:
        """One request in the server's format; ``name`` identifies it in its batch."""

    def upload(self, token: str, lines: Sequence[bytes]) -> str | None:  # noqa: ARG002 - for those with files
        """Upload the requests of a batch, without starting it. Returns the file's id; None if the interface has no
        files.
        """
        return None

    @abstractmethod
    def create(self, intent: Intent, lines: Sequence[bytes]) -> str:
        """Create a batch. Returns its id."""

    def newest(self) -> str | None:
        """The id of the newest batch; None if there is none."""
        return next((one["id"] for one in self._page(None, 1)[0]), None)

    def find(self, intent: Intent, known: Collection[str]) -> Found:
        """Look for a batch that may have been created; ``known`` are the ids of others."""
        found = Found()
        for one in self._since(intent.after):
            if one["id"] in known:
                continue
            is_it = self._is_it(intent, one)
            if is_it:
                found = Found(one["id"])  # the oldest, if it was created twice
            elif is_it is None and found.id is None:
                found = Found(is_sure=False)
        return found

    @abstractmethod
    def progress(self, batch: str) -> Progress:
        """Progress of a batch."""

    @abstractmethod
    def results(self, batch: str) -> Results:
        """The results of a batch that has ended."""

    @abstractmethod
    def _is_it(self, intent: Intent, batch: Mapping[str, Any]) -> bool | None:
        """Whether a batch of the list is this one; None if unknown before it ends."""

    @abstractmethod
    def _list(self, after: str | None, limit: int) -> Any:
        """The raw response with a page of the list of batches, the newest first, starting after the batch ``after``."""

    def _since(self, last: str | None) -> Iterator[dict[str, Any]]:
        """Batches that are newer than the given one, the newest first; all batches if it is not listed."""
        after, more = None, True
        while more:
            page, more = self._page(after, _PAGE)
            for one in page:
                if one["id"] == last:
                    return
                yield one
            after, more = (page[-1]["id"], more) if page else (None, False)

    def _page(self, after: str | None, limit: int) -> tuple[list[dict[str, Any]], bool]:
        """Batches of one page of the list, and whether there are more."""
        with self._asking():
            page = self._read(self._list(after, limit), _Page)
        return [one for one in page.data if isinstance(one.get("id"), str)], page.has_more

    def _read(self, response: Any, kind: type[Model]) -> Model:
        """The content of a raw response. Raises :class:`PassingError`."""
        content = response.http_response.content
        try:
            return kind.model_validate_json(content)
        except ValidationError:
            shown = self._connection.without_key(content[:80].decode(errors="replace"))
            raise PassingError(f"the server answered with no {kind.__name__.lower().strip('_')}: {shown!r}") from None

    def _lines(self, response: Any) -> Iterator[Mapping[str, Any]]:
        """The object in each line of a response. Raises ``CellError``."""
        for line in filter(bytes.strip, response.content.splitlines()):
            if not isinstance(row := as_json(line), dict):
                raise CellError("the server answered with results that are not lines of JSON objects")
            yield row

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Convert the library's errors to this module's."""
        library = self._library
        try:
            yield
        except (library.APIConnectionError, library.RateLimitError, library.InternalServerError) as error:
            if isinstance(error.__cause__, TooLargeError):  # some versions of the libraries wrap it
                raise error.__cause__ from None
            reason = self._connection.without_key(failure_reason(error))
            if code_of(error) == "insufficient_quota":
                raise CellError(f"the account has no credit left ({reason})") from None
            raise PassingError(reason, nothing_done=isinstance(error, library.RateLimitError)) from None
        except library.AuthenticationError:
            raise CellError(f"the server refuses the key in {self._connection.variable}") from None
        except library.NotFoundError as error:
            raise NotThereError(self._connection.without_key(failure_reason(error))) from None
        except library.APIError as error:
            reason = self._connection.without_key(failure_reason(error))
            raise CellError(f"the server refuses the batch ({reason})") from None


class NotThereError(CellError):
    """The server does not have the requested object."""


class _Page(BaseModel):
    data: list[dict[str, Any]]
    has_more: bool = False


class _Identified(BaseModel):
    id: str


class _Fault(BaseModel):
    code: Any = None
    message: str | None = None
    param: str | None = None


class _Faults(BaseModel):
    data: list[_Fault] = Field(default_factory=list)


class _OpenAICounts(BaseModel):
    completed: int = 0
    failed: int = 0


class _OpenAIBatch(_Identified):
    status: str
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: _Faults | None = None
    request_counts: _OpenAICounts | None = None


class OpenAIBatches(Batches):
    """Files of requests for one endpoint."""

    most_requests = 50_000
    most_bytes = 200_000_000

    _PATHS: ClassVar[Mapping[str, str]] = {
        "completions": "/v1/completions",
        "chat": "/v1/chat/completions",
        "responses": "/v1/responses",
    }
    _TOKEN = "icl-bench"
    """The name of the token in the metadata."""

    def line(self, name: str, body: Mapping[str, Any]) -> bytes:
        """See ``Batches.line``."""
        request = {"custom_id": name, "method": "POST", "url": self._PATHS[self._interface.name], "body": body}
        return _json(request)

    def upload(self, token: str, lines: Sequence[bytes]) -> str | None:
        """See ``Batches.upload``."""
        content = b"\n".join(lines) + b"\n"
        with self._asking():
            raw = self._client.files.with_raw_response
            return self._read(raw.create(file=(f"{token}.jsonl", content), purpose="batch"), _Identified).id

    def create(self, intent: Intent, lines: Sequence[bytes]) -> str:  # noqa: ARG002 - they are in the file
        """See ``Batches.create``."""
        with self._asking():
            raw = self._client.batches.with_raw_response.create(
                input_file_id=intent.file,
                endpoint=self._PATHS[self._interface.name],
                completion_window="24h",
                metadata={self._TOKEN: intent.token},
            )
            return self._read(raw, _Identified).id

    def progress(self, batch: str) -> Progress:
        """See ``Batches.progress``."""
        state = self._retrieved(batch)
        counts = state.request_counts or _OpenAICounts()
        if state.status != "failed":
            return Progress(state.status in ("completed", "expired", "cancelled"), counts.completed + counts.failed)
        faults = state.errors.data if state.errors else []
        said = "; ".join(dict.fromkeys(fault.message or str(fault.code) for fault in faults[:3])) or "it failed"
        # https://github.com/openai/openai-python/issues/2084: too many tokens wait in this account's batches
        full = any(fault.code == "token_limit_exceeded" for fault in faults)
        return Progress(True, failure=self._connection.without_key(said), queue_is_full=full)

    def results(self, batch: str) -> Results:
        """See ``Batches.results``: a file of answers and one of errors."""
        state, found = self._retrieved(batch), dict[str, bytes | RowError]()
        for file in (state.output_file_id, state.error_file_id):
            if file:
                with self._asking():
                    content = self._client.files.with_raw_response.content(file).http_response
                for row in self._lines(content):
                    found.setdefault(str(row.get("custom_id")), _openai_result(row))
        return Results(found, state.status == "cancelled")

    def _retrieved(self, batch: str) -> _OpenAIBatch:
        with self._asking():
            return self._read(self._client.batches.with_raw_response.retrieve(batch), _OpenAIBatch)

    def _is_it(self, intent: Intent, batch: Mapping[str, Any]) -> bool | None:
        # servers that copy the interface may not keep metadata
        token = _object(batch.get("metadata")).get(self._TOKEN)
        return token == intent.token or (intent.file is not None and batch.get("input_file_id") == intent.file)

    def _list(self, after: str | None, limit: int) -> Any:
        where = {} if after is None else {"after": after}
        return self._client.batches.with_raw_response.list(limit=limit, **where)


def _openai_result(row: Mapping[str, Any]) -> bytes | RowError:
    """The result in a line of a file of answers or errors."""
    response = _object(row.get("response"))
    if (body := response.get("body")) is not None:
        status = response.get("status_code", 200)
        if status == 200:
            return _json(body)
        inner = body.get("error") if isinstance(body, Mapping) else body
        return _row_error(inner, status if type(status) is int else None)
    failed = _row_error(row.get("error"), None)
    if failed.code in ("batch_cancelled", "batch_canceled"):
        return RowError(str(failed), code=CANCELLED)
    return failed


def _row_error(error: Any, status: int | None) -> RowError:
    """The error of a request; without a status it was not executed."""
    try:
        fault = _Fault.model_validate(error)
    except ValidationError:
        return RowError(str(error)[:300], status)
    return RowError((fault.message or str(fault.code))[:300], status, str(fault.code or ""), fault.param)


class _AnthropicBatch(_Identified):
    processing_status: str
    request_counts: dict[str, int] = Field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.processing_status == "ended"


class AnthropicBatches(Batches):
    """Message batches. They have no metadata, so a batch is recognised by its requests' names after it has ended."""

    most_requests = 100_000
    most_bytes = 256_000_000

    _STATUS: ClassVar[Mapping[str, int]] = {
        "invalid_request_error": 400,
        "authentication_error": 401,
        "billing_error": 402,
        "permission_error": 403,
        "not_found_error": 404,
        "request_too_large": 413,
        "rate_limit_error": 429,
        "timeout_error": 504,
        "overloaded_error": 529,
    }
    """The status of a single request by its error's type: https://platform.claude.com/docs/en/api/errors."""

    def line(self, name: str, body: Mapping[str, Any]) -> bytes:
        """See ``Batches.line``."""
        return _json({"custom_id": name, "params": body})

    def create(self, intent: Intent, lines: Sequence[bytes]) -> str:  # noqa: ARG002 - names hold the token
        """See ``Batches.create``."""
        requests = [json.loads(line) for line in lines]
        with self._asking():
            raw = self._client.messages.batches.with_raw_response.create(requests=requests)
            return self._read(raw, _Identified).id

    def progress(self, batch: str) -> Progress:
        """See ``Batches.progress``."""
        with self._asking():
            state = self._read(self._client.messages.batches.with_raw_response.retrieve(batch), _AnthropicBatch)
        done = sum(count for name, count in state.request_counts.items() if name != "processing")
        return Progress(state.ended, done)

    def results(self, batch: str) -> Results:
        """See ``Batches.results``."""
        found = {str(row.get("custom_id")): self._result(_object(row.get("result"))) for row in self._rows(batch)}
        return Results(found, cancelled=False)

    def _rows(self, batch: str) -> Iterator[Mapping[str, Any]]:
        # by path: ``results_url`` names Anthropic's host, but --base-url may be a gateway
        with self._asking():
            state = self._client.messages.batches.with_raw_response.retrieve(batch).http_response
            content = self._client.get(f"/v1/messages/batches/{batch}/results", cast_to=type(state))
        return self._lines(content)

    def _result(self, result: Mapping[str, Any]) -> bytes | RowError:
        """The result in a line."""
        match result.get("type"):
            case "succeeded":
                return _json(result.get("message"))
            case "canceled":
                return RowError("cancelled", code=CANCELLED)
            case "errored":
                said = _object(_object(result.get("error")).get("error"))
                kind, message = str(said.get("type")), str(said.get("message"))
                return RowError(message[:300], self._STATUS.get(kind, 500), kind)
            case other:
                return RowError(str(other))

    def _is_it(self, intent: Intent, batch: Mapping[str, Any]) -> bool | None:
        try:
            state = _AnthropicBatch.model_validate(batch)
        except ValidationError:
            return False
        if sum(state.request_counts.values()) != intent.requests:
            return False
        if not state.ended:
            return None
        try:
            return any(str(row.get("custom_id")).startswith(intent.token) for row in self._rows(state.id))
        except NotThereError:
            return False  # archived

    def _list(self, after: str | None, limit: int) -> Any:
        where = {} if after is None else {"after_id": after}
        return self._client.messages.batches.with_raw_response.list(limit=limit, **where)


KINDS: Mapping[str, type[Batches]] = {"openai": OpenAIBatches, "anthropic": AnthropicBatches}
"""By :attr:`icl_bench.backends.servers.interface.Interface.batches`."""


def batches_of(interface: Interface, connection: Connection) -> Batches:
    """The batches of a server whose interface has them."""
    assert interface.batches is not None, "refused before"
    return KINDS[interface.batches](interface, connection)


def _object(value: Any) -> Mapping[str, Any]:
    """A JSON value that should be an object; an empty one if it is not."""
    return value if isinstance(value, dict) else {}


def check_batches(interface: Interface, connection: Connection) -> None:
    """Raise ``UserError`` if the server has no batches, does not answer, or refuses the key."""
    try:
        batches_of(interface, connection).newest()
    except (PassingError, CellError) as error:
        what = "has no batches" if isinstance(error, NotThereError) else "does not list its batches"
        raise UserError(f"--batch: {connection.base_url} {what} ({error}); leave it out") from None


def _json(value: Any) -> bytes:
    # half a character, which JSON may escape, cannot be encoded; its reader refuses it
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
