"""Agents' streams: one each, or many in a relay's; every batch is taken once, and acknowledged when it is durable."""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
from hindmost.credentials import Grant
from hindmost.errors import HindmostError
from hindmost_proto import retry
from hindmost_proto import telemetry_pb2 as wire

from hindmost_collector.ingest.clock import JobClock, NodeClock
from hindmost_collector.ingest.connections import (
    HELLO_FIRST,
    NO_RELAY,
    UNKNOWN,
    ConnectionLog,
    RejectedBatches,
    RejectedCalls,
    served,
)
from hindmost_collector.ingest.decode import Decoder, Inbox, Parking, Samples, references, samples
from hindmost_collector.ingest.definitions import IDENTITY_LIMIT, Definitions, check_own, foreign
from hindmost_collector.ingest.row_builder import Malformed
from hindmost_collector.ingest.session import PROTOCOL, AgentSession, Outbox
from hindmost_collector.serve.credentials import Gate
from hindmost_collector.store.recorder import Durable

Write = Callable[[wire.CollectorMessage], Awaitable[None]]

log = logging.getLogger(__name__)

#: Larger messages are refused by gRPC before they are built; an agent's batch is a few kB.
MESSAGE_LIMIT = 16 << 20
#: Agents that are known at one time, with a stream or without.
AGENT_LIMIT = 1 << 16
#: After the last acknowledgement: for the agent to have read it, and to end its side of the stream.
LAST_WORD_S = 1.0
#: So many streams of one identity that replace each other within so long are two agents, not one that reconnects.
CONTESTED, CONTEST_NS = 5, 60_000_000_000


async def last_word(requests: AsyncIterator[Any]) -> None:
    """Let an agent end its side first: a stream that its server ends is reset, and an ack on the way may go with it."""
    with contextlib.suppress(asyncio.TimeoutError, grpc.RpcError):
        await retry.within(LAST_WORD_S, _ended(requests))


async def _ended(requests: AsyncIterator[Any]) -> None:
    async for _ in requests:
        pass


class StoreAway(HindmostError):  # noqa: N818 - a state of the store, said as an adjective
    """An agent cannot be greeted now: to be tried again."""


