"""A small HTTP server in threads of its own, so that a scrape never holds up an agent."""

from __future__ import annotations

import contextlib
import gzip
import json
import secrets
import selectors
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from hindmost.errors import HindmostError
from hindmost_proto.address import Address
from hindmost_proto.exposition import CONTENT_TYPE

from hindmost_collector.page import document
from hindmost_collector.refusals import Refusals
from hindmost_collector.serve.credentials import ANONYMOUS, EVERYONE, Door, Visitor

if TYPE_CHECKING:
    from hindmost_collector.serve.live_page import LivePage


class Site:
    """What is served over HTTP. Without more, as on a relay or before the store is open, no job is known."""

    live: LivePage | None = None

    def metrics(self) -> bytes:
        raise NotImplementedError

    def ready(self) -> str | None:
        """Why it is not ready; None when it is."""
        raise NotImplementedError

    def owner(self, name: str) -> str | None: ...

    def newest(self, name: str | None) -> dict[str, Any] | None: ...

    def report(self, name: str | None) -> dict[str, Any] | None: ...

    def damage(self) -> list[str]:
        return []

    def jobs(self) -> list[dict[str, Any]]:
        return []


#: Of what is damaged, readiness names so many.
DAMAGE_LINES = 20
#: Pages that are sent the state of their job at one time, each by a thread; others ask for it now and then.
STREAMS = 64
#: Time between two states, s, and how long the end of the server waits for pages to hear of it.
STATE_S, GOODBYE_S = 1.0, 1.0
#: Connections at one time, each a thread, and how long a request may take to arrive, s.
CONNECTIONS, ARRIVAL_S = 256, 15.0
#: While requests are expected, s between two looks for those whose time is over.
ARRIVAL_LOOK_S = 0.5


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
    server_version, sys_version = "hindmost", ""
    timeout = 10  # seconds that a slow client may hold a thread
    endpoints: ClassVar[Site]
    streams: ClassVar[_Streams]
    door: ClassVar[Door | None]
    server: _Server

    def setup(self) -> None:
        """TLS, in this connection's own thread."""
        tls = self.door.web.tls if self.door and self.door.web else None
        self.request.settimeout(self.timeout)
        if tls is not None:
            self.server.arriving.pop(self.request, None)
            self.request = tls.wrap_socket(self.request, server_side=True, do_handshake_on_connect=False)
            self.server.expect(self.request)
            self.request.do_handshake()
        super().setup()

    def finish(self) -> None:
        """Close what TLS made of the connection, too."""
        self.server.arriving.pop(self.request, None)
        try:
            super().finish()
        finally:
            self.request.close()

    def handle_one_request(self) -> None:
        """A request, all of which has to arrive in time."""
        self.server.expect(self.request)
        super().handle_one_request()

    def do_GET(self) -> None:
        self.server.arriving.pop(self.request, None)
        if self.headers.get("Transfer-Encoding") or self.headers.get("Content-Length", "0").strip() != "0":
            self.close_connection = True  # what follows would be taken for a request
            self._send(Answer(HTTPStatus.BAD_REQUEST, _TEXT, b"a request here has no body\n"))
            return
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        visitor = self._visitor(query)
        if visitor is None:
            return
        if refusal := self._narrowed(visitor, url.path, query):
            self._send(refusal)
            return
        if url.path == "/api/events":
            self._stream(query)
            return
        route = ROUTES.get(url.path)
        if visitor.anonymous:
            route = _ready_or_not if url.path == "/readyz" else route
        served = f"served here: {' '.join(ROUTES)}\n".encode()
        answer = route(self.endpoints, query) if route else Answer(HTTPStatus.NOT_FOUND, _TEXT, served)
        if url.path == "/api/jobs" and not visitor.sees_all:
            shown = [job for job in self.endpoints.jobs() if self._sees(visitor, job["id"])]
            answer = answer._replace(body=json.dumps(shown).encode())
        self._send(answer)

    def _visitor(self, query: dict[str, str]) -> Visitor | None:
        """Who asks; None where an answer has been sent already."""
        if self.door is None:
            return EVERYONE
        token = query.pop("token", "")
        path = urlsplit(self.path).path
        visitor = self.door.admits(self.headers, token, self._cookie())
        if visitor is None and path in OPEN:
            return ANONYMOUS
        if visitor is None:
            basic = {"WWW-Authenticate": 'Basic realm="hindmost"'} if self.door.web else {}
            self._send(
                Answer(HTTPStatus.UNAUTHORIZED, _TEXT, b"not let in: a valid token or password is needed\n"), basic
            )
        elif token and path == "/":  # so that the token is in no history and no Referer
            value = f"{self._cookie_name()}={token}; HttpOnly; SameSite=Strict; Path=/"
            more = {"Set-Cookie": value + "; Secure" * bool(self.door.web), "Location": f"?{urlencode(query)}"}
            self._send(Answer(HTTPStatus.SEE_OTHER, _TEXT, b""), more)
            return None
        return visitor

    def _cookie_name(self) -> str:
        return f"hindmost-{self.server.server_address[1]}"  # cookies know no ports

    def _cookie(self) -> str:
        for part in (self.headers.get("Cookie") or "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self._cookie_name():
                return value
        return ""

    def _sees(self, visitor: Visitor, job: str) -> bool:
        if visitor.job is not None:
            return job == visitor.job
        return visitor.user is not None and self.endpoints.owner(job) == visitor.user

    def _narrowed(self, visitor: Visitor, path: str, query: dict[str, str]) -> Answer | None:
        """Let the query name a job that this visitor sees; or the answer where there is none such, as of an unknown."""
        if visitor.sees_all or path in OPEN or (path in ("/", "/api/jobs") and not visitor.anonymous):
            return None
        if path == "/metrics" and not visitor.anonymous:
            yours = b"yours are on the page and in /api/jobs"
            shown = b"a job's token shows /api/report of its job" if visitor.job is not None else yours
            return Answer(HTTPStatus.FORBIDDEN, _TEXT, b"this shows all jobs; " + shown + b"\n")
        if visitor.anonymous:
            said = b"jobs are shown to their users, and the proxy named none in its header (--user-header)\n"
            return None if path == "/metrics" else Answer(HTTPStatus.FORBIDDEN, _TEXT, said)
        job = query.get("job") or next(
            (one["id"] for one in self.endpoints.jobs() if self._sees(visitor, one["id"])), None
        )
        if job is None or not self._sees(visitor, job):
            return _json(None)
        query["job"] = job
        return None

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def _send(self, answer: Answer, more: Mapping[str, str] = {}) -> None:
        body, gzipped = answer.body, answer.gzipped
        if gzipped and "gzip" not in self.headers.get("Accept-Encoding", ""):
            body, gzipped = gzip.decompress(body), False
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        web = self.door.web if self.door else None
        for name, value in {**(web.headers if web else {}), **more}.items():
            self.send_header(name, value)
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
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def close(self) -> None:
        self.closing.set()
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0, GOODBYE_S)


