"""HTTP POST to a receiver of samples or a webhook: in bounded time, and which answers are worth another try."""

from __future__ import annotations

import base64
import contextlib
import http.client
import math
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from hindmost import __version__
from hindmost.errors import UsageError

TIMEOUT_S = 30.0
HEADERS: Mapping[str, str] = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}


@dataclass(frozen=True)
class Answer:
    """A receiver's answer. ``status`` 0: there was none."""

    status: int
    reason: str
    retry_after_s: float = 0.0

    @property
    def taken(self) -> bool:
        """Whether the samples are there."""
        return 200 <= self.status < 300

    @property
    def temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in {0, 429} or self.status >= 500


def _split(url: str, what: str, example: str) -> tuple[SplitResult, int | None]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # a port of letters or above 65535, a bracket left open
        raise _no_receiver(url, what, example) from None
    return parts, port


def _no_receiver(url: str, what: str, example: str) -> UsageError:
    shown = re.sub(r"//[^/]*@", "//…@", url)  # what stands there may be a password
    return UsageError(f"{what} {shown!r}: give {example}")


class Receiver:
    """One receiver, over one connection that is kept open. Raises UsageError, naming ``what``, for no URL.

    An answer takes at most ``timeout_s`` after the request was sent, however slowly it comes. ``authority`` is a file,
    read for each connection, of the one that signed the receiver's certificate; without it those of the system count.
    """

    def __init__(
        self,
        url: str,
        what: str = "--remote-write",
        timeout_s: float = TIMEOUT_S,
        headers: Mapping[str, str] = HEADERS,
        example: str = "http://HOST:PORT/PATH, such as http://prom:9090/api/v1/write",
        authority: str = "",
    ) -> None:
        parts, port = _split(url, what, example)
        if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
            raise _no_receiver(url, what, example)
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"User-Agent": f"hindmost/{__version__}", **headers}
        if parts.username:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = "Basic " + base64.b64encode(secret).decode()
        self._timeout_s, self._authority = timeout_s, authority
        self._connection: http.client.HTTPConnection | None = None

    def post(self, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """Send to the path of the URL, with more ``headers``; never raises."""
        return self.request("POST", self._path, body, headers)

    def request(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None, within_s: float = math.inf
    ) -> Answer:
        """Send one request, with more ``headers``; ``within_s`` bounds an answer below ``timeout_s``. Never raises."""
        timeout_s = min(self._timeout_s, within_s)
        try:
            connection = self._connection or self._connect()
        except OSError as error:  # the file of the authority
            return Answer(0, str(error))
        try:
            connection.timeout = timeout_s  # of one that has to be made
            if connection.sock:
                connection.sock.settimeout(timeout_s)
            connection.request(method, path, body, {**self._headers, **(headers or {})})
            bound = threading.Timer(timeout_s, _hang_up, (connection.sock,))
            bound.start()
            try:
                response = connection.getresponse()
                said = response.read(4096).decode("utf-8", "replace").strip()
            finally:
                bound.cancel()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._connection = None
            return Answer(0, str(error) or type(error).__name__)
        self._connection = None if response.will_close else connection
        wait = response.headers.get("Retry-After", "")
        return Answer(response.status, said or response.reason, float(wait) if wait.isdigit() else 0.0)

    def _connect(self) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context(cafile=self._authority or None)
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def close(self) -> None:
        """Let the connection go."""
        if self._connection:
            self._connection.close()


def _hang_up(connection: socket.socket) -> None:
    """End what another thread reads."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # that of TLS would take its state from the reader
