"""The agent's own ``/metrics`` for a Prometheus that scrapes nodes directly: no collector is needed for it."""

import asyncio
import math
import os
import re
import socket
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hindmost.errors import HindmostError
from hindmost.web_config import WebConfig
from hindmost_proto import retry
from hindmost_proto.address import Address
from hindmost_proto.exposition import CONTENT_TYPE, JOB_LABEL, head, labelled

from hindmost_agent.sampler import Kind, Metric, Reading, Series

#: A request is a line and some headers; a client that sends more, or takes longer, is no scraper.
LARGEST_REQUEST = 16 << 10
PATIENCE_S = 10.0
#: At one time; a further one is turned away.
MOST_CLIENTS = 64
#: Besides /metrics: for a liveness probe, and for people. An agent that answers samples too: both are one loop.
PAGES = {b"/": b"hindmost agent: see /metrics\n", b"/healthz": b"ok\n"}


class _Line(NamedTuple):
    """Where a sample's value is found, and everything before it on its line (headers of its metric included)."""

    place: int
    metric: str
    prefix: bytes
    header: bytes


class Exposition:
    """Text format 0.0.4. What stands before a value is made when a sampler's series change, not at each scrape."""

    def __init__(self, node: str) -> None:
        self._node = node
        #: By sampler: its series when last seen, and how they are written.
        self._plans: dict[str, tuple[tuple[Series, ...], list[_Line]]] = {}

    def render(self, readings: Iterable[Reading]) -> bytes:
        """The latest readings as one page. Missing values have no line."""
        pieces: list[bytes] = []
        said = ""
        for reading in readings:
            values = reading.values
            for place, metric, prefix, header in self._plan(reading):
                value = values[place]
                if value != value:  # noqa: PLR0124 - NaN, without the cost of a call for each sample
                    continue
                if metric != said:
                    pieces.append(header)
                    said = metric
                pieces.append(b"%b%b\n" % (prefix, number(value)))
        return b"".join(pieces)

    def _plan(self, reading: Reading) -> list[_Line]:
        """One a sampler: of jobs that are over nothing is kept, however many ranks they had."""
        known = self._plans.get(reading.sampler)
        if known is None or known[0] is not reading.series:
            known = self._plans[reading.sampler] = (reading.series, self._make(reading.series))
        return known[1]

    def _make(self, series: tuple[Series, ...]) -> list[_Line]:
        """All samples of a metric stand together, in the order in which the metrics first appear."""
        order = {metric.name: place for place, metric in enumerate(dict.fromkeys(one.metric for one in series))}
        indices = sorted(range(len(series)), key=lambda index: order[series[index].metric.name])
        return [
            _Line(index, one.metric.name, self._prefix(one).encode(), _header(one.metric))
            for index in indices
            for one in (series[index],)
        ]

    def _prefix(self, one: Series) -> str:
        labels = zip((JOB_LABEL if name == "job" else name for name in one.metric.labels), one.values, strict=True)
        return labelled(one.metric.name, {"node": self._node, **dict(labels)})


def number(value: float) -> bytes:
    """A value as Prometheus reads it; whole numbers without a fraction."""
    if math.isinf(value):
        return b"+Inf" if value > 0 else b"-Inf"
    whole = int(value)
    return b"%d" % whole if whole == value and abs(whole) < 1 << 53 else repr(float(value)).encode()


def _header(metric: Metric) -> bytes:
    kind = "counter" if metric.kind is Kind.COUNTER else "gauge"
    return head(metric.name, kind, metric.help).encode()


async def listen(address: Address, page: Callable[[], bytes], web: WebConfig | None = None) -> asyncio.Server:
    """Serve ``page()`` at ``/metrics``, and ``PAGES``, protected as ``web`` says.

    Raises ``HindmostError`` when the address cannot be had.
    """
    clients = asyncio.Semaphore(MOST_CLIENTS)
    tls = web.tls if web is not None else None
    if tls is not None:
        tls.sni_callback = lambda connection, *_: setattr(connection, "context", web and web.tls)  # it may be renewed
    more: dict[str, Any] = {"limit": LARGEST_REQUEST, "ssl": tls}
    if tls is not None:
        more["ssl_handshake_timeout"] = PATIENCE_S

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if clients.locked():
            writer.close()
            return
        try:
            async with clients:
                await retry.within(PATIENCE_S, _answer(reader, writer, page, web))
        except (OSError, asyncio.TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            pass  # a scraper that went away, or no scraper: it is the one to notice
        finally:
            writer.close()

    try:
        if address.host:
            return await asyncio.start_server(handle, address.host, address.port, **more)
        return await asyncio.start_server(handle, sock=_everywhere(address.port), **more)
    except OSError as error:
        # asyncio's own words repeat the address; those of a name that cannot be resolved have no errno's.
        known = not isinstance(error, socket.gaierror) and error.errno
        why = os.strerror(known) if known else error.strerror or error
        raise HindmostError(f"--listen {address}: {why}; choose another address") from error


def _everywhere(port: int) -> socket.socket:
    """One socket for IPv4 and IPv6, so that port 0 is one port; IPv4 alone where the kernel has nothing else."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, page: Callable[[], bytes], web: WebConfig | None
) -> None:
    request = await reader.readuntil(b"\r\n\r\n")
    shown = re.search(rb"\r\nauthorization:([^\r\n]*)", request, re.IGNORECASE)
    authorization = shown[1].decode("latin-1") if shown else ""
    words = request.split(b"\r\n", 1)[0].split()
    path = words[1].split(b"?", 1)[0] if len(words) == 3 else b""
    status, body = "200 OK", PAGES.get(path, b"")
    more = ""
    if web is not None:
        more = "".join(f"{name}: {value}\r\n" for name, value in web.headers.items())
    if web is not None and path != b"/healthz" and not await asyncio.to_thread(web.admits, authorization):
        status, body = "401 Unauthorized", b"a user and a password are needed\n"
        more += 'WWW-Authenticate: Basic realm="hindmost"\r\n'
    elif words[:1] not in ([b"GET"], [b"HEAD"]):
        status, body = "405 Method Not Allowed", b"only GET\n"
    elif path == b"/metrics":
        body = page()
    elif path not in PAGES:
        status, body = "404 Not Found", b"hindmost agent: see /metrics\n"
    more = f"Connection: close\r\n{more}"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    writer.write(head.encode() + (b"" if words[:1] == [b"HEAD"] else body))
    await writer.drain()
