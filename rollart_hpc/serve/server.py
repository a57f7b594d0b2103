"""The HTTP server of the live page. Owns the token, routes, headers and refusals; reads only, on loopback only.

The standard library's server: a handful of readers on loopback need no more, and login nodes have it. The token is the
first part of every path, so relative links carry it and no cookie exists. Whatever lies below it is matched against a
few routes, and names in it are looked up among the runs that were found: nothing of a request becomes a path.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from urllib.parse import parse_qs, unquote, urlsplit

from rollart_hpc.errors import RollartError
from rollart_hpc.observe.page import SCRIPT
from rollart_hpc.serve import pages, plays
from rollart_hpc.serve.library import Library
from rollart_hpc.serve.prometheus import metrics
from rollart_hpc.serve.shell import stylesheet

log = logging.getLogger(__name__)

HTML, CSS, JS, TEXT = (f"text/{kind}; charset=utf-8" for kind in ("html", "css", "javascript", "plain"))
LOOK_S, PING_S = 1.0, 15.0
MOST_WATCHERS = 32
MOST_PATH = 4096
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, library: Library, port: int = 0) -> None:
        self.library = library
        self.token = secrets.token_urlsafe(24)
        self.watchers = threading.BoundedSemaphore(MOST_WATCHERS)
        self.is_closing = threading.Event()
        own = files("rollart_hpc.serve")
        self.assets = {
            "app.css": (CSS, stylesheet((own / "app.css").read_text())),
            "app.js": (JS, (own / "app.js").read_text() + SCRIPT),
        }
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def shutdown(self) -> None:
        self.is_closing.set()
        super().shutdown()


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "rollart-hpc"
    sys_version = ""
    timeout = 60  # of a connection that sends nothing

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        token, *parts = url.path.removeprefix("/").split("/")
        if len(self.path) > MOST_PATH or not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._answer(HTTPStatus.NOT_FOUND, TEXT, "not found\n")
            return
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        try:
            self._route([unquote(each) for each in parts], query, parse_qs(url.query).get("run", []))
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True
        except RollartError as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, f"{error}\n")
        except Exception:  # a damaged file that nobody thought of must not end the server
            log.exception("GET %s", "/".join(parts))
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, "this page can't be shown; see the server's output\n")

    def _route(self, parts: list[str], query: dict[str, str], runs: list[str]) -> None:
        library = self.server.library
        match parts:
            case [""]:
                self._answer(HTTPStatus.OK, HTML, pages.all_runs(library))
            case ["assets", name] if name in self.server.assets:
                self._answer(HTTPStatus.OK, *self.server.assets[name])
            case ["compare"]:
                self._answer(HTTPStatus.OK, HTML, pages.compare(library, runs))
            case ["metrics"]:
                self._answer(HTTPStatus.OK, TEXT, metrics(library))
            case ["events"]:
                self._events(query.get("run", ""))
            case ["run", name, *rest] if (shelf := library.find(name)) is not None:
                page: str | None = None
                match rest:
                    case [""]:
                        page = pages.one_run(shelf)
                    case ["plays"]:
                        page = plays.listing(shelf, query)
                    case ["play", trajectory]:
                        page = plays.one_play(shelf, trajectory)
                    case ["logs"]:
                        page = pages.logs(shelf, query.get("process", ""))
                self._page(page)
            case _:
                self._page(None)

    def _page(self, page: str | None) -> None:
        if page is None:
            self._answer(HTTPStatus.NOT_FOUND, TEXT, "not found, or not there any more\n")
        else:
            self._answer(HTTPStatus.OK, HTML, page)

    def _answer(self, status: HTTPStatus, kind: str, content: str) -> None:
        data = content.encode(errors="replace")
        self._head(status, kind, {"Content-Length": str(len(data))})
        self.wfile.write(data)

    def _head(self, status: HTTPStatus, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    # --- events --------------------------------------------------------------------------------

    def _events(self, name: str) -> None:
        """Tell whenever something was written: of one run, or of any (`*`)."""
        look = self._looker(name)
        if look is None or not self.server.watchers.acquire(blocking=False):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, "no such run, or too many pages are open\n")
            return
        try:
            self._head(HTTPStatus.OK, "text/event-stream", {"Connection": "close"})
            self.close_connection = True
            self._watch(look)
        finally:
            self.server.watchers.release()

    def _looker(self, name: str) -> Callable[[], object] | None:
        library = self.server.library
        if name == "*":
            return lambda: [(shelf.name, shelf.news()) for shelf in library.shelves()]
        shelf = library.find(name)
        return None if shelf is None else shelf.news

    def _watch(self, look: Callable[[], object]) -> None:
        seen, told_s = look(), time.monotonic()
        self._tell(": hello\n\n")
        while not self.server.is_closing.wait(LOOK_S):
            now = look()
            if now != seen:
                seen, told_s = now, time.monotonic()
                self._tell("data: changed\n\n")
            elif time.monotonic() - told_s > PING_S:
                told_s = time.monotonic()
                self._tell(": ping\n\n")

    def _tell(self, event: str) -> None:
        self.wfile.write(event.encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: their paths hold the token."""
