"""A relay: takes a pod's agents in, and is one stream to the collector, into which their messages go unopened.

It keeps nothing that cannot be sent again. Acknowledgements are the collector's own, passed through: what a relay held
when it was killed was not acknowledged, and its agents replay it, through this relay or another. With several
collectors, all of a job's agents go to one of them, through any relay.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError
from hindmost import __version__
from hindmost.errors import UsageError
from hindmost_proto import METHOD, retry, varint
from hindmost_proto import telemetry_pb2 as wire
from prometheus_client import generate_latest

from hindmost_collector.ingest.connections import GONE, HELLO_FIRST, UNKNOWN, RejectedCalls, ended, listen, served
from hindmost_collector.ingest.streams import LAST_WORD_S
from hindmost_collector.options import Options, address
from hindmost_collector.serve.credentials import Door, Gate
from hindmost_collector.serve.exposition import INFO, Metric, counter, family, gauge, of_process, open_ports
from hindmost_collector.serve.http import Page, Site

Call = grpc.aio.StreamStreamCall[bytes, bytes]

log = logging.getLogger(__name__)

#: Messages that wait for an agent that does not read; then it is let go, and comes back.
_WAITING = 256


def checked(raw: bytes) -> bytes:
    """A message as it came, if it is one: garbage from one agent must not reach the stream that all share."""
    wire.AgentMessage.FromString(raw)
    return raw


def choose(links: Sequence[Link], key: str) -> Link:
    """The collector for a job (rendezvous hashing): the same in every relay, and few move when one is added."""

    def weight(link: Link) -> bytes:
        return hashlib.blake2b(f"{link.target}\0{key}".encode(), digest_size=8).digest()

    return max(links, key=weight)


class RelayedAgent:
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
        self.gate = Gate(options)
        self.links = [Link(target.strip(), gate=self.gate) for target in options.relay_to.split(",")]
        self.rejected_calls = RejectedCalls()
        self._server: grpc.aio.Server | None = None
        self._page: Page | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> dict[str, str | None]:
        """Bind both ports; where they are. Raises HindmostError."""
        service = served(self.rejected_calls.guarded(self._stream), checked)
        self._server, bound = listen(
            self._options.listen, (service, self.rejected_calls), AGENT_BYTES, self.gate.server()
        )
        if self._options.http_address:
            self._page = Page(self._options.http_address, RelayPage(self), Door(self.gate, self._options))
        await self._server.start()
        self._tasks = [asyncio.create_task(link.run()) for link in self.links]
        return {"grpc": bound, "http": self._page.address if self._page else None}

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Serve one agent."""
        grant = self.gate.of_call(context)
        if grant is None:
            await self.rejected_calls.refuse("credentials", context, grpc.StatusCode.UNAUTHENTICATED, UNKNOWN)
            return
        first = await self.rejected_calls.first(requests, context)
        if first is None:  # it broke off before its first message
            return
        hello = wire.AgentMessage.FromString(first)
        if hello.WhichOneof("body") != "hello":
            await self.rejected_calls.refuse("hello", context, grpc.StatusCode.INVALID_ARGUMENT, HELLO_FIRST)
            return
        if refusal := self.gate.refuses(grant, hello.hello):
            await self.rejected_calls.refuse("credentials", context, grpc.StatusCode.PERMISSION_DENIED, refusal)
            return
        hello.hello.only_job, hello.hello.only_node = grant.job or "", grant.nodes is not None
        first = hello.SerializeToString()
        link = choose(self.links, hello.hello.job_id or hello.hello.node)
        if not link.connected:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"collector {link.target} is out of reach of this relay")
            return
        agent = RelayedAgent()
        number = link.open(agent)
        up = asyncio.create_task(_up(link, number, first, requests))
        try:  # ends when the collector ends it, or is cancelled when the agent breaks off
            await agent.pump(context)
            if not agent.reason:
                await asyncio.wait({up}, timeout=LAST_WORD_S)
        finally:
            link.close(number)
            await retry.cancel(up)
        if agent.reason:
            code = grpc.StatusCode.UNAVAILABLE if agent.away else grpc.StatusCode.ABORTED
            await context.abort(code, agent.reason)

    async def stop(self) -> None:
        """Close all streams; agents then reconnect to any listening relay or collector."""
        if self._server:
            await self._server.stop(0.5)
        await retry.cancel(*self._tasks)
        if self._page:
            self._page.close()


