"""One agent's stream: what waits to be sent, the period of its batches, and the agent that outlives its streams."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from hindmost import __version__
from hindmost_proto import telemetry_pb2 as wire

from hindmost_collector.ingest.clock import JobClock, NodeClock

#: Nanoseconds of a second, the unit of requested periods.
NS = 1_000_000_000
#: The agents' default period, and the longest one requested of them, s: a verdict must come within seconds.
USUAL_S, MOST_S = 2, 4
#: Above this many batches a second, agents are asked for a longer period; for a shorter one below this share of it.
BATCHES_A_SECOND, FEWER = 256, 0.8
#: Version of the stream's messages, which agent and collector must share.
PROTOCOL = 1
#: Event-trace requests that wait to be sent; the oldest gives way.
_REQUESTS = 16
#: So many batches are acknowledged at once: of a backlog only some hundreds are on the way.
_ACK_BATCHES = 64
#: Schemas, and columns of ranks, of one agent that are remembered: each process and device has one of its own.
_SCHEMAS = 1 << 16
#: Gaps in an agent's numbers that are remembered, for batches that come late; the oldest go.
_GAPS = 256


class Outbox:
    """What a stream has yet to send. Bounded: an ack replaces the one before it, so a slow reader costs no memory.

    An ack wakes the agent, so it waits ``ack_ns`` for something else to be said with: agents ask for the time.
    """

    def __init__(self, clock: JobClock, ack_ns: int = 0) -> None:
        self._clock = clock
        self._ack_ns = ack_ns
        self._ready = asyncio.Event()
        self._first: wire.CollectorMessage | None = None
        self._ack = -1
        #: What was last acknowledged, and when.
        self.acked, self._acked_ns = -1, 0
        self._clock_reply: tuple[int, int, bool] | None = None
        self._needs: dict[int, None] = {}
        self._requests: deque[wire.EventTraceRequest] = deque(maxlen=_REQUESTS)
        self._throttle: wire.Throttle | None = None
        self._stop: str | None = None
        self.closed = False
        self.reason: str | None = None

    def welcome(self, durable: int, received: int, *, direct: bool = True) -> None:
        """Greet: the agent replays from the sequence after ``durable``; up to ``received`` may yet become durable.

        One that is not there ``direct`` asks for the time apart from its batches, which its relay keeps for a while.
        """
        message = wire.Welcome(
            protocol=PROTOCOL,
            durable_sequence=durable,
            received_sequence=received,
            version=__version__,
            clock_with_batches=direct,
            short_columns=True,
        )
        self._first = wire.CollectorMessage(welcome=message)
        self.acked = durable
        self._ready.set()

    def ack(self, sequence: int) -> None:
        """Everything up to ``sequence`` is durable: said with the next message, or when there is none for long."""
        self._ack = max(self._ack, sequence)
        if self._ack >= self.acked + _ACK_BATCHES or self._clock.now() - self._acked_ns >= self._ack_ns:
            self._ready.set()

    def clock_reply(self, sent_ns: int, received_ns: int, *, with_ack: bool = False) -> None:
        """Answer a clock request; the reply time is filled in when it leaves.

        ``with_ack``: an ack may be part of the answer, as an agent that asked with a batch expects."""
        self._clock_reply = (sent_ns, received_ns, with_ack)
        self._ready.set()

    def need(self, refs: list[int]) -> None:
        self._needs.update(dict.fromkeys(refs))
        self._ready.set()

    def request(self, request: wire.EventTraceRequest) -> None:
        """Ask for raw events; the oldest question gives way when too many wait."""
        self._requests.append(request)
        self._ready.set()

    def throttle(self, metrics: bool, batch_ns: int) -> None:
        """Ask to hold back node metrics, or to send them again; and how often to make a batch, 0 for as it likes."""
        self._throttle = wire.Throttle(metrics=metrics, batch_ns=batch_ns)
        self._ready.set()

    def stop(self, reason: str) -> None:
        """Tell the agent that the job is over, or that the collector goes, by the reason."""
        self._stop = reason
        self._ready.set()

    def close(self, reason: str | None = None) -> None:
        """Let ``pump`` return once everything is sent. ``reason``: why the stream is broken off, where it is."""
        self.closed = True
        self.reason = self.reason or reason
        self._ready.set()

    async def pump(self, write: Callable[[wire.CollectorMessage], Awaitable[None]]) -> None:
        """Send what waits, until closed and empty."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            for message in self.drain():
                await write(message)
            if self.closed and not self._ready.is_set():
                return

    def drain(self) -> list[wire.CollectorMessage]:
        messages = [self._first] if self._first else []
        self._first = None
        if self._clock_reply:
            sent, received, with_ack = self._clock_reply
            self._clock_reply = None
            reply = wire.ClockReply(sent_ns=sent, received_ns=received, replied_ns=self._clock.now())
            if with_ack and self._ack > 0:
                reply.durable_sequence = self._taken_ack()
            messages.append(wire.CollectorMessage(clock=reply))
        if self._ack >= 0:
            messages.append(wire.CollectorMessage(ack=wire.Ack(durable_sequence=self._taken_ack())))
        if self._needs:
            messages.append(wire.CollectorMessage(need=wire.Need(refs=list(self._needs))))
            self._needs.clear()
        while self._requests:
            messages.append(wire.CollectorMessage(event_trace_request=self._requests.popleft()))
        if self._throttle is not None:
            messages.append(wire.CollectorMessage(throttle=self._throttle))
            self._throttle = None
        if self._stop is not None:
            messages.append(wire.CollectorMessage(stop=wire.Stop(reason=self._stop)))
            self._stop = None
        return messages

    def _taken_ack(self) -> int:
        """The ack that waits, which is being sent."""
        self.acked, self._acked_ns, self._ack = self._ack, self._clock.now(), -1
        return self.acked


