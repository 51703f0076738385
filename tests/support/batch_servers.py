"""Servers on the loopback with the batch interfaces of OpenAI and Anthropic, by the rules of their documentation.

A request is answered by the same function whether it comes alone or in a batch. What was answered, and so billed,
is logged by prompt. A batch ends after it was looked at so many times.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.api_server import Body, listening
from support.fakes import LABELS, small_tokenizer

Reply = tuple[int, Any]
"""HTTP status and JSON body, or bytes to be sent as they are."""

Failure = tuple[int | None, dict[str, Any]]
"""Status and error of a request that fails; without a status it is not carried out before the batch expires."""


@dataclass
class Batch:
    """A batch at the server."""

    id: str
    requests: dict[str, dict[str, Any]]
    """Bodies by their custom ids."""
    looks: int
    """How often it is looked at before it ends."""
    answers: dict[str, Any] = field(default_factory=dict)
    further: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.looks <= 0


@dataclass
class BatchServer(ABC):
    """A provider. ``fails`` says how a request fails, by its prompt and how often it was tried before."""

    fails: Callable[[str, int], Failure | None] = lambda _prompt, _tries: None
    text_of: Callable[[dict[str, Any]], str] = lambda body: label_of(prompt_of(body))
    looks: int = 2
    most_requests: int = 50_000
    url: str = ""
    batches: list[Batch] = field(default_factory=list)
    """The oldest first."""
    answered: Counter[str] = field(default_factory=Counter)
    """How often each prompt was answered, which is billed."""
    tried: Counter[str] = field(default_factory=Counter)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the requests that were carried out or refused, alone or in a batch."""
    single: int = 0
    """Requests that came alone."""
    broken: Callable[[str, str], Reply | None] = lambda _method, _path: None
    """What is answered instead, by method and path."""
    order: random.Random = field(default_factory=lambda: random.Random(0))

    def respond(self, method: str, path: str, content: bytes, kind: str) -> Reply:
        """Answer a request."""
        if (reply := self.broken(method, path)) is not None:
            return reply
        where = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(where.query).items()}
        if where.path.endswith("/models"):
            return 200, {"object": "list", "data": [{"id": "m", "object": "model"}]}
        return self.handle(method, where.path, query, content, kind)

    @abstractmethod
    def handle(self, method: str, path: str, query: dict[str, str], content: bytes, kind: str) -> Reply:
        """Answer a request of the provider's interface."""

    @abstractmethod
    def shown(self, batch: Batch) -> dict[str, Any]:
        """A batch as it is listed and retrieved."""

    @abstractmethod
    def completed(self, body: dict[str, Any], text: str) -> dict[str, Any]:
        """The response to a body."""

    def carried_out(self, body: dict[str, Any]) -> tuple[int | None, dict[str, Any]]:
        """Carry out a request. Returns status and body; no status if it has expired."""
        prompt = prompt_of(body)
        tries = self.tried[prompt]
        self.tried[prompt] += 1
        self.bodies.append(body)
        if (failure := self.fails(json.dumps(body), tries)) is not None:
            return failure
        self.answered[prompt] += 1
        return 200, self.completed(body, self.text_of(body))

    def listed(self, query: dict[str, str], after: str) -> dict[str, Any]:
        """A page of the list of batches, the newest first. Time passes while they are listed."""
        for batch in self.batches:
            self.look(batch.id)
        newest = [self.shown(batch) for batch in reversed(self.batches)]
        ids = [one["id"] for one in newest]
        start = ids.index(query[after]) + 1 if query.get(after) in ids else 0
        limit = int(query.get("limit", 20))
        return {"object": "list", "data": newest[start : start + limit], "has_more": start + limit < len(newest)}

    def look(self, name: str) -> Batch | None:
        """Find a batch, which is a step nearer to its end then."""
        batch = next((one for one in self.batches if one.id == name), None)
        if batch is not None and not batch.ended:
            batch.looks -= 1
            if batch.ended:
                self.end(batch)
        return batch

    def end(self, batch: Batch) -> None:
        """Carry out a batch's requests, in any order."""
        names = list(batch.requests)
        self.order.shuffle(names)
        for name in names:
            batch.answers[name] = self.carried_out(batch.requests[name])


