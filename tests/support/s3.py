"""An S3 server on the loopback (moto's), with faults injected in front of it."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

BUCKET = "results"


class Faults:
    """What happens to requests before they reach the server."""

    def __init__(self) -> None:
        self.throttled, self.late = 0.0, 0.0
        """Shares of requests: answered 503; held up for longer than clients wait."""
        self.refused: str | None = None
        """A method that is answered 403."""
        self.random = random.Random(0)
        self.requests = self.held_up = 0
        self._lock = threading.Lock()

    def __call__(self, method: str) -> tuple[int, str] | None:
        """The status and code of an error that a request gets instead of an answer."""
        with self._lock:
            self.requests += 1
            fate = self.random.random()
        if method == self.refused:
            return 403, "AccessDenied"
        if fate < self.throttled:
            return 503, "SlowDown"
        if fate < self.throttled + self.late:
            with self._lock:
                self.held_up += 1
            time.sleep(1.5)
        return None


class S3Server:
    """moto's server in threads of this process, behind its faults."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self.faults = Faults()
        inner = DomainDispatcherApplication(create_backend_app)

        def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            fault = self.faults(environ["REQUEST_METHOD"])
            if fault is None:
                found: Iterable[bytes] = inner(environ, start)
                return found
            status, code = fault
            body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start(f"{status} {code}", [("Content-Type", "application/xml")])
            return [body]

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = make_server("127.0.0.1", 0, app, threaded=True)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> S3Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()

    @property
    def environment(self) -> dict[str, str]:
        """What tells clients where it is."""
        return {
            "AWS_ENDPOINT": self.address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
        }

    def make_bucket(self, name: str = BUCKET) -> None:
        """A bucket, empty."""
        from urllib.request import Request, urlopen

        urlopen(Request(f"{self.address}/{name}", method="PUT")).close()
