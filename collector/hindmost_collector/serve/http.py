"""A small HTTP server in threads of its own, so that a scrape never holds up an agent."""

from __future__ import annotations

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from urllib.parse import parse_qs, urlsplit

from hindmost.errors import HindmostError
from hindmost_proto.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable


class Scrape(Protocol):
    """What is served: a collector's side of it, or a relay's."""

    def metrics(self) -> bytes: ...

    def report(self, name: str | None, /) -> dict[str, Any] | None: ...

    def newest(self, name: str | None, /) -> dict[str, Any] | None: ...

    def jobs(self) -> list[dict[str, Any]]: ...

    def ready(self) -> str | None: ...

    def damage(self) -> list[str]: ...


#: Of what is damaged, readiness names so many.
DAMAGE_LINES = 20
Answer = tuple[HTTPStatus, str, bytes]
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10  # seconds that a slow client may hold a thread
    scrape: ClassVar[Scrape]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        route = ROUTES.get(url.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        status, kind, body = route(self.scrape, query) if route else _unknown()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Requests are not logged."""


def _asset(name: str, kind: str) -> Callable[[Scrape, dict[str, str]], Answer]:
    """Serves a file of this package."""

    def serve(_: Scrape, __: dict[str, str]) -> Answer:
        return HTTPStatus.OK, f"{kind}; charset=utf-8", files(__package__).joinpath(name).read_bytes()

    return serve


def _metrics(scrape: Scrape, _: dict[str, str]) -> Answer:
    return HTTPStatus.OK, CONTENT_TYPE, scrape.metrics()


def _report(scrape: Scrape, query: dict[str, str]) -> Answer:
    report = scrape.report(query.get("job"))
    if report is None:
        return HTTPStatus.NOT_FOUND, _JSON, b'{"error":"no report yet"}'
    from hindmost_collector.report.rendered import with_rendered  # noqa: PLC0415 - heavy, and only needed once a page is open

    return HTTPStatus.OK, _JSON, json.dumps(with_rendered(report)).encode()


def _newest(scrape: Scrape, query: dict[str, str]) -> Answer:
    found = scrape.newest(query.get("job"))
    if found is None:
        return HTTPStatus.NOT_FOUND, _JSON, b'{"error":"no such job"}'
    return HTTPStatus.OK, _JSON, json.dumps(found).encode()


def _jobs(scrape: Scrape, _: dict[str, str]) -> Answer:
    return HTTPStatus.OK, _JSON, json.dumps(scrape.jobs()).encode()


def _healthy(_: Scrape, __: dict[str, str]) -> Answer:
    return HTTPStatus.OK, _TEXT, b"ok\n"


def _ready(scrape: Scrape, _: dict[str, str]) -> Answer:
    reason = scrape.ready()
    if reason:
        return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{reason}\n".encode()
    shown = scrape.damage()
    more = [f"and {len(shown) - DAMAGE_LINES} more"] if len(shown) > DAMAGE_LINES else []
    return HTTPStatus.OK, _TEXT, "".join(f"{one}\n" for one in ["ready", *shown[:DAMAGE_LINES], *more]).encode()


def _unknown() -> Answer:
    return HTTPStatus.NOT_FOUND, _TEXT, f"served here: {' '.join(ROUTES)}\n".encode()


ROUTES: dict[str, Callable[[Scrape, dict[str, str]], Answer]] = {
    "/": _asset("page.html", "text/html"),
    "/page.css": _asset("page.css", "text/css"),
    "/page.js": _asset("page.js", "text/javascript"),
    "/metrics": _metrics,
    "/api/report": _report,
    "/api/jobs": _jobs,
    "/api/newest": _newest,
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

    def __init__(self, address: tuple[str, int], scrape: Scrape) -> None:
        self._handler: Any = type("Handler", (_Handler,), {"scrape": scrape})
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

    def show(self, scrape: Scrape) -> None:
        """Serve another side from now on."""
        self._handler.scrape = scrape

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
