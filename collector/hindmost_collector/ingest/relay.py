"""A relay: takes a pod's agents in, and is one stream to the collector. It keeps nothing that cannot be sent again.

Acknowledgements are the collector's own, passed through: what a relay held when it was killed was not acknowledged,
and its agents replay it, through this relay or another. With several collectors, all of a job's agents go to one of
them, through any relay.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from hindmost import __version__
from hindmost_proto import telemetry_pb2 as wire
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest

from hindmost_collector.ingest.listening import listen
from hindmost_collector.ingest.rejected_calls import HELLO_FIRST, Strangers
from hindmost_collector.ingest.relay_link import AGENT_BYTES, Link
from hindmost_collector.ingest.service import LAST_WORD_S
from hindmost_collector.serve.exposition import INFO, collected, counter, gauge
from hindmost_collector.serve.http import Page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric as ClientMetric

    from hindmost_collector.options import Options
    from hindmost_collector.serve.exposition import Metric

log = logging.getLogger(__name__)

#: Messages that wait for an agent that does not read; then it is let go, and comes back.
_WAITING = 256

#: Metric to its value for a link to a collector.
OF_LINKS: Mapping[Metric, Callable[[Link], float]] = {
    gauge("hindmost_collector_relay_connected", "1 while the collector is reached.", "collector"): lambda link: (
        link.connected
    ),
    gauge("hindmost_collector_relay_agents", "Agents whose messages go to it.", "collector"): lambda link: link.agents,
    counter("hindmost_collector_relay_messages_total", "Messages sent to it.", "collector"): lambda link: link.messages,
    counter("hindmost_collector_relay_bytes_total", "Bytes sent to it.", "collector"): lambda link: link.bytes,
}


def checked(raw: bytes) -> bytes:
    """A message as it came, if it is one: garbage from one agent must not reach the stream that all share."""
    wire.AgentMessage.FromString(raw)
    return raw


def choose(links: Sequence[Link], key: str) -> Link:
    """The collector for a job (rendezvous hashing): the same in every relay, and few move when one is added."""

    def weight(link: Link) -> bytes:
        return hashlib.blake2b(f"{link.target}\0{key}".encode(), digest_size=8).digest()

    return max(links, key=weight)


class Agent:
    """One agent's stream from below."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.reason, self.away = "", False

    def tell(self, message: bytes) -> None:
        """Have it sent; an agent that does not read is let go."""
        if self._queue.qsize() < _WAITING:
            self._queue.put_nowait(message)
        elif not self.reason:
            self.end("it does not read what it is sent")

    def end(self, reason: str, *, away: bool = False) -> None:
        """Have the stream closed once everything is sent."""
        self.reason, self.away = reason, away
        self._queue.put_nowait(None)

    async def pump(self, context: Any) -> None:
        """Send until the end."""
        while (message := await self._queue.get()) is not None:
            await context.write(message)


class Relay:
    """The process: a server below, a link to each collector above."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.links = [Link(target.strip()) for target in options.relay_to.split(",")]
        self.strangers = Strangers()
        self._server: grpc.aio.Server | None = None
        self._page: Page | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> dict[str, str | None]:
        """Bind both ports; where they are. Raises HindmostError."""
        guarded = self.strangers.guarded(self._stream)
        stream: Any = grpc.stream_stream_rpc_method_handler(guarded, request_deserializer=checked)
        service = grpc.method_handlers_generic_handler("hindmost.v1.Telemetry", {"Stream": stream})
        self._server, bound = listen(self._options.listen, (service, self.strangers), AGENT_BYTES)
        if self._options.http_address:
            self._page = Page(self._options.http_address, RelayPage(self))
        await self._server.start()
        self._tasks = [asyncio.create_task(link.run()) for link in self.links]
        return {"grpc": bound, "http": self._page.address if self._page else None}

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Serve one agent."""
        first = await anext(aiter(requests), None)
        if first is None:  # it broke off before it said a word
            return
        hello = wire.AgentMessage.FromString(first)
        if hello.WhichOneof("body") != "hello":
            await self.strangers.refuse("hello", context, grpc.StatusCode.INVALID_ARGUMENT, HELLO_FIRST)
            return
        link = choose(self.links, hello.hello.job_id or hello.hello.node)
        if not link.connected:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"collector {link.target} is out of reach of this relay")
            return
        agent = Agent()
        number = link.open(agent)
        up = asyncio.create_task(_up(link, number, first, requests))
        try:  # ends when the collector ends it, or is cancelled when the agent breaks off
            await agent.pump(context)
            if not agent.reason:
                await asyncio.wait({up}, timeout=LAST_WORD_S)
        finally:
            up.cancel()
            link.close(number)
            await asyncio.gather(up, return_exceptions=True)
        if agent.reason:
            code = grpc.StatusCode.UNAVAILABLE if agent.away else grpc.StatusCode.ABORTED
            await context.abort(code, agent.reason)

    async def stop(self) -> None:
        """Close all streams; agents then reconnect to any listening relay or collector."""
        if self._server:
            await self._server.stop(0.5)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._page:
            self._page.close()


async def _up(link: Link, number: int, first: bytes, requests: AsyncIterator[bytes]) -> None:
    await link.send(number, first)
    async for message in requests:
        await link.send(number, message)


class RelayPage:
    """What a relay's HTTP side shows: health and its own metrics."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._registry = CollectorRegistry()
        self._registry.register(self)
        for standard in (ProcessCollector, PlatformCollector, GCCollector):
            standard(registry=self._registry)

    def collect(self) -> Iterator[ClientMetric]:
        """The relay's own metrics."""
        yield collected(INFO, [([__version__], 1)])
        yield self._relay.strangers.metric()
        for metric, value in OF_LINKS.items():
            yield collected(metric, [([link.target], value(link)) for link in self._relay.links])

    def metrics(self) -> bytes:
        """The ``/metrics`` page."""
        return generate_latest(self._registry)

    def ready(self) -> str | None:
        """Why this relay is not ready; None when every collector is reached."""
        away = [link.target for link in self._relay.links if not link.connected]
        return f"out of reach: {', '.join(away)}" if away else None

    def damage(self) -> list[str]:
        """A relay stores nothing that could be."""
        return []

    def jobs(self) -> list[dict[str, Any]]:
        """A relay knows of none."""
        return []

    def report(self, _: str | None) -> None:
        """A relay judges nothing."""


async def serve(options: Options, stopped: asyncio.Event) -> int:
    """Run a relay until ``stopped``."""
    relay = Relay(options)
    try:
        addresses = await relay.start()
        log.info("started: relaying agents on %s to %s", addresses["grpc"], options.relay_to)
        sys.stdout.write(json.dumps(addresses) + "\n")
        sys.stdout.flush()
        await stopped.wait()
        log.info("stopping: closing the streams of %d agents", sum(link.agents for link in relay.links))
    finally:
        await relay.stop()
    log.info("stopped")
    return 0
