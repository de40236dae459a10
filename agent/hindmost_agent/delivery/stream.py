"""The stream to the collector: sends the spool in order, measures the clock, reconnects, never gives up.

It is one bidirectional call, by grpclib on asyncio alone. grpcio, the collector's server, keeps seven threads for one
stream of a client, which wake a dozen times a second though a message goes every other second; grpclib has none.
"""

import asyncio
import contextlib
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from grpclib.client import Channel, Stream, StreamStreamMethod
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from h2.exceptions import H2Error, StreamClosedError
from hindmost.credentials import Client, reason, unverified
from hindmost.errors import UsageError
from hindmost_proto import METHOD, retry
from hindmost_proto import telemetry_pb2 as wire
from hindmost_proto.address import Address
from hindmost_proto.telemetry_pb2 import CollectorMessage

from hindmost_agent.delivery.spool import Spool
from hindmost_agent.sampler import AgentCounts


class CallError(ConnectionError):
    """The call is over, and not because both sides said so."""


class Coded(CodecBase):
    """Messages are written as the bytes that they are coded in already."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: type[bytes]) -> bytes:  # noqa: ARG002 - grpclib's own names
        """Leave it as it is."""
        return message

    def decode(self, data: bytes, message_type: type[CollectorMessage]) -> CollectorMessage:
        """Raises ``CallError`` when it is no such message."""
        try:
            return message_type.FromString(data)
        except Exception as error:  # whatever its decoder raises
            raise CallError("it sent a message that cannot be read") from error


class Call:
    """Made by ``connect``."""

    def __init__(self, stream: Stream[bytes, CollectorMessage]) -> None:
        self._stream = stream
        self._done = False
        #: Whether the collector has said anything.
        self.answered = False

    async def write(self, message: bytes) -> None:
        """Send a coded AgentMessage; waits while the collector takes no more."""
        await self._stream.send_message(message)

    async def read(self) -> CollectorMessage | None:
        """The next message; ``None`` when the collector has ended the call in order."""
        message: CollectorMessage | None = await self._stream.recv_message()
        self.answered = True
        if message is None:
            await self.done_writing()
            await self._stream.recv_trailing_metadata()
        return message

    async def done_writing(self) -> None:
        """Say that nothing more comes; safe to call twice."""
        if not self._done:
            self._done = True
            await self._stream.end()


async def _trusted(host: str, port: int, client: Client, within_s: float) -> ssl.SSLContext | None:
    """TLS for one connection; None without. A pinned server is asked for its certificate first, on a connection that
    says nothing; the context then trusts this one alone. Raises ``CallError`` where it is another."""
    if not client.fingerprint:
        return client.context() if client.encrypts else None
    _, writer = await retry.within(within_s, asyncio.open_connection(host, port, ssl=unverified()))
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    if not client.pins(certificate):
        raise CallError("its certificate is not the one with the fingerprint that this agent was given")
    return client.context(certificate)


@contextlib.asynccontextmanager
async def connect(host: str, port: int, within_s: float, client: Client = Client()) -> AsyncIterator[Call]:  # noqa: B008 - immutable
    """A call, which is over when the block is left.

    Raises ``OSError`` where no server listens, ``asyncio.TimeoutError`` after ``within_s`` without a connection, and
    ``CallError``, out of the block too, when the call ended otherwise than in order, or one side does not accept the
    other's certificate.
    """
    try:
        context, metadata = await _trusted(host, port, client, within_s), client.bearer()
    except (ssl.SSLError, UsageError) as error:
        raise CallError(reason(error)) from error
    if not all(value.isascii() and value.isprintable() for value in metadata.values()):
        raise CallError("HINDMOST_TOKEN has other characters than printable ASCII: it is no token")
    call = None
    async with Channel(host, port, codec=Coded(), ssl=context) as channel:
        try:
            async with StreamStreamMethod(channel, METHOD, bytes, CollectorMessage).open(metadata=metadata) as stream:
                await retry.within(within_s, stream.send_request())
                call = Call(stream)
                yield call
        except GRPCError as error:
            raise CallError(error.message or f"it ended the call with {error.status.name}") from error
        except ssl.SSLError as error:
            raise CallError(reason(error)) from error
        except (StreamTerminatedError, ProtocolError, H2Error) as error:
            lost = str(error) == "Connection lost" and not (call and call.answered)
            raise CallError(_unanswered(client) if lost else _error_text(error)) from error


def _unanswered(client: Client) -> str:
    """What may be wrong where a server ends the connection without an answer. With TLS it gives no reason."""
    if client.encrypts:
        return (
            "it ended the connection: this agent's certificate is missing, expired or of another authority (--tls-cert)"
        )
    return "it ended the connection without an answer: if it speaks TLS, give --tls-ca"


def _error_text(error: Exception) -> str:
    """Why the call is over; a stream that was ended while something was written is no fault of the connection."""
    said = str(error)
    if isinstance(error, StreamClosedError) or said.endswith("reset by remote party, error_code: 0"):
        return "it ended the stream"
    return said or "it broke the call off"


log = logging.getLogger(__name__)

#: A quick handful at the start of a stream, then one now and then.
FIRST_ROUND_TRIPS = 8
CLOCK_PERIOD_S = 10.0
#: An offset that differs by more was not measured worse: the node's clock was set.
SET_S = 1.0


class RoundTrips:
    """The collector's clock: asks for its time, and says how long the answer took.

    That is a handful when a stream begins, then one now and then. Those go with batches where the collector takes them
    there: a message costs it more than what is in one.

    Args:
        counts: where the offset is noted.
        say: sends a message that is no batch, soon.
    """

    def __init__(
        self,
        counts: AgentCounts,
        say: Callable[[bytes], None],
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._counts, self._say, self._monotonic_ns, self._unix_ns = counts, say, monotonic_ns, unix_ns
        self._with_batches = False
        self._count = self._best_ns = 0
        self._asks = False
        self._measured: wire.ClockSample | None = None

    def begin(self, *, with_batches: bool) -> None:
        """A new stream; whether its collector takes questions and round trips with batches."""
        self._with_batches = with_batches
        self._count = self._best_ns = 0
        self._asks, self._measured = False, None
        self._ask()

    def due(self) -> None:
        """Ask for the time, with the next batch; at once where none has gone since this was last called."""
        if self._measured is not None:
            self._tell(self._measured)
            self._measured = None
        if self._with_batches and not self._asks:
            self._asks = True
        else:
            self._asks = False
            self._ask()

    def piggybacked(self) -> bytes:
        """What goes with a batch that leaves now, behind its own bytes."""
        if not self._asks and self._measured is None:
            return b""
        message = wire.AgentMessage(measured=self._measured, asked_ns=self._monotonic_ns() if self._asks else 0)
        self._asks, self._measured = False, None
        return message.SerializeToString()

    def answered(self, reply: wire.ClockReply) -> bool:
        """An answer has come; whether those are in with which a stream begins."""
        returned_ns = self._monotonic_ns()
        sample = wire.ClockSample(
            sent_ns=reply.sent_ns, received_ns=reply.received_ns, replied_ns=reply.replied_ns, returned_ns=returned_ns
        )
        self._note(sample)
        self._count += 1
        if self._with_batches and self._count > FIRST_ROUND_TRIPS:
            self._measured = sample
            return True
        self._tell(sample)
        if self._count < FIRST_ROUND_TRIPS:
            self._ask()
        return self._count >= FIRST_ROUND_TRIPS

    def _note(self, sample: wire.ClockSample) -> None:
        round_trip = (sample.returned_ns - sample.sent_ns) - (sample.replied_ns - sample.received_ns)
        middle = (sample.sent_ns + sample.returned_ns) // 2
        real_now = self._unix_ns() - (self._monotonic_ns() - middle)
        offset_s = ((sample.received_ns + sample.replied_ns) // 2 - real_now) / 1e9
        was_set = abs(offset_s - (self._counts.clock_offset_s or 0.0)) > round_trip / 1e9 + SET_S
        if not self._best_ns or round_trip <= self._best_ns or was_set:
            self._best_ns = round_trip
            self._counts.clock_offset_s, self._counts.clock_round_trip_s = offset_s, round_trip / 1e9
        else:
            self._best_ns += self._best_ns // 50  # an old best must not stand forever: clocks drift

    def _ask(self) -> None:
        self._tell(wire.ClockSample(sent_ns=self._monotonic_ns()))

    def _tell(self, sample: wire.ClockSample) -> None:
        self._say(wire.AgentMessage(clock=sample).SerializeToString())


#: A collector that answers no round trip for this long is gone, though TCP may take a quarter of an hour to say so.
SILENCE_S = 25.0
#: Not acknowledged batches on the way at most; more stay in the spool.
WINDOW = 512
#: After the last acknowledgement: for the Goodbye to arrive and the collector to end its side.
LAST_WORD_S = 1.0
LONGEST_PAUSE_S = 30.0
#: A collector that said that it goes is left alone for the pause of so many attempts, that it can.
GONE_ATTEMPTS = 4


class Pace(NamedTuple):
    """How fast a backlog is sent: bytes a second, and how much may go at once."""

    rate: float = 4 << 20
    burst: float = 1 << 20


class Shipper:
    """Keeps one stream open. ``hello`` makes the first message of each stream.

    ``on_stop`` is called when the collector says that the job is over, ``on_request`` for events or stacks it asks for.
    """

    def __init__(
        self,
        target: Address,
        spool: Spool,
        counts: AgentCounts,
        hello: Callable[[], wire.Hello],
        on_stop: Callable[[], None],
        on_request: Callable[[wire.EventTraceRequest], None],
        *,
        client: Client = Client(),  # noqa: B008 - immutable
        pace: Pace = Pace(),  # noqa: B008 - immutable
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.target = target
        self.held_back, self.batch_ns, self.short_columns = False, 0, False
        self._spool = spool
        self._counts = counts
        counts.connected, counts.connects = False, 0
        self._hello = hello
        self._on_stop = on_stop
        self._on_request = on_request
        self._client = client
        self._pace = pace
        self._monotonic_ns = monotonic_ns
        self.jitter = jitter
        self._wake = asyncio.Event()
        self._leaving: str | None = None
        self._goodbye_said = False
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._at_work = asyncio.Event()
        self._outbox: list[bytes] = []
        self._round_trips = RoundTrips(counts, self._send_soon, monotonic_ns)
        self._heard_ns = 0
        self._said = False
        self._it_goes = False

    async def at_work(self, timeout_s: float) -> None:
        """Wait until the collector's clock is measured, with which a stream begins; no longer than that."""
        with contextlib.suppress(asyncio.TimeoutError):
            await retry.within(timeout_s, self._at_work.wait())

    def notify(self) -> None:
        """There is something new in the spool."""
        self._wake.set()

    async def finish(self, reason: str, timeout_s: float) -> bool:
        """Say Goodbye after the last batch; true when everything was acknowledged within ``timeout_s``."""
        self._leaving = reason
        self._wake.set()
        try:
            await retry.within(timeout_s, self._settled.wait())
            await retry.within(LAST_WORD_S, self._ended.wait())
        except asyncio.TimeoutError:
            return self._settled.is_set()
        return True

    async def run(self) -> None:
        """Connect, send, reconnect; until cancelled, or all is delivered and Goodbye said."""
        attempt = 0
        while not self._settled.is_set():
            started_ns = self._monotonic_ns()
            try:
                await self._stream()
            except (OSError, asyncio.TimeoutError) as error:
                self._say(error)
            except Exception:
                log.exception("unexpected error of the stream; trying again")
            finally:
                self._counts.connected = False
                self.short_columns = False  # the next collector may be older, or a relay to an older one
            attempt = 0 if self._monotonic_ns() - started_ns > 10e9 else attempt + 1
            attempt = max(attempt, GONE_ATTEMPTS if self._it_goes else 0)
            await asyncio.sleep(self.delay_s(attempt))

    def delay_s(self, attempt: int) -> float:
        """Pause before the next attempt, s."""
        return retry.pause_s(attempt, LONGEST_PAUSE_S, self.jitter())

    async def _stream(self) -> None:
        async with connect(self.target.host, self.target.port, SILENCE_S, self._client) as call:
            await call.write(wire.AgentMessage(hello=self._hello()).SerializeToString())
            first = await retry.within(SILENCE_S, call.read())
            if first is None or first.WhichOneof("body") != "welcome":
                raise ConnectionError("it is not a hindmost collector")
            self._opened(first.welcome)
            await retry.together(self._receive(call), self._send(call), self._beat())

    def _opened(self, welcome: wire.Welcome) -> None:
        self._spool.connected(welcome.durable_sequence, welcome.received_sequence)
        self._counts.connected = True
        self._counts.connects = (self._counts.connects or 0) + 1
        if self._said:
            self._said = False
            log.info("collector %s answers again: sending the spooled data", self.target)
        self._heard_ns = self._monotonic_ns()
        self._it_goes = False
        self.held_back, self.batch_ns = False, 0  # this collector says itself what it wants
        self.short_columns = welcome.short_columns
        self._outbox = []
        self._round_trips.begin(with_batches=welcome.clock_with_batches)

    async def _send(self, call: Call) -> None:
        budget, then_ns = self._pace.burst, self._monotonic_ns()
        while True:
            while self._outbox:
                await call.write(self._outbox.pop(0))
            outgoing = None if self._window_full() else self._spool.next()
            if outgoing is None:
                if self._leaving is not None and not self._window_full():
                    await self._say_goodbye(call)
                if self._settled.is_set():
                    await call.done_writing()
                elif self._it_goes and self._leaving is None and not self._spool.on_the_way():
                    await self._let_go(call)
                self._wake.clear()
                await self._wake.wait()
                continue
            await call.write(
                outgoing.message + self._round_trips.piggybacked() if outgoing.sequence else outgoing.message
            )
            now_ns = self._monotonic_ns()
            budget = min(budget + (now_ns - then_ns) / 1e9 * self._pace.rate, self._pace.burst) - len(outgoing.message)
            then_ns = now_ns
            if budget < 0:
                await asyncio.sleep(-budget / self._pace.rate)

    async def _say_goodbye(self, call: Call) -> None:
        await call.write(wire.AgentMessage(goodbye=wire.Goodbye(reason=self._leaving or "")).SerializeToString())
        self._leaving = None
        self._goodbye_said = True
        self._check_settled()

    async def _let_go(self, call: Call) -> None:
        """End a stream whose collector goes, and that has all there is so far; the next one gets the rest."""
        goodbye = wire.Goodbye(reason="the collector stops")
        await call.write(wire.AgentMessage(goodbye=goodbye).SerializeToString())
        await call.done_writing()
        await asyncio.sleep(LAST_WORD_S)
        raise ConnectionError("it is stopping")

    def _window_full(self) -> bool:
        return self._spool.on_the_way() >= WINDOW

    async def _receive(self, call: Call) -> None:
        while (message := await call.read()) is not None:
            self._heard_ns = self._monotonic_ns()
            kind = message.WhichOneof("body")
            if kind == "ack":
                self._acknowledged(message.ack.durable_sequence)
            elif kind == "clock":
                if self._round_trips.answered(message.clock):
                    self._at_work.set()
                if message.clock.durable_sequence:
                    self._acknowledged(message.clock.durable_sequence)
            elif kind == "need":
                self._outbox += (found for ref in message.need.refs if (found := self._spool.definition(ref)))
                self._wake.set()
            elif kind == "event_trace_request":
                self._on_request(message.event_trace_request)
            elif kind == "throttle":
                self.held_back, self.batch_ns = message.throttle.metrics, message.throttle.batch_ns
            elif kind == "stop":
                self._it_goes = message.stop.reason != retry.JOB_OVER
                self._wake.set()
                if not self._it_goes:
                    self._on_stop()
        if self._settled.is_set():
            self._ended.set()
        raise ConnectionError("it ended the stream")

    def _acknowledged(self, durable: int) -> None:
        self._spool.acknowledge(durable)
        self._check_settled()
        self._wake.set()

    def _check_settled(self) -> None:
        if self._goodbye_said and not self._spool.ledger.pending:
            self._settled.set()

    async def _beat(self) -> None:
        """Ask for the time every few seconds. Raises ``ConnectionError`` without an answer."""
        while True:
            await asyncio.sleep(CLOCK_PERIOD_S)
            if self._monotonic_ns() - self._heard_ns > SILENCE_S * 1e9:
                raise ConnectionError(f"no answer for {SILENCE_S:.0f} s")
            self._round_trips.due()

    def _send_soon(self, message: bytes) -> None:
        self._outbox.append(message)
        self._wake.set()

    def _say(self, error: Exception) -> None:
        """One line when a collector is lost or was never there, not one for each attempt, and none once all is said."""
        if not self._said and not self._settled.is_set():
            self._said = True
            what = retry.reason(error)
            log.warning("collector %s does not answer (%s): spooling until it does", self.target, what)
