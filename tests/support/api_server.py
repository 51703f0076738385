"""A small HTTP server with OpenAI's interface, for the API backend's unit tests.

What it answers to each request is decided by a function, so that tests can make it fail, wait or
say something odd. The backend's own client talks to it over the loopback.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any]
"""HTTP status and JSON body, or one to be sent as it is."""


@dataclass(frozen=True)
class Body:
    """What is no JSON, or not whole: ``lacking`` bytes of what is announced never come."""

    content: bytes
    kind: str = "application/json"
    lacking: int = 0


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


PAGE = Body(b"<!doctype html>\n<html><title>Welcome</title></html>", "text/html")


def completion(text: Any, prompt_tokens: int = 10, cached: int = 4) -> Reply:
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 2,
        "total_tokens": prompt_tokens + 2,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
    return 200, {
        "id": "1",
        "object": "text_completion",
        "created": 0,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


def chat(text: Any) -> Reply:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return 200, {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


@dataclass
class Server:
    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    most_at_once: int = 0
    _now: int = 0
    _lock: Any = field(default_factory=threading.Lock)


@contextmanager
def serving(
    answer: Callable[[dict[str, Any]], Reply],
    port: int = 0,
    models: Reply = (200, {"object": "list", "data": [{"id": "m", "object": "model"}]}),
) -> Iterator[Server]:
    """Serve on the loopback until the block ends. ``models`` is what it says when asked for them."""

    def respond(method: str, path: str, content: bytes, headers: Message) -> tuple[int, Body]:
        if method == "GET":
            status, reply = models
        else:
            body = json.loads(content)
            with state._lock:
                state._now += 1
                state.most_at_once = max(state.most_at_once, state._now)
                state.requests.append({**body, "path": path})
                state.keys.add(headers.get("Authorization", ""))
            try:
                status, reply = answer(body)
            finally:
                with state._lock:
                    state._now -= 1
        return status, reply if isinstance(reply, Body) else Body(json.dumps(reply).encode())

    state = Server("")
    with listening(respond, port) as root:
        state.url = f"{root}/v1"
        yield state


Respond = Callable[[str, str, bytes, Message], tuple[int, Body]]
"""A status and a body for a request's method, path, content and headers."""


@contextmanager
def listening(respond: Respond, port: int = 0) -> Iterator[str]:
    """Answer requests on the loopback until the block ends. Yields the address, without a path."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer waits for an acknowledgement

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._respond()

        def do_POST(self) -> None:
            self._respond()

        def _respond(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body = respond(self.command, self.path, content, self.headers)
            self.send_response(status)
            self.send_header("Content-Type", body.kind)
            self.send_header("Content-Length", str(len(body.content) + body.lacking))
            self.end_headers()
            self.wfile.write(body.content)
            self.close_connection = bool(body.lacking)

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, *_: Any) -> None:
            pass  # a client that went away

    server = Quiet(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
