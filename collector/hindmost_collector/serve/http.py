"""A small HTTP server in threads of its own, so that a scrape never holds up an agent."""

from __future__ import annotations

import gzip
import json
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol
from urllib.parse import parse_qs, urlsplit

from hindmost.errors import HindmostError
from hindmost_proto.exposition import CONTENT_TYPE

from hindmost_collector.page import document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Live(Protocol):
    """What an open page asks for: :class:`hindmost_collector.serve.live_page.LivePage`."""

    def state(self, name: str | None, /) -> dict[str, Any]: ...

    def answer(self, what: str, query: Mapping[str, str], /) -> bytes | None: ...

    def report_page(self, name: str, /) -> bytes | None: ...


class Endpoints(Protocol):
    """What is served: a collector's side of it, or a relay's, which has no jobs to show."""

    @property
    def live(self) -> Live | None: ...

    def metrics(self) -> bytes: ...

    def report(self, name: str | None, /) -> dict[str, Any] | None: ...

    def newest(self, name: str | None, /) -> dict[str, Any] | None: ...

    def jobs(self) -> list[dict[str, Any]]: ...

    def ready(self) -> str | None: ...

    def damage(self) -> list[str]: ...


#: Of what is damaged, readiness names so many.
DAMAGE_LINES = 20
#: Pages that are sent the state of their job at one time, each by a thread; others ask for it now and then.
STREAMS = 64
#: Time between two states, s, and how long the end of the server waits for pages to hear of it.
STATE_S, GOODBYE_S = 1.0, 1.0


class Answer(NamedTuple):
    """A response; ``gzipped`` where its body is."""

    status: HTTPStatus
    kind: str
    body: bytes
    gzipped: bool = False
    scripts: str = "'unsafe-inline'"


_TEXT = "text/plain; charset=utf-8"
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
#: Names, commands and stacks come from jobs: whatever is in them, nothing is loaded from elsewhere or sent there.
_POLICY = (
    "default-src 'none'; script-src {}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10  # seconds that a slow client may hold a thread
    endpoints: ClassVar[Endpoints]
    streams: ClassVar[_Streams]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        if url.path == "/api/events":
            self._stream(query)
            return
        route = ROUTES.get(url.path)
        self._send(route(self.endpoints, query) if route else _unknown())

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def _send(self, answer: Answer) -> None:
        body, gzipped = answer.body, answer.gzipped
        if gzipped and "gzip" not in self.headers.get("Accept-Encoding", ""):
            body, gzipped = gzip.decompress(body), False
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if gzipped:
            self.send_header("Content-Encoding", "gzip")
        if answer.kind == _HTML:
            self.send_header("Content-Security-Policy", _POLICY.format(answer.scripts))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _stream(self, query: dict[str, str]) -> None:
        """The state of a job each second, until the page is closed or the server is."""
        if self.endpoints.live is None or self.command == "HEAD" or not self.streams.enter():
            self._send(Answer(HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"no more pages are sent events\n"))
            return
        self.close_connection = True
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-store")
            self.send_header("Connection", "close")
            self.end_headers()
            closing = False
            while True:
                state = self.endpoints.live.state(query.get("job")) if self.endpoints.live else {}
                event = "event: bye\n" if closing else ""
                self.wfile.write(f"{event}data: {json.dumps(state, separators=(',', ':'))}\n\n".encode())
                if closing:
                    break
                closing = self.streams.closing.wait(STATE_S)
        finally:
            self.streams.leave()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Requests are not logged."""


class _Streams:
    """Pages that are sent events."""

    def __init__(self) -> None:
        self.closing = threading.Event()
        self._open = 0
        self._changed = threading.Condition()

    def enter(self) -> bool:
        """Whether one more page may be sent events."""
        with self._changed:
            if self._open >= STREAMS or self.closing.is_set():
                return False
            self._open += 1
            return True

    def leave(self) -> None:
        """A page was closed."""
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Tell all of them that this is the end."""
        self.closing.set()
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0, GOODBYE_S)


def _page(_: Endpoints, __: dict[str, str]) -> Answer:
    nonce = secrets.token_urlsafe(16)
    body = gzip.compress(document.render(nonce=nonce).encode(), 6)
    return Answer(HTTPStatus.OK, _HTML, body, gzipped=True, scripts=f"'nonce-{nonce}'")


