"""Agents' connections: the port, the log of who comes and goes, and rejected calls and batches, counted and logged.

Input that never becomes a call (no HTTP/2, or a message that is too long) ends inside gRPC, which does not report it.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from hindmost.errors import HindmostError
from hindmost_proto import METHOD, SERVICE, retry

from hindmost_collector.ingest.session import AgentSession
from hindmost_collector.options import address
from hindmost_collector.refusals import Refusals
from hindmost_collector.serve.exposition import counter, family

Stream = Callable[[AsyncIterator[Any], Any], Awaitable[None]]

#: A client that does not complete the handshakes of TLS and HTTP/2 is closed, and so is one that opens no stream.
HANDSHAKE_MS, NO_STREAM_MS = 15_000, 60_000
#: The first message of a stream has to come within this.
HELLO_S = 15.0
#: Bytes of a frame at most, and that an agent may send before the collector has read them: so much of each agent waits
#: in memory while the store is behind. A batch of full cores has megabytes: in frames of 16 KiB, 64 KiB ahead, it took
#: both sides half as long again, and five times the wakes.
FRAME_BYTES, AHEAD_BYTES = 1 << 20, 1 << 18
#: Open files that no agent takes: of the page's clients, the store and reports.
OTHER_FILES = 512


def most_connections() -> int:
    """How many clients the open files of this process are enough for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(files - OTHER_FILES, files // 2)


def listen(
    where: str,
    handlers: Sequence[grpc.GenericRpcHandler],
    longest: int,
    credentials: grpc.ServerCredentials | None = None,
) -> tuple[grpc.aio.Server, str]:
    """A server that has the port and is not started, and its address as ``HOST:PORT``; ``longest``: bytes of a message.

    It speaks TLS where it has ``credentials``.

    Raises HindmostError where the port cannot be had.
    """
    wanted = address(where, "--listen")
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", longest),
            ("grpc.so_reuseport", 0),  # a port in use is an error, not a lottery
            ("grpc.max_allowed_incoming_connections", most_connections()),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ("grpc.max_connection_idle_ms", NO_STREAM_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            # Bandwidth probing pings the agent at every message, which wakes it for nothing. A ping that a host under
            # load leaves unanswered for a minute ends the connection.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.max_frame_size", FRAME_BYTES),
            ("grpc.http2.lookahead_bytes", AHEAD_BYTES),
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
            # The most that gRPC reads in two blocks of 8 KiB. From 12,288 on it takes one of 64 KiB, which each
            # connection keeps once a batch has come through it; in one of 8 KiB a batch takes twice the system calls.
            ("grpc.experimental.tcp_max_read_buffer_size", 12287),
        ]
    )
    server.add_generic_rpc_handlers(tuple(handlers))
    try:
        bound = (
            server.add_secure_port(str(wanted), credentials) if credentials else server.add_insecure_port(str(wanted))
        )
    except RuntimeError as error:
        raise HindmostError(f"cannot listen on {wanted}: it is in use, or not an address of this host") from error
    return server, str(wanted._replace(port=bound))


#: What grpc raises where a stream is ended by its other end, as asyncio's own error where it notices that late.
GONE = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)


def ended(error: Exception) -> str:
    """What the other end, or the connection, said of one of these, in words."""
    said = error.details() if isinstance(error, grpc.aio.AioRpcError) else None
    return said or "it ended the stream"


class Messages:
    """What the other end of a call sends, until it ends its side. gRPC's own iterator holds each message until the next
    one has come: of a thousand agents tens of MiB."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> Any:
        message = await self._context.read()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message


def served(
    stream: Stream, parse: Callable[[bytes], Any], write: Callable[[Any], bytes] | None = None
) -> grpc.GenericRpcHandler:
    """The Telemetry service, whose method is ``stream``; ``parse`` and ``write`` turn bytes into messages and back."""

    async def serve(_: Any, context: Any) -> None:
        await stream(Messages(context), context)

    method: Any = grpc.stream_stream_rpc_method_handler(serve, parse, write)
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD.rpartition("/")[2]: method})


log = logging.getLogger(__name__)

#: Agents that one line names, and how long the next line gathers more.
_NAMED, _GATHERED_S = 3, 1.0


class ConnectionLog:
    """Gathers the content of one line. An agent that came and left before the line counts as both."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._logged_s = monotonic, -_GATHERED_S
        self._joined: dict[str, None] = {}
        self._left: dict[str, None] = {}
        self._lost: dict[str, None] = {}

    def joined(self, identity: str) -> None:
        """An agent that had no stream has one."""
        self._joined[identity] = None

    def left(self, identity: str, *, said_goodbye: bool) -> None:
        """An agent's stream is over."""
        (self._left if said_goodbye else self._lost)[identity] = None

    def tell(self, connected: Callable[[], int]) -> None:
        """Log what there is since the last line; ``connected`` counts the agents that have a stream now."""
        now = self._monotonic()
        if now - self._logged_s < _GATHERED_S or not (self._joined or self._left or self._lost):
            return
        self._logged_s = now
        for what, agents in (("joined", self._joined), ("left", self._left), ("broke off", self._lost)):
            if agents:
                named = ", ".join(list(agents)[:_NAMED]) + (", …" if len(agents) > _NAMED else "")
                who = "1 agent" if len(agents) == 1 else f"{len(agents)} agents"
                log.info("%s %s (%s): %d connected", who, what, named, connected())
                agents.clear()