@dataclass
class OpenAIServer(BatchServer):
    """https://developers.openai.com/api/docs/guides/batch and https://developers.openai.com/api/reference."""

    files: dict[str, bytes] = field(default_factory=dict)
    most_enqueued: int = 10**9
    """Requests that may wait in all batches of the account; at OpenAI, tokens."""
    keeps_metadata: bool = True
    cancels: bool = False
    """Whether the user cancels batches half way."""

    def handle(self, method: str, path: str, query: dict[str, str], content: bytes, kind: str) -> Reply:
        if method == "POST" and path == "/v1/files":
            return self.uploaded(content, kind)
        if method == "POST" and path == "/v1/batches":
            return self.created(json.loads(content))
        if method == "POST":
            self.single += 1
            status, body = self.carried_out(json.loads(content))
            return status or 500, body if status == 200 else {"error": body}
        if path == "/v1/batches":
            return 200, self.listed(query, "after")
        if (found := re.fullmatch(r"/v1/files/([\w-]+)/content", path)) and found[1] in self.files:
            return 200, self.files[found[1]]
        if (found := re.fullmatch(r"/v1/batches/([\w-]+)", path)) and (batch := self.look(found[1])):
            return 200, self.shown(batch)
        return 404, {"error": {"message": f"No such object: {path}", "type": "invalid_request_error"}}

    def uploaded(self, content: bytes, kind: str) -> Reply:
        """/files/create: a form with ``file`` and ``purpose``."""
        boundary = kind.partition("boundary=")[2].encode()
        parts = {
            re.search(rb'name="(\w+)"', head)[1].decode(): body[:-2]  # type: ignore[index]
            for head, _, body in (part.partition(b"\r\n\r\n") for part in content.split(b"--" + boundary)[1:-1])
        }
        assert parts["purpose"] == b"batch"
        name = f"file-{len(self.files)}"
        self.files[name] = parts["file"]
        return 200, {"id": name, "object": "file", "bytes": len(parts["file"]), "purpose": "batch"}

    def created(self, asked: dict[str, Any]) -> Reply:
        """/batches/create: ``completion_window`` is 24h; metadata has up to 16 texts of up to 512 characters."""
        assert asked["completion_window"] == "24h"
        metadata = asked.get("metadata", {})
        assert len(metadata) <= 16
        assert all(len(name) <= 64 and len(text) <= 512 for name, text in metadata.items())
        if asked["input_file_id"] not in self.files:
            return 400, {"error": {"message": "no such file", "type": "invalid_request_error"}}
        lines = [json.loads(line) for line in self.files[asked["input_file_id"]].splitlines()]
        fault = self.fault(lines, asked["endpoint"])
        batch = Batch(f"batch_{len(self.batches)}", {one["custom_id"]: one["body"] for one in lines}, self.looks)
        batch.further = {"input_file_id": asked["input_file_id"], "endpoint": asked["endpoint"], "errors": fault}
        batch.further["metadata"] = metadata if self.keeps_metadata else None
        if fault:
            batch.requests, batch.looks = {}, 0
        self.batches.append(batch)
        return 200, self.shown(batch)

    def fault(self, lines: list[dict[str, Any]], endpoint: str) -> dict[str, str] | None:
        """Why the file fails validation: each line a request of the endpoint with an id of its own, one model a file,
        up to 50,000 requests; and so many tokens at most in the queue."""
        names = {one["custom_id"] for one in lines}
        right = all(one["method"] == "POST" and one["url"] == endpoint for one in lines)
        if len(names) != len(lines) or not right or len({one["body"]["model"] for one in lines}) != 1:
            return {"code": "invalid_file", "message": "the file is not valid"}
        if len(lines) > self.most_requests:
            return {"code": "too_many_requests", "message": f"more than {self.most_requests} requests"}
        waiting = sum(len(batch.requests) for batch in self.batches if not batch.ended)
        if waiting + len(lines) > self.most_enqueued:
            # the words of https://github.com/openai/openai-python/issues/2084
            return {"code": "token_limit_exceeded", "message": "Enqueued token limit reached for m"}
        return None

    def end(self, batch: Batch) -> None:
        """Answers are in one file; requests with errors, and those that expired, in another."""
        if self.cancels:
            batch.further["status"] = "cancelled"
            for name in list(batch.requests)[: len(batch.requests) // 2]:
                batch.answers[name] = self.carried_out(batch.requests[name])
        else:
            super().end(batch)
        good, bad = [], []
        for name, (status, body) in batch.answers.items():
            row: dict[str, Any] = {"id": f"batch_req_{name}", "custom_id": name, "error": None}
            if status is None:
                batch.further["status"] = "expired"
                bad.append({**row, "response": None, "error": body})
                continue
            row["response"] = {"status_code": status, "request_id": "r", "body": body}
            if status == 200:
                good.append(row)
            else:
                row["response"]["body"] = {"error": body}
                bad.append(row)
        for field_name, rows in (("output_file_id", good), ("error_file_id", bad)):
            if rows:
                batch.further[field_name] = file = f"file-{len(self.files)}"
                self.files[file] = b"".join(json.dumps(row).encode() + b"\n" for row in rows)

    def shown(self, batch: Batch) -> dict[str, Any]:
        status = batch.further.get("status", "completed") if batch.ended else "in_progress"
        fault = batch.further["errors"]
        good = sum(status == 200 for status, _ in batch.answers.values())
        return {
            "id": batch.id,
            "object": "batch",
            "completion_window": "24h",
            "created_at": 0,
            **batch.further,
            "status": "failed" if fault else status,
            "errors": {"object": "list", "data": [fault]} if fault else None,
            "request_counts": {"total": len(batch.requests), "completed": good, "failed": len(batch.answers) - good},
        }

    def completed(self, body: dict[str, Any], text: str) -> dict[str, Any]:
        size = tokens_of(prompt_of(body))
        if "input" in body:
            part = {"type": "output_text", "text": text}
            usage = {"input_tokens": size, "output_tokens": 3, "input_tokens_details": {"cached_tokens": size // 3}}
            output = [{"type": "message", "content": [part]}]
            return {
                "id": "r",
                "object": "response",
                "status": "completed",
                "output": output,
                "usage": usage,
                "model": "m",
            }
        usage = {
            "prompt_tokens": size,
            "completion_tokens": 3,
            "total_tokens": size + 3,
            "prompt_tokens_details": {"cached_tokens": size // 3},
        }
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        choice |= {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
        return {"id": "1", "object": "o", "created": 0, "model": "m", "choices": [choice], "usage": usage}


@dataclass
class AnthropicServer(BatchServer):
    """https://platform.claude.com/docs/en/build-with-claude/batch-processing and .../docs/en/api/messages/batches."""

    most_requests: int = 100_000

    def handle(self, method: str, path: str, query: dict[str, str], content: bytes, kind: str) -> Reply:
        root = "/v1/messages/batches"
        if method == "POST" and path == root:
            return self.created(json.loads(content)["requests"])
        if method == "POST":
            self.single += 1
            status, body = self.carried_out(json.loads(content))
            return status or 500, body if status == 200 else {"type": "error", "error": body}
        if path == root:
            return 200, self.listed(query, "after_id")
        if found := re.fullmatch(rf"{root}/(\w+)/results", path):
            batch = next((one for one in self.batches if one.id == found[1]), None)
            if batch is not None and batch.ended:
                return 200, b"".join(json.dumps(self.result(name, batch)).encode() + b"\n" for name in batch.answers)
        elif (found := re.fullmatch(rf"{root}/(\w+)", path)) and (batch := self.look(found[1])):
            return 200, self.shown(batch)
        error = {"type": "not_found_error", "message": f"Not found: {path}"}
        return 404, {"type": "error", "error": error}

    def created(self, requests: list[dict[str, Any]]) -> Reply:
        """Ids have 1 to 64 letters, digits, - and _, each once; ``params`` are checked when they are carried out."""
        names = [one["custom_id"] for one in requests]
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
        if len(set(names)) != len(names) or len(names) > self.most_requests:
            return 400, {"type": "error", "error": {"type": "invalid_request_error", "message": "not valid"}}
        batch = Batch(
            f"msgbatch_{len(self.batches)}", {one["custom_id"]: one["params"] for one in requests}, self.looks
        )
        self.batches.append(batch)
        return 200, self.shown(batch)

    def shown(self, batch: Batch) -> dict[str, Any]:
        """Requests are counted as processing until the whole batch has ended; the counts sum to all requests."""
        counts = Counter({"processing": 0, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0})
        counts.update([self.result(name, batch)["result"]["type"] for name in batch.answers])
        counts["processing"] = len(batch.requests) - len(batch.answers)
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if batch.ended else "in_progress",
            "request_counts": dict(counts),
            "created_at": "2026-01-01T00:00:00Z",
            "expires_at": "2026-01-02T00:00:00Z",
            "results_url": f"https://elsewhere.invalid/{batch.id}" if batch.ended else None,
        }

    def result(self, name: str, batch: Batch) -> dict[str, Any]:
        status, body = batch.answers[name]
        if status is None:
            result = {"type": body["type"]}
        elif status == 200:
            result = {"type": "succeeded", "message": body}
        else:
            result = {"type": "errored", "error": {"type": "error", "error": body, "request_id": "r"}}
        return {"custom_id": name, "result": result}

    def completed(self, body: dict[str, Any], text: str) -> dict[str, Any]:
        size = tokens_of(prompt_of(body))
        usage = {
            "input_tokens": size - size // 3,
            "cache_read_input_tokens": size // 3,
            "cache_creation_input_tokens": 0,
            "output_tokens": 3,
        }
        content = [{"type": "text", "text": text}]
        return {"id": "1", "type": "message", "role": "assistant", "content": content, "model": "m", "usage": usage} | {
            "stop_reason": "end_turn"
        }


def prompt_of(body: dict[str, Any]) -> str:
    """The prompt in a body, whatever its other arguments are."""
    turns = body.get("messages") or body.get("input") or [{"content": body.get("prompt")}]
    contents = [turn["content"] for turn in turns]
    return "\n".join(
        text if isinstance(text, str) else "".join(block["text"] for block in text) for text in contents if text
    )


def tokens_of(prompt: str) -> int:
    """Tokens of a prompt with the token that begins it, as the program counts them."""
    return 1 + len(small_tokenizer()([prompt])["input_ids"][0])


def label_of(prompt: str) -> str:
    """A label, by the prompt alone."""
    number = int(hashlib.sha256(prompt.encode()).hexdigest(), 16)
    return f" {LABELS[number % len(LABELS)].replace('_', ' ')}"


@contextmanager
def serving_batches(server: BatchServer) -> Iterator[BatchServer]:
    """Serve on the loopback until the block ends."""
    lock = threading.Lock()

    def respond(method: str, path: str, content: bytes, headers: Message) -> tuple[int, Body]:
        with lock:
            status, body = server.respond(method, path, content, headers.get("Content-Type", ""))
        return status, Body(body, "application/binary") if isinstance(body, bytes) else Body(json.dumps(body).encode())

    with listening(respond) as root:
        server.url = f"{root}/v1" if isinstance(server, OpenAIServer) else root
        yield server