def _page(_: Site, __: dict[str, str]) -> Answer:
    nonce = secrets.token_urlsafe(16)
    body = gzip.compress(document.render(nonce=nonce).encode(), 6)
    return Answer(HTTPStatus.OK, _HTML, body, gzipped=True, scripts=f"'nonce-{nonce}'")


def _json(found: Any, missing: str = "no such job") -> Answer:
    if found is None:
        return Answer(HTTPStatus.NOT_FOUND, _JSON, json.dumps({"error": missing}, separators=(",", ":")).encode())
    return Answer(HTTPStatus.OK, _JSON, json.dumps(found).encode())


def _report(endpoints: Site, query: dict[str, str]) -> Answer:
    report = endpoints.report(query.get("job"))
    if report is None:
        return _json(None, "no report yet")
    from hindmost_collector.report.verdict_lines import with_rendered  # noqa: PLC0415 - heavy, and only needed once a page is open

    return _json(with_rendered(report, path=endpoints.live.path(report["job"]["id"]) if endpoints.live else ""))


def _live(endpoints: Site, query: dict[str, str]) -> Answer:
    body = endpoints.live.answer(query.get("of", ""), query) if endpoints.live else None
    if body is None:
        return _json(None, "no such job, or nothing of that name")
    return Answer(HTTPStatus.OK, _JSON, body, gzipped=True)


def _stored(endpoints: Site, query: dict[str, str]) -> Answer:
    body = endpoints.live.report_page(query.get("job", "")) if endpoints.live else None
    if body is None:
        return Answer(HTTPStatus.NOT_FOUND, _TEXT, b"no report of such a job is stored here\n")
    return Answer(HTTPStatus.OK, _HTML, gzip.compress(body, 1), gzipped=True)


def _ready(endpoints: Site, _: dict[str, str]) -> Answer:
    reason = endpoints.ready()
    if reason:
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{reason}\n".encode())
    shown = endpoints.damage()
    more = [f"and {len(shown) - DAMAGE_LINES} more"] if len(shown) > DAMAGE_LINES else []
    return Answer(HTTPStatus.OK, _TEXT, "".join(f"{one}\n" for one in ["ready", *shown[:DAMAGE_LINES], *more]).encode())