class Ingest:
    """The Telemetry service. Its messages are those of :mod:`hindmost_collector.ingest.packed_fields`.

    Args:
        durable: gives identity to the last durable sequence, as the store knows it now; called in a thread.
        parking: where batches wait for their definitions.
        ack_ns: how long an acknowledgement may wait for another message to go with.
        gate: who may connect; everyone without.
    """

    def __init__(
        self,
        clock: JobClock,
        definitions: Definitions,
        decoder: Decoder,
        durable: Callable[[], Mapping[str, int]],
        parking: Parking | None = None,
        ack_ns: int = 0,
        gate: Gate | None = None,
    ) -> None:
        self.clock, self.definitions, self.decoder = clock, definitions, decoder
        self.again = Decoder(definitions, decoder.words)  # for what the live windows have had
        self._durable = Durable(durable)
        self.parking = parking or Parking()
        self.inbox = Inbox(self._batch)
        self._ack_ns, self._gate = ack_ns, gate
        self.agents: dict[str, AgentSession] = {}
        self._connected = 0
        self.counts: Counter[str] = Counter()
        self.shed_metrics, self.batch_ns = False, 0
        self.connection_log, self.rejected_calls = ConnectionLog(), RejectedCalls()
        self.stopping: str | None = None
        self._rejected_batches = RejectedBatches(self.counts)
        self._store_away = False
        self.reading = asyncio.Event()
        self.reading.set()

    def pause(self) -> None:
        """Stop reading from all streams: gRPC's flow control makes the agents wait, and spool."""
        self.reading.clear()

    def resume(self) -> None:
        """Read again."""
        self.reading.set()

    def handler(self) -> grpc.GenericRpcHandler:
        """What a gRPC server serves."""
        write = wire.CollectorMessage.SerializeToString
        return served(self.rejected_calls.guarded(self.stream), self.inbox.parsed, write)

    async def stream(self, requests: AsyncIterator[wire.AgentMessage], context: Any) -> None:
        """Serve one agent until it says Goodbye and has its last ack, or breaks off; or a relay with many."""
        first = await self.rejected_calls.first(requests, context)
        if first is None:  # it broke off before its first message
            return
        refusal = self._refusal(first, self._gate.of_call(context) if self._gate else Grant())
        if refusal is not None:
            await self.rejected_calls.refuse(refusal[0], context, *refusal[1:])
            return
        if first.WhichOneof("body") == "relayed":
            await RelayStream(self, context.write).serve(first, requests)
            return
        try:
            agent, outbox = await self.greet(first.hello)
        except StoreAway as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            return
        pump = asyncio.create_task(outbox.pump(context.write))
        serve = asyncio.create_task(self._serve(agent, outbox, requests))
        try:  # a stream without its pump would take batches and never acknowledge one
            await asyncio.wait({pump, serve}, return_when=asyncio.FIRST_COMPLETED)
            if serve.done():
                serve.result()
                await pump
            pump.result()
            if agent.departed and not outbox.reason:
                await last_word(requests)
        finally:
            await retry.cancel(pump, serve)
            self.part(agent, outbox)
        if outbox.reason:
            await context.abort(grpc.StatusCode.ABORTED, outbox.reason)

    def _refusal(self, first: wire.AgentMessage, grant: Grant | None) -> tuple[str, grpc.StatusCode, str] | None:
        """Why a stream that begins so is not served; else what its token and certificate permit is noted in it."""
        relays = first.WhichOneof("body") == "relayed"
        code = grpc.StatusCode
        if grant is None:
            return "credentials", code.UNAUTHENTICATED, UNKNOWN
        if relays:
            refused = self._gate is not None and not self._gate.relays_through(grant)
            return ("credentials", code.PERMISSION_DENIED, NO_RELAY) if refused else None
        if first.WhichOneof("body") != "hello":
            return "hello", code.INVALID_ARGUMENT, HELLO_FIRST
        if not_its := self._gate.refuses(grant, first.hello) if self._gate else "":
            return "credentials", code.PERMISSION_DENIED, not_its
        first.hello.only_job, first.hello.only_node = grant.job or "", grant.nodes is not None
        refusal = self.refused(first.hello) or self.taken(first.hello)
        return ("refused", code.FAILED_PRECONDITION, refusal) if refusal else None

    def taken(self, hello: wire.Hello) -> str:
        """Why an agent may not have its identity; empty where it may."""
        known = self.agents.get(f"{hello.agent_id}@{hello.node}")
        if known is None and len(self.agents) >= AGENT_LIMIT:
            return f"{AGENT_LIMIT} agents are known here already"
        if known is not None and hello.only_job and known.job != hello.only_job:
            return "another job's agent has this identity"
        return ""

    @staticmethod
    def refused(hello: wire.Hello) -> str:
        """Why an agent is not served; empty when it is."""
        if hello.protocol != PROTOCOL:
            return f"protocol {hello.protocol} is not spoken here, only {PROTOCOL}: use one hindmost version"
        longest = max(map(len, (hello.agent_id, hello.node, hello.job_id, hello.boot_id)))
        if longest > IDENTITY_LIMIT:
            return f"Hello names its agent, node, job or boot in {longest} characters: at most {IDENTITY_LIMIT}"
        return ""

    async def greet(self, hello: wire.Hello, *, direct: bool = True) -> tuple[AgentSession, Outbox]:
        """The agent that greets, and what to send it on this stream; an older stream of it ends.

        ``direct``: the agent itself connected, not through a relay.

        Raises StoreAway when the agent is new and the store cannot say what of its data is durable.
        """
        identity, now = f"{hello.agent_id}@{hello.node}", self.clock.now()
        durable = 0 if identity in self.agents else await self._known_durable(identity)
        self.inbox.empty()  # data reported as received has been taken
        agent = self.agents.get(identity)
        if agent is None:
            clock = NodeClock(hello.monotonic_ns, now)
            agent = AgentSession(identity, hello.node, hello.job_id, hello.boot_id, clock, durable, durable)
            self.agents[identity] = agent
        elif agent.boot_id != hello.boot_id:  # another boot: CLOCK_MONOTONIC began anew
            agent.boot_id, agent.clock = hello.boot_id, NodeClock(hello.monotonic_ns, now)
        if agent.outbox is not None:
            self.counts["replaced_streams"] += 1
            agent.outbox.close("another stream with this agent's identity replaced this one")
            self._contest(agent, now)
        else:
            self._connected += 1
            self.connection_log.joined(identity)
        agent.only_job, agent.only_node = hello.only_job, hello.only_node
        outbox = Outbox(self.clock, self._ack_ns)
        agent.outbox, agent.departed, agent.last_heard_ns = outbox, False, now
        self.parking.clear(identity)
        outbox.welcome(agent.durable, agent.received, direct=direct)
        if self.shed_metrics or self.batch_ns:
            outbox.throttle(self.shed_metrics, self.batch_ns)
        if self.stopping is not None:
            outbox.stop(self.stopping)
        self.counts["streams"] += 1
        return agent, outbox

    def part(self, agent: AgentSession, outbox: Outbox) -> None:
        """A stream has ended; what waits of it comes again on the agent's next one."""
        self.inbox.empty()
        if agent.outbox is outbox:
            agent.outbox = None
            self._connected -= 1
            self.connection_log.left(agent.identity, said_goodbye=agent.departed)
            self.parking.clear(agent.identity)

    async def _known_durable(self, identity: str) -> int:
        try:
            known = await self._durable.of(identity)
        except Exception as error:  # whatever the store's trouble is, it ends this one stream and no other
            if not self._store_away:
                log.warning("new agents are refused: the store does not answer: %s", error)
            self._store_away = True
            raise StoreAway(f"the store cannot say what of this agent is durable; try again: {error}") from error
        self._store_away = False
        return known

    def _contest(self, agent: AgentSession, now: int) -> None:
        """Say, once, when two agents take the stream from each other: they share a spool's copy, and its numbers."""
        agent.replaced_ns.append(now)
        if len(agent.replaced_ns) == CONTESTED and now - agent.replaced_ns[0] < CONTEST_NS and not agent.contested:
            agent.contested = True
            log.warning(
                "two agents on node %s have the identity %s: only the first copy of each batch counts; remove"
                " the copied spool of one of them",
                agent.node,
                agent.identity,
            )

    async def _serve(self, agent: AgentSession, outbox: Outbox, requests: AsyncIterator[wire.AgentMessage]) -> None:
        async for message in requests:
            if outbox.closed or not await self.handle(agent, outbox, message):
                return
            del message  # the next one comes after seconds

    async def handle(self, agent: AgentSession, outbox: Outbox, message: wire.AgentMessage) -> bool:
        """Take one message of a stream; False after the last."""
        now = agent.last_heard_ns = self.clock.now()
        kind = message.WhichOneof("body")
        if kind == "batch":
            if message.asked_ns:
                outbox.clock_reply(message.asked_ns, now, with_ack=True)
            if message.HasField("measured"):
                self._measured(agent, message.measured, now)
            self.inbox.add(agent, outbox, message.batch, now)
            if not self.reading.is_set():
                await self.reading.wait()
        elif kind == "clock":
            if message.clock.returned_ns:
                self._measured(agent, message.clock, now)
            else:
                outbox.clock_reply(message.clock.sent_ns, now)
        elif kind == "definitions":
            self._define(agent, message.definitions)
        elif kind == "goodbye":
            self.inbox.empty()
            agent.departed = True
            self._unpark(agent, force=True)
            await self._last_ack(agent, outbox)
            return False
        return True

    async def _last_ack(self, agent: AgentSession, outbox: Outbox) -> None:
        """Keep the stream until everything received is durable: an agent leaves on its last ack."""
        while agent.durable < agent.received and not outbox.closed:
            await asyncio.sleep(0.02)
        outbox.ack(agent.durable)
        outbox.close()

    def _measured(self, agent: AgentSession, sample: wire.ClockSample, now: int) -> None:
        if not agent.clock.add(sample.sent_ns, sample.received_ns, sample.replied_ns, sample.returned_ns):
            self.counts["impossible_clock_samples"] += 1
            return
        clock = agent.clock
        self.decoder.job(agent.job).clocks.append(
            (
                agent.node,
                agent.boot_id,
                now,
                clock.offset(sample.returned_ns),
                clock.drift_ppb,
                clock.uncertainty_ns,
                clock.round_trip_ns,
            )
        )

    def _define(self, agent: AgentSession, definitions: wire.Definitions) -> None:
        try:
            if agent.restricted:
                check_own(definitions, agent.only_job, agent.node if agent.only_node or agent.only_job else "")
                agent.define(schema.ref for schema in definitions.schemas)
            self.definitions.learn(definitions, self.decoder.job, agent.clock)
        except Malformed as error:
            self._rejected_batches.malformed(agent, [str(error)])
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._rejected_batches.unforeseen(agent, "definitions", error)
        self._unpark(agent)

    def _batch(self, agent: AgentSession, outbox: Outbox, batch: wire.Batch, now: int) -> None:
        self.counts["batches"] += 1
        blocks, missing = self._looked_into(agent, batch)
        if not missing and self.parking.first(agent.identity) is None:
            self._take(agent, batch, blocks)
            return
        if missing:
            outbox.need(missing)
        if not self.parking.add(agent.identity, batch, now):
            self.parking.clear(agent.identity)
            outbox.close("too much waits for definitions that were asked for: send it again")
            return
        self._unpark(agent, force=self.parking.overdue(agent.identity, now))

    def _looked_into(self, agent: AgentSession, batch: wire.Batch) -> tuple[Sequence[Samples], list[int]]:
        """``(its samples, what has to be asked for before it is taken)``."""
        try:
            blocks = samples(batch)
            return blocks, self.definitions.missing(references(batch, blocks, self.definitions))
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._rejected_batches.unforeseen(agent, f"batch {batch.sequence}", error)
            return (), []

    def _unpark(self, agent: AgentSession, *, force: bool = False) -> None:
        """Take the batches whose definitions came, in order; with ``force`` all, their unknown blocks left out."""
        while (batch := self.parking.first(agent.identity)) is not None:
            blocks, missing = self._looked_into(agent, batch)
            if missing and not force:
                return
            self.parking.release(agent.identity)
            self._take(agent, batch, blocks)

    def _take(self, agent: AgentSession, batch: wire.Batch, blocks: Sequence[Samples]) -> None:
        if batch.sequence == 0:
            self._rejected_batches.malformed(agent, ["a batch without a sequence number"])
            return
        if not agent.admit(batch.sequence):
            self.counts["duplicate_batches"] += 1
            return
        if self.shed_metrics:
            self.counts["shed_samples"] += sum(len(values) // 8 for _, _, values in blocks)
            blocks = ()
        decoder = self.decoder if batch.sequence > agent.shown else self.again
        try:
            if agent.restricted and (what := foreign(batch, blocks, self.definitions, agent)):
                self._rejected_batches.malformed(agent, [what])
                return
            complaints = decoder.add(batch, agent.node, agent.job, agent.clock, blocks)
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._rejected_batches.unforeseen(agent, f"batch {batch.sequence}", error)
            return
        if complaints:
            self._rejected_batches.malformed(agent, complaints)

    def received(self) -> dict[str, int]:
        """Identity to the last sequence taken, of agents with something not yet durable."""
        return {agent.identity: agent.received for agent in self.agents.values() if agent.received > agent.durable}

    def acknowledge(self, sequences: Mapping[str, int]) -> None:
        """Acknowledge to the agents that all data up to these sequences is durable, and earlier data not yet
        acknowledged."""
        for identity, sequence in sequences.items():
            if agent := self.agents.get(identity):
                agent.durable = max(agent.durable, sequence)
        for agent in self.agents.values():
            if agent.outbox and agent.durable > agent.outbox.acked:
                agent.outbox.ack(agent.durable)

    def rewind(self, reason: str) -> None:
        """Have all that was received and is not durable sent again, each agent on a new stream."""
        for agent in self.agents.values():
            if agent.received > agent.durable:
                agent.rewind()
                self.parking.clear(agent.identity)
                if agent.outbox:
                    agent.outbox.close(reason)

    def prune(self, older_than_ns: int) -> None:
        """Forget agents without a stream that were last heard of before then: all they sent is durable."""
        for identity, agent in list(self.agents.items()):
            if agent.outbox is None and agent.durable >= agent.received and agent.last_heard_ns < older_than_ns:
                del self.agents[identity]
                self._rejected_batches.forget(identity)

    def ask(self, job: str, question: wire.EventTraceRequest) -> None:
        """Send a question to the agents that serve a job: its own, and those that serve a whole node."""
        for agent in self.agents.values():
            if agent.outbox and agent.job in {job, ""}:
                agent.outbox.request(question)

    def stop(self, reason: str) -> None:
        """Ask every agent, and those still to come, to flush and leave."""
        self.stopping = reason
        for agent in self.agents.values():
            if agent.outbox:
                agent.outbox.stop(reason)

    def throttle(self, shed_metrics: bool, batch_ns: int) -> None:
        """Tell every agent, and those still to come, whether node metrics are shed, and how often to make a batch."""
        if (shed_metrics, batch_ns) == (self.shed_metrics, self.batch_ns):
            return
        self.shed_metrics, self.batch_ns = shed_metrics, batch_ns
        for agent in self.agents.values():
            if agent.outbox:
                agent.outbox.throttle(shed_metrics, batch_ns)

    def connected(self) -> int:
        return self._connected


#: Messages that wait for a relay that does not read, at most.
_WAITING = 4096
#: Messages, and bytes of them, that an agent may send before it is greeted; one that waits for its Welcome sends none.
_EARLY, _EARLY_BYTES = 64, 1 << 20


class _Carried(NamedTuple):
    """One agent's stream within the relay's."""

    agent: AgentSession
    outbox: Outbox
    pump: asyncio.Task[None]


class RelayStream:
    """Serves a relay until it breaks off."""

    def __init__(self, ingest: Ingest, write: Write) -> None:
        self._ingest, self._write = ingest, write
        self._carried: dict[int, _Carried] = {}
        self._out: list[wire.ToAgent] = []
        self._wake = asyncio.Event()
        self._greeting: dict[int, deque[wire.AgentMessage]] = {}  # what came of streams whose agent is not greeted yet
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, first: wire.AgentMessage, requests: AsyncIterator[wire.AgentMessage]) -> None:
        """Take all messages in and answer all agents. All agents' streams end with this one."""
        self._ingest.counts["relay_streams"] += 1
        await self._write(wire.CollectorMessage(returned=wire.Returned()))
        sender = asyncio.create_task(self._send())
        try:
            await self._take(first.relayed)
            async for message in requests:
                await self._take(message.relayed)
                del message
        finally:
            self._greeting.clear()
            for number in list(self._carried):
                self._drop(number)
            await retry.cancel(sender, *self._tasks)

    async def _take(self, relayed: wire.Relayed) -> None:
        for message in relayed.messages:
            carried = self._carried.get(message.stream)
            if message.ended:
                self._drop(message.stream)
            elif message.stream in self._greeting:
                self._early(message.stream, message.message)
            elif carried is None:
                self._open(message.stream, message.message)
            else:
                await self._handle(carried, message.message)

    async def _handle(self, carried: _Carried, message: wire.AgentMessage) -> None:
        if carried.outbox.closed:
            return
        if message.WhichOneof("body") == "goodbye":  # waits for what is durable: not here, where all pass
            self._spawn(self._farewell(carried, message))
        else:
            await self._ingest.handle(carried.agent, carried.outbox, message)

    def _open(self, number: int, message: wire.AgentMessage) -> None:
        if message.WhichOneof("body") != "hello":
            return  # of a stream that has ended here, sent before the relay knew
        # the relay has seen what the agent may do, and says it in there
        refusal = self._ingest.refused(message.hello) or self._ingest.taken(message.hello)
        if refusal:
            self._end(number, refusal)
            return
        early = self._greeting[number] = deque()
        self._spawn(self._greet(number, message.hello, early))

    def _early(self, number: int, message: wire.AgentMessage) -> None:
        early = self._greeting[number]
        early.append(message)
        if len(early) > _EARLY or sum(one.ByteSize() for one in early) > _EARLY_BYTES:
            self._drop(number)
            self._end(number, "too many messages before the Welcome")

    async def _greet(self, number: int, hello: wire.Hello, early: deque[wire.AgentMessage]) -> None:
        """Greet one agent while the others' messages pass; what it sent meanwhile is taken first."""
        try:
            agent, outbox = await self._ingest.greet(hello, direct=False)
        except HindmostError as error:
            if self._greeting.get(number) is early:
                del self._greeting[number]
                self._end(number, str(error))
            return
        if self._greeting.get(number) is not early:  # it broke off meanwhile
            self._ingest.part(agent, outbox)
            return
        carried = self._carried[number] = _Carried(agent, outbox, asyncio.create_task(self._pump(number, outbox)))
        while early and self._greeting.get(number) is early:
            await self._handle(carried, early.popleft())
        if self._greeting.get(number) is early:
            del self._greeting[number]

    async def _pump(self, number: int, outbox: Outbox) -> None:
        async def write(message: wire.CollectorMessage) -> None:
            while len(self._out) > _WAITING:
                await asyncio.sleep(0.05)
            self._out.append(wire.ToAgent(stream=number, message=message))
            self._wake.set()

        await outbox.pump(write)
        self._end(number, outbox.reason or "")
        carried = self._carried.pop(number, None)
        if carried:
            self._ingest.part(carried.agent, outbox)

    async def _farewell(self, carried: _Carried, message: wire.AgentMessage) -> None:
        await self._ingest.handle(carried.agent, carried.outbox, message)
        await asyncio.wait({carried.pump})

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, number: int, reason: str) -> None:
        self._out.append(wire.ToAgent(stream=number, end=wire.End(reason=reason)))
        self._wake.set()

    def _drop(self, number: int) -> None:
        """An agent broke off, or the relay did."""
        self._greeting.pop(number, None)
        carried = self._carried.pop(number, None)
        if carried is None:
            return
        carried.pump.cancel()
        self._ingest.part(carried.agent, carried.outbox)

    async def _send(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(0)  # an ack to one agent is an ack to many: let all of them into one message
            self._wake.clear()
            out, self._out = self._out, []
            await self._write(wire.CollectorMessage(returned=wire.Returned(messages=out)))
