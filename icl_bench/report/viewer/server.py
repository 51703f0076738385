"""The viewer's server: it answers on the loopback alone, to requests that name it and know its token."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from icl_bench.errors import UserError
from icl_bench.report.page import library
from icl_bench.report.viewer.folder import Folder

HOST = "127.0.0.1"


HOST_NAMES = (HOST, "localhost")
"""Names that a request may have for this server: any other was led here by a foreign page."""


HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Knowing:
    """Lets only requests through that know the token: in the printed address, and from then on in a cookie.

    Other users of this machine reach the loopback as well.
    """

    app: ASGIApp
    token: str
    cookie: str
    """Its name. Cookies are those of all ports of a host."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        request = Request(scope)
        if self._is_token(request.query_params.get("token")):
            others = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
            answer: Response = RedirectResponse(f"{request.url.path}?{others}".rstrip("?"), 303, HEADERS)
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="lax")
            await answer(scope, receive, send)
        elif self._is_token(request.cookies.get(self.cookie)):
            await self.app(scope, receive, send)
        else:
            answer = PlainTextResponse("open the address that icl-bench view printed, with its token", 403, HEADERS)
            await answer(scope, receive, send)

    def _is_token(self, given: str | None) -> bool:
        return secrets.compare_digest((given or "").encode(), self.token.encode())


def application(folder: Folder, token: str, cookie: str) -> Starlette:
    """What answers requests: the page, its state, predictions by filter, one of them whole."""

    def main(_: Request) -> Response:
        return HTMLResponse(folder.page(), headers=HEADERS)

    def report(_: Request) -> Response:
        if folder.report is None:
            return PlainTextResponse("the findings are being computed", 404, HEADERS)
        return HTMLResponse(folder.report[1], headers=HEADERS)

    def draws(_: Request) -> Response:
        return Response(library(), media_type="text/javascript", headers=HEADERS)

    def state(_: Request) -> Response:
        return _json(folder.state())

    def options(_: Request) -> Response:
        return _json(folder.wait().predictions.options())

    def predictions(request: Request) -> Response:
        return _json(folder.wait().predictions.matching(request.query_params))

    def prediction(request: Request) -> Response:
        query = request.query_params
        record = folder.prediction(query.get("cell", ""), query.get("test_id", ""))
        if record is None:
            return PlainTextResponse("no such prediction", 404, HEADERS)
        return _json(record)

    pages: Mapping[str, Callable[[Request], Response]] = {
        "/": main,
        "/report": report,
        "/library.js": draws,
        "/state": state,
        "/options": options,
        "/predictions": predictions,
        "/prediction": prediction,
    }
    routes = [Route(path, answer, methods=["GET"]) for path, answer in pages.items()]
    guards = [
        Middleware(TrustedHostMiddleware, allowed_hosts=list(HOST_NAMES), www_redirect=False),
        Middleware(Knowing, token=token, cookie=cookie),
        Middleware(GZipMiddleware, minimum_size=10_000, compresslevel=1),
    ]
    return Starlette(routes=routes, middleware=guards, exception_handlers={UserError: _not_there})


def _not_there(_: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), 503, HEADERS)


def _json(content: Any) -> Response:
    return JSONResponse(content, headers=HEADERS)


def listen(port: int) -> socket.socket:
    """A socket of the loopback at this port, 0 for one that is free. Raises ``UserError``."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()  # who asks from here on waits until it is answered
    except OSError as error:
        listener.close()
        raise UserError(f"--port {port}: {error.strerror}; give another one, or none for one that is free") from None
    return listener


def serve(folder: Folder, listening: socket.socket, token: str) -> None:
    """Answer requests with this token until Ctrl-C, or another end of the program."""
    import uvicorn

    from icl_bench.report.viewer.connections import ShortWaits

    settings = uvicorn.Config(
        application(folder, token, f"icl_bench_{listening.getsockname()[1]}"),
        http=ShortWaits,
        ws="none",
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    try:
        uvicorn.Server(settings).run(sockets=[listening])
    except KeyboardInterrupt:
        pass  # it raises the signal again that has ended it
    finally:
        folder.stop()
        listening.close()