HELLO_FIRST = "the first message of a stream must be Hello"
UNKNOWN = "no valid token: give --token-file FILE, with the collector's secret or a token of its job"
NO_RELAY = "only a relay may send for other agents: with the collector's secret, or a certificate named in its relays"
#: A call of a method that is not served; bytes that are no message; a stream that does not begin with Hello; one that
#: is refused for what its Hello says; one without proof of what it says.
REASONS = ("method", "garbage", "hello", "refused", "credentials")
REFUSED = counter(
    "hindmost_collector_refused_streams_total",
    "Calls on the agents' port by other programs. `method`: of another service; `garbage`: no message of an agent; "
    "`hello`: began with another message, or none; `refused`: another protocol, or names too long. "
    "`credentials`: no token, or one of something else. What is not HTTP/2, or fails at TLS, is not counted.",
    "reason",
)


class RejectedCalls(grpc.GenericRpcHandler):
    """Counts them; served after everything else, it answers calls of what is not served here."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._refusals = Refusals("the agents' port", now)
        self.counts: Counter[str] = Counter()

    def count(self, reason: str, context: Any, what: str) -> None:
        """Count one, and say so at most once a minute."""
        self.counts[reason] += 1
        self._refusals.report(reason, context.peer(), what)

    async def refuse(self, reason: str, context: Any, code: grpc.StatusCode, what: str) -> None:
        """Count a stream, and end it with the reason."""
        self.count(reason, context, what)
        await context.abort(code, what)

    async def first(self, requests: AsyncIterator[Any], context: Any) -> Any | None:
        """The first message of a stream; None where it broke off before. A stream without one is refused."""
        try:
            return await retry.within(HELLO_S, anext(aiter(requests), None))
        except asyncio.TimeoutError:
            await self.refuse("hello", context, grpc.StatusCode.DEADLINE_EXCEEDED, HELLO_FIRST)
            return None

    def guarded(self, stream: Stream) -> Stream:
        """A handler that ends a stream of undecodable bytes with a word instead of a traceback."""

        async def serve(requests: AsyncIterator[Any], context: Any) -> None:
            try:
                await stream(requests, context)
            except DecodeError as error:
                code = grpc.StatusCode.INVALID_ARGUMENT
                await self.refuse("garbage", context, code, f"what it sent is no message of an agent: {error}")

        return serve

    def service(self, details: Any) -> Any:
        """Whatever method is asked for: a handler that says that there is none."""
        what = f"it calls {details.method}, which is not served here"

        async def answer(_: Any, context: Any) -> None:
            await self.refuse("method", context, grpc.StatusCode.UNIMPLEMENTED, what)

        return grpc.stream_stream_rpc_method_handler(answer)

    def metric(self) -> str:
        """How many there were of each kind."""
        return family(REFUSED, [([reason], self.counts[reason]) for reason in REASONS])


class RejectedBatches:
    """Adds ``malformed_blocks`` and ``set_aside`` to the ``counts`` that it is made with."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._reported: set[tuple[str, str]] = set()

    def malformed(self, agent: AgentSession, complaints: Sequence[str]) -> None:
        """Blocks that say what cannot be, a sentence for each."""
        self._counts["malformed_blocks"] += len(complaints)
        if self._first(agent, "malformed"):
            log.warning("agent %s on %s sent invalid data: %s", agent.identity, agent.node, complaints[0])

    def unforeseen(self, agent: AgentSession, what: str, error: Exception) -> None:
        """Go on without a batch that failed in an unforeseen way: sent again it would fail again. Re-raises
        MemoryError."""
        if isinstance(error, MemoryError):
            raise error
        self._counts["set_aside"] += 1
        if self._first(agent, "unforeseen"):
            text = "%s of agent %s on %s failed: the part not yet taken is left out"
            log.error(text, what, agent.identity, agent.node, exc_info=error)

    def forget(self, identity: str) -> None:
        """An agent that is gone: if it comes back, it is logged again."""
        self._reported -= {(identity, "malformed"), (identity, "unforeseen")}

    def _first(self, agent: AgentSession, kind: str) -> bool:
        known = (agent.identity, kind) in self._reported
        self._reported.add((agent.identity, kind))
        return not known