async def _up(link: Link, number: int, first: bytes, requests: AsyncIterator[bytes]) -> None:
    await link.send(number, first)
    async for message in requests:
        await link.send(number, message)
        del message  # the next one comes after seconds


class RelayPage(Site):
    """What a relay's HTTP side shows: health and its own metrics."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._registry = of_process()

    def metrics(self) -> bytes:
        relay = self._relay
        links = (
            family(metric, (([link.target], value(link)) for link in relay.links)) for metric, value in OF_LINKS.items()
        )
        own = family(INFO, [([__version__], 1)]), relay.rejected_calls.metric(), open_ports(relay.gate.insecure)
        return "".join((*own, *links)).encode() + generate_latest(self._registry)

    def ready(self) -> str | None:
        """Why this relay is not ready; None when every collector is reached."""
        away = [link.target for link in self._relay.links if not link.connected]
        return f"out of reach: {', '.join(away)}" if away else None


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


#: A collector that is gone without a word is noticed within this.
SILENCE_S = 20.0
#: Batches wait for others this long, so that one message carries many; everything else goes at once.
GATHER_S = 0.1
#: One message upwards, at most; and what may wait for it before agents are no longer read.
MESSAGE_BYTES, WAITING_BYTES = 2 << 20, 16 << 20
#: The collector's own limit of a message, less room for what goes around one agent's.
AGENT_BYTES = (16 << 20) - 1024
LONGEST_PAUSE_S = 10.0
#: The first byte of an AgentMessage that is a batch: field 3, length-delimited.
BATCH = b"\x1a"


def relayed(messages: Iterable[tuple[int, bytes | None]]) -> bytes:
    """An AgentMessage with ``(stream, its AgentMessage, None where it ended)`` in it, without taking any apart."""
    parts = []
    for stream, message in messages:
        body = b"\x18\x01" if message is None else b"\x12" + varint(len(message)) + message
        one = b"\x08" + varint(stream) + body
        parts.append(b"\x0a" + varint(len(one)) + one)
    content = b"".join(parts)
    return b"\x32" + varint(len(content)) + content


class Link:
    """Keeps one stream to one collector open. All agents' streams in it end when it breaks: they replay."""

    def __init__(
        self,
        target: str,
        jitter: Callable[[], float] = random.random,
        silence_s: float = SILENCE_S,
        gate: Gate | None = None,
    ) -> None:
        self.target = target
        self._gate = gate
        self._silence_s = silence_s
        self.connected = False
        self.messages = self.bytes = self.connects = 0
        self._jitter = jitter
        self._streams: dict[int, RelayedAgent] = {}
        self._number = 0
        self._waiting: list[tuple[int, bytes | None]] = []
        self._waiting_bytes = 0
        self._wake, self._urgent, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()
        self._said = False

    @property
    def agents(self) -> int:
        return len(self._streams)

    def open(self, carried: RelayedAgent) -> int:
        """A number for a new agent's stream. Only while ``connected``."""
        self._number += 1
        self._streams[self._number] = carried
        return self._number

    async def send(self, number: int, message: bytes) -> None:
        """Pass an agent's message on. Waits while too much waits already."""
        await self._room.wait()
        if number in self._streams:
            self._add(number, message, urgent=not message.startswith(BATCH))

    def close(self, number: int) -> None:
        if self._streams.pop(number, None):
            self._add(number, None, urgent=True)

    def _add(self, number: int, message: bytes | None, *, urgent: bool) -> None:
        self._waiting.append((number, message))
        self._waiting_bytes += len(message or b"")
        self._wake.set()
        if urgent or self._waiting_bytes > MESSAGE_BYTES // 4:
            self._urgent.set()
        if self._waiting_bytes > WAITING_BYTES:
            self._room.clear()

    async def run(self) -> None:
        """Connect, carry, reconnect; until cancelled."""
        attempt = 0
        while True:
            before = self.connects
            try:
                await self._stream()
            except (OSError, asyncio.TimeoutError, UsageError) as error:
                self._say(retry.reason(error))
            except GONE as error:
                self._say(ended(error))
            finally:
                self._break()
            attempt = 0 if self.connects > before else attempt + 1
            await asyncio.sleep(retry.pause_s(attempt, LONGEST_PAUSE_S, self._jitter()))

    async def _stream(self) -> None:
        target = str(address(self.target, "--relay-to"))
        options, metadata = self._options(), self._gate.metadata() if self._gate else ()
        opened = self._gate.channel if self._gate else grpc.aio.insecure_channel
        async with opened(target, options=options) as channel:
            # of bytes: grpc would log what cannot be read, and go on
            call: Call = channel.stream_stream(METHOD)(metadata=metadata)
            await retry.within(self._silence_s, call.write(relayed([])))
            first = await retry.within(self._silence_s, call.read())
            if first is grpc.aio.EOF or _parsed(first).WhichOneof("body") != "returned":
                raise ConnectionError("it does not answer as a collector that takes relays")
            self.connected, self.connects, self._said = True, self.connects + 1, False
            log.info("relaying agents to %s", self.target)
            await retry.together(self._receive(call), self.send_waiting(call))

    def _options(self) -> list[tuple[str, int]]:
        """Pings find a collector that is gone; what it sends has any length; no proxy stands in between."""
        ping_ms = int(self._silence_s * 500)
        return [
            ("grpc.keepalive_time_ms", ping_ms),
            ("grpc.keepalive_timeout_ms", ping_ms),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.bdp_probe", 0),
            ("grpc.max_receive_message_length", -1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),  # each attempt connects anew, when this says so
        ]

    async def _receive(self, call: Call) -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            for one in _parsed(message).returned.messages:
                carried = self._streams.get(one.stream)
                if carried is None:
                    continue
                if one.HasField("end"):
                    del self._streams[one.stream]
                    carried.end(one.end.reason)
                else:
                    carried.tell(one.message.SerializeToString())
        raise ConnectionError("it ended the stream")

    async def send_waiting(self, call: Call) -> None:
        while True:
            await self._wake.wait()
            with contextlib.suppress(asyncio.TimeoutError):
                await retry.within(GATHER_S, self._urgent.wait())
            self._wake.clear()
            self._urgent.clear()
            waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._room.set()
            for part in _portions(waiting):
                content = relayed(part)
                self.messages += len(part)
                self.bytes += len(content)
                await call.write(content)

    def _break(self) -> None:
        self.connected = False
        self._waiting, self._waiting_bytes = [], 0
        self._room.set()
        streams, self._streams = self._streams, {}
        for carried in streams.values():
            carried.end(f"collector {self.target} is out of reach", away=True)

    def _say(self, what: str) -> None:
        if not self._said:
            self._said = True
            log.warning("collector %s cannot be reached (%s): agents wait and keep their data", self.target, what)