@dataclass
class AgentSession:
    """One agent across its streams. Sequence numbers belong to ``identity``.

    ``durable <= received``; what was ``shown`` to the live windows before a ``rewind`` is not shown to them again.
    """

    identity: str
    node: str
    job: str
    boot_id: str
    clock: NodeClock
    received: int
    durable: int
    shown: int = 0
    outbox: Outbox | None = None
    departed: bool = False
    last_heard_ns: int = 0
    skipped: int = 0
    contested: bool = False
    #: Its token is of this job, its certificate of its node: it may define and send nothing else.
    only_job: str = ""
    only_node: bool = False
    #: Schemas that it defined itself, where it is restricted.
    schemas: set[int] = field(default_factory=set)
    #: Ranks, and columns of them, that are known to be its own.
    owned: set[int | bytes] = field(default_factory=set)
    replaced_ns: deque[int] = field(default_factory=lambda: deque(maxlen=5))
    _gaps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def restricted(self) -> bool:
        """Whether it may not send just anything."""
        return bool(self.only_job) or self.only_node

    def define(self, schemas: Iterable[int]) -> None:
        """Note which it defined: bounded, as it may send samples of these alone, and others may fill memory."""
        if len(self.schemas) >= _SCHEMAS:
            self.schemas.clear()
        self.schemas.update(schemas)

    def claim(self, ranks: int | bytes) -> None:
        if len(self.owned) >= _SCHEMAS:
            self.owned.clear()
        self.owned.add(ranks)

    def admit(self, sequence: int) -> bool:
        """Whether a batch is new. Numbers skipped by the sender are counted, and taken should they come after all."""
        if sequence > self.received:
            if sequence > self.received + 1 and self.received:
                self.skipped += sequence - self.received - 1
                self._gaps = [*self._gaps[-_GAPS:], (self.received + 1, sequence - 1)]
            self.received = sequence
            return True
        for index, (first, last) in enumerate(self._gaps):
            if first <= sequence <= last:
                rest = [(first, sequence - 1), (sequence + 1, last)]
                self._gaps[index : index + 1] = [one for one in rest if one[0] <= one[1]]
                self.skipped -= 1
                return True
        return False

    def rewind(self) -> None:
        """Forget what was received and is not durable: the agent sends it again."""
        self.shown = max(self.shown, self.received)
        self.skipped -= sum(last - first + 1 for first, last in self._gaps if first > self.durable)
        self._gaps = [gap for gap in self._gaps if gap[0] <= self.durable]
        self.received, self.departed = self.durable, False


def batch_ns(agents: int, asked_ns: int) -> int:
    """The period to request of ``agents``, of whom ``asked_ns`` is requested now; 0 for their default."""
    wanted = _period_s(agents)
    if wanted * NS < asked_ns:
        wanted = min(_period_s(agents / FEWER), asked_ns // NS)  # some come, some go: that is no reason to tell all
    return wanted * NS if wanted > USUAL_S else 0


def _period_s(agents: float) -> int:
    return min(max(-int(-agents // BATCHES_A_SECOND), USUAL_S), MOST_S)