def _metrics(endpoints: Endpoints, _: dict[str, str]) -> Answer:
    return Answer(HTTPStatus.OK, CONTENT_TYPE, endpoints.metrics())


def _report(endpoints: Endpoints, query: dict[str, str]) -> Answer:
    report = endpoints.report(query.get("job"))
    if report is None:
        return Answer(HTTPStatus.NOT_FOUND, _JSON, b'{"error":"no report yet"}')
    from hindmost_collector.report.verdict_lines import with_rendered  # noqa: PLC0415 - heavy, and only needed once a page is open

    return Answer(HTTPStatus.OK, _JSON, json.dumps(with_rendered(report)).encode())


def _newest(endpoints: Endpoints, query: dict[str, str]) -> Answer:
    found = endpoints.newest(query.get("job"))
    if found is None:
        return Answer(HTTPStatus.NOT_FOUND, _JSON, b'{"error":"no such job"}')
    return Answer(HTTPStatus.OK, _JSON, json.dumps(found).encode())


def _jobs(endpoints: Endpoints, _: dict[str, str]) -> Answer:
    return Answer(HTTPStatus.OK, _JSON, json.dumps(endpoints.jobs()).encode())


def _state(endpoints: Endpoints, query: dict[str, str]) -> Answer:
    state = endpoints.live.state(query.get("job")) if endpoints.live else {"state": "waiting"}
    return Answer(HTTPStatus.OK, _JSON, json.dumps(state).encode())


def _live(endpoints: Endpoints, query: dict[str, str]) -> Answer:
    body = endpoints.live.answer(query.get("of", ""), query) if endpoints.live else None
    if body is None:
        return Answer(HTTPStatus.NOT_FOUND, _JSON, b'{"error":"no such job, or nothing of that name"}')
    return Answer(HTTPStatus.OK, _JSON, body, gzipped=True)


def _stored(endpoints: Endpoints, query: dict[str, str]) -> Answer:
    body = endpoints.live.report_page(query.get("job", "")) if endpoints.live else None
    if body is None:
        return Answer(HTTPStatus.NOT_FOUND, _TEXT, b"no report of such a job is stored here\n")
    return Answer(HTTPStatus.OK, _HTML, gzip.compress(body, 1), gzipped=True)


def _healthy(_: Endpoints, __: dict[str, str]) -> Answer:
    return Answer(HTTPStatus.OK, _TEXT, b"ok\n")


def _ready(endpoints: Endpoints, _: dict[str, str]) -> Answer:
    reason = endpoints.ready()
    if reason:
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{reason}\n".encode())
    shown = endpoints.damage()
    more = [f"and {len(shown) - DAMAGE_LINES} more"] if len(shown) > DAMAGE_LINES else []
    return Answer(HTTPStatus.OK, _TEXT, "".join(f"{one}\n" for one in ["ready", *shown[:DAMAGE_LINES], *more]).encode())


def _unknown() -> Answer:
    return Answer(HTTPStatus.NOT_FOUND, _TEXT, f"served here: {' '.join(ROUTES)}\n".encode())


ROUTES: dict[str, Callable[[Endpoints, dict[str, str]], Answer]] = {
    "/": _page,
    "/report": _stored,
    "/metrics": _metrics,
    "/api/report": _report,
    "/api/jobs": _jobs,
    "/api/newest": _newest,
    "/api/state": _state,
    "/api/live": _live,
    "/healthz": _healthy,
    "/readyz": _ready,
}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class Page:
    """The server. Raises HindmostError when the port cannot be had."""

    def __init__(self, address: tuple[str, int], endpoints: Endpoints) -> None:
        self._streams = _Streams()
        self._handler: Any = type("Handler", (_Handler,), {"endpoints": endpoints, "streams": self._streams})
        try:
            self._server = _Server(address, self._handler)
        except OSError as error:
            where = f"{address[0]}:{address[1]}"
            raise HindmostError(
                f"cannot serve HTTP on {where}: {error.strerror}; give another --http HOST:PORT"
            ) from error
        host, port = self._server.server_address[:2]
        self.address = f"{host!s}:{port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True, name="http")
        self._thread.start()

    def show(self, endpoints: Endpoints) -> None:
        """Serve another side from now on."""
        self._handler.endpoints = endpoints

    def close(self) -> None:
        """Tell open pages, and stop serving."""
        self._streams.close()
        self._server.shutdown()
        self._server.server_close()