def _parsed(message: Any) -> wire.CollectorMessage:
    try:
        return wire.CollectorMessage.FromString(message)
    except DecodeError as error:
        raise ConnectionError("it sent a message that cannot be read") from error


def _portions(waiting: list[tuple[int, bytes | None]]) -> Iterable[list[tuple[int, bytes | None]]]:
    """In order, each of about MESSAGE_BYTES at most; a larger message is sent alone."""
    portion: list[tuple[int, bytes | None]] = []
    size_so_far = 0
    for one in waiting:
        size = len(one[1] or b"")
        if portion and size_so_far + size > MESSAGE_BYTES:
            yield portion
            portion, size_so_far = [], 0
        portion.append(one)
        size_so_far += size
    if portion:
        yield portion


#: Metric to its value for a link to a collector.
OF_LINKS: Mapping[Metric, Callable[[Link], float]] = {
    gauge("hindmost_collector_relay_connected", "1 while the collector is reached.", "collector"): lambda link: (
        link.connected
    ),
    gauge("hindmost_collector_relay_agents", "Agents whose messages go to it.", "collector"): lambda link: link.agents,
    counter("hindmost_collector_relay_messages_total", "Messages sent to it.", "collector"): lambda link: link.messages,
    counter("hindmost_collector_relay_bytes_total", "Bytes sent to it.", "collector"): lambda link: link.bytes,
}