def _ready_or_not(endpoints: Site, _: dict[str, str]) -> Answer:
    """Without the reasons, which name paths and hosts."""
    found = _ready(endpoints, _)
    return found._replace(body=b"ready\n" if found.status == HTTPStatus.OK else b"not ready\n")


ROUTES: dict[str, Callable[[Site, dict[str, str]], Answer]] = {
    "/": _page,
    "/report": _stored,
    "/metrics": lambda endpoints, _: Answer(HTTPStatus.OK, CONTENT_TYPE, endpoints.metrics()),
    "/api/report": _report,
    "/api/jobs": lambda endpoints, _: _json(endpoints.jobs()),
    "/api/newest": lambda endpoints, query: _json(endpoints.newest(query.get("job"))),
    "/api/state": lambda endpoints, query: _json(
        endpoints.live.state(query.get("job")) if endpoints.live else {"state": "waiting"}
    ),
    "/api/live": _live,
    "/healthz": lambda *_: Answer(HTTPStatus.OK, _TEXT, b"ok\n"),
    "/readyz": _ready,
}


#: What probes ask for without a name.
OPEN = ("/healthz", "/readyz")


class _Server(ThreadingHTTPServer):
    """Sleeps while no client asks: on full cores each wake-up takes a core from a rank."""

    daemon_threads = True
    allow_reuse_address = True
    timeout = 0

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        #: Connections whose request has not arrived, and when it must have.
        self.arriving: dict[socket.socket, float] = {}
        self._room = threading.Semaphore(CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._wakes, self._woken = socket.socketpair()
        self._over, self._ended = False, threading.Event()
        self._refusals = Refusals("the page's port")
        super().__init__(address, handler)  # closes the server if the port is taken

    def serve_forever(self, poll_interval: float = ARRIVAL_LOOK_S) -> None:
        """Serve until ``shutdown``; look at this interval for requests that do not arrive, while any is expected."""
        try:
            with selectors.DefaultSelector() as selector:
                for one in (self, self._woken):
                    selector.register(one, selectors.EVENT_READ)
                while not self._over:
                    for ready, _ in selector.select(poll_interval if self.arriving else None):
                        if ready.fileobj is self:
                            self.handle_request()
                        else:
                            self._woken.recv(64)
                    self.service_actions()
        finally:
            self._ended.set()

    def shutdown(self) -> None:
        """Have ``serve_forever`` return, and wait until it has."""
        self._over = True
        self._wake()
        self._ended.wait()

    def server_close(self) -> None:
        super().server_close()
        self._wakes.close()
        self._woken.close()

    def expect(self, connection: socket.socket) -> None:
        """A request must arrive on it in time."""
        self.arriving[connection] = time.monotonic() + ARRIVAL_S
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # closed meanwhile; or full, then it wakes anyway
            self._wakes.send(b"\0", socket.MSG_DONTWAIT)

    def service_actions(self) -> None:
        """Break off requests that do not arrive."""
        now = time.monotonic()
        for connection, deadline in list(self.arriving.items()):
            if now > deadline:
                self.arriving.pop(connection, None)
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for each connection, as long as there are not too many."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, _: object, client_address: Any) -> None:
        """A client that went away is no news; one that fails at TLS is."""
        error = sys.exc_info()[1]
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            reason = error.reason or str(error)
            what = "it sent plain HTTP: use https://" if reason == "HTTP_REQUEST" else f"TLS failed: {reason}"
            self._refusals.report(reason, str(Address(*client_address[:2])), what)


class Page:
    """The server. Raises HindmostError when the port cannot be had."""

    def __init__(self, address: tuple[str, int], endpoints: Site, door: Door | None = None) -> None:
        self._streams = _Streams()
        parts = {"endpoints": endpoints, "streams": self._streams, "door": door}
        self._handler: Any = type("Handler", (_Handler,), parts)
        try:
            self._server = _Server(address, self._handler)
        except OSError as error:
            where = Address(*address)
            raise HindmostError(
                f"cannot serve HTTP on {where}: {error.strerror}; give another --http HOST:PORT"
            ) from error
        host, port = self._server.server_address[:2]
        self.address = str(Address(str(host), port))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name="http")
        self._thread.start()

    def show(self, endpoints: Site) -> None:
        """Serve another side from now on."""
        self._handler.endpoints = endpoints

    def close(self) -> None:
        self._streams.close()
        self._server.shutdown()
        self._server.server_close()
