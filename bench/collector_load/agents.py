"""Simulated agents: the agent's own gRPC client, a connection each, and what the agent of a node of eight GPUs sends.

A batch holds what the agent's own ``Builder`` makes of as many ticks as the agent puts into one: two, a message every
two seconds, or as many as the collector asks for. Clock round trips and the ranks' states are sent as often as the
agent does. Nothing is read from a kernel, and no spool is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import sys
import time
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from hindmost.credentials import Client
from hindmost_agent.agent import FLUSH_MOST_NS, FLUSH_NS
from hindmost_agent.delivery import batch as packing
from hindmost_agent.delivery.stream import CLOCK_PERIOD_S, SILENCE_S, Call, CallError, RoundTrips, connect
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.jobs.rings import REPEAT_NS
from hindmost_agent.sampler import AgentCounts
from hindmost_proto import telemetry_pb2 as wire
from hindmost_proto import varint

from bench.collector_load import node

RANKS, COLLECTIVES = node.RANKS, 10
PHASES = ("input", "forward", "backward", "optimizer", "sync")
STEP_NS = NS = 1_000_000_000
#: Ticks, and steps of a rank, that one batch holds; and at most, where the collector asks for it.
TICKS, MOST_TICKS = FLUSH_NS // NS, FLUSH_MOST_NS // NS
STATE_TICKS = REPEAT_NS // NS
#: How long to wait for the last acknowledgement.
ACK_S = 60.0
#: Connections that are opened at one time.
_AT_ONCE = 64


def joined(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field: a message, a text, a packed column."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def packed(number: int, column: Any) -> bytes:
    """A packed column of 64-bit values."""
    return joined(number, np.ascontiguousarray(column).tobytes())


class Agent:
    """One simulated node.

    Batches are put together from columns, which costs a fraction of what the agent's ``Builder`` takes for its rows and
    gives the same bytes (tests/bench/test_collector_load.py).
    """

    def __init__(self, number: int, world: int) -> None:
        self.number = number
        self.sequence = self.acked = 0
        self.node = f"node{number:05}"
        builder = packing.Builder(self.node)
        layouts = [node.layout(source, number) for source in node.SOURCES]
        self._schemas = [packing.schema(layout) for layout in layouts]
        bounds = np.cumsum([0, *map(len, layouts)]).tolist()
        self._slices = [slice(*pair) for pair in itertools.pairwise(bounds)]
        self._values = _CHANGES[number % len(_CHANGES)] * 1000
        ranks = [
            RankProcess("bench", number * RANKS + local, world, local, 4000 + local, 77, "torch")
            for local in range(RANKS)
        ]
        self._refs = [builder.rank(rank) for rank in ranks]
        self._definitions = dict(builder.pack().definitions)
        self._definitions |= dict(self._schemas)

    def hello(self) -> bytes:
        """The first message."""
        hello = wire.Hello(protocol=1, agent_id=f"bench{self.number}", node=self.node, job_id="bench")
        hello.monotonic_ns, hello.realtime_ns = time.monotonic_ns(), time.time_ns()
        return wire.AgentMessage(hello=hello).SerializeToString()

    def messages(self, step: int, now: int, ticks: int = TICKS) -> list[bytes]:
        """A batch of the ``ticks`` seconds before ``now``, ns, the first of them number ``step``; before it the
        definitions that no batch before had."""
        metrics, refs = self._metrics(step, now, ticks)
        late = _LATE[(step // ticks + self.number) % len(_LATE), : RANKS * ticks]
        shape, ranks = _shape(ticks), packed(8, np.array(self._refs, np.uint64))
        content = metrics + joined(3, _steps(shape, step, now, late) + ranks + shape.step_rows)
        ranks = packed(14, np.array(self._refs, np.uint64))
        content += joined(4, _collectives(shape, step, now, late) + ranks + shape.call_rows)
        if (step + self.number) % STATE_TICKS < ticks:
            content += b"".join(
                joined(6, wire.RankState(rank=ref, time_ns=now, events_total=step * 16).SerializeToString())
                for ref in self._refs
            )
        self.sequence += 1
        new = [self._definitions.pop(ref) for ref in (*refs, *self._refs) if ref in self._definitions]
        return [*new, packing.message(self.sequence, [content])]

    def _metrics(self, step: int, now: int, ticks: int) -> tuple[bytes, list[int]]:
        """``(blocks, references)`` of what is due in these ticks: slow samplers have ticks of their own, as the
        agent's runner spreads them."""
        due: dict[int, list[tuple[int, bytes]]] = {}
        for tick in range(step, step + ticks):
            self._values += _CHANGES[(tick + self.number) % len(_CHANGES)]
            at = now - (step + ticks - 1 - tick) * NS
            for place, source in enumerate(node.SOURCES):
                if (self.sequence == 0 and tick == step) or (tick + place + self.number) % source.period == 0:
                    due.setdefault(place, []).append((at, self._values[self._slices[place]].tobytes()))
        blocks = (
            self._schemas[place][0].to_bytes(8, "little").join((b"\x09", b""))
            + packed(2, np.array([at for at, _ in held]))
            + joined(3, b"".join(values for _, values in held))
            for place, held in due.items()
        )
        return b"".join(joined(2, block) for block in blocks), [self._schemas[place][0] for place in due]


class _Shape(NamedTuple):
    """What is alike in all batches of so many ticks: rows of ranks, and columns that do not change."""

    ticks: int
    step: Any
    call: Any
    step_rows: bytes
    call_rows: bytes
    constant: tuple[bytes, bytes]


@functools.cache
def _shape(ticks: int) -> _Shape:
    calls = ticks * COLLECTIVES
    rows = RANKS * calls
    return _Shape(
        ticks,
        np.tile(np.arange(ticks), RANKS),
        np.tile(np.arange(calls), RANKS),
        joined(9, bytes([ticks] * RANKS)),
        joined(15, bytes([calls] * RANKS)),
        (
            joined(2, b"all_reduce") + joined(3, bytes(rows)) + packed(4, np.full(rows, 77, np.uint64)),
            packed(8, np.full(rows, 1 << 20)) + packed(11, np.full(rows, 70_000_000)),
        ),
    )


def _steps(shape: _Shape, step: int, now: int, late: Any) -> bytes:
    return (
        packed(2, shape.step + step)
        + packed(3, now + (shape.step - shape.ticks) * STEP_NS)
        + packed(4, STEP_NS + late[:, 0])
        + b"".join(
            joined(6, joined(1, name.encode()) + packed(2, 150_000_000 + late[:, place]))
            for place, name in enumerate(PHASES)
        )
        + joined(7, b"train")
    )


def _collectives(shape: _Shape, step: int, now: int, late: Any) -> bytes:
    head, tail = shape.constant
    start = now - shape.ticks * STEP_NS + shape.call * (STEP_NS // COLLECTIVES)
    took = 9_000_000 + late[:, len(PHASES) :].ravel()
    number = packed(5, shape.call + step * COLLECTIVES)
    return b"".join((head, number, packed(6, start), packed(7, took), tail))


#: What values grow by, and how late things are: made once, as making random numbers is not what is measured.
_CHANCE = np.random.default_rng(0)
_CHANGES = _CHANCE.integers(0, 100, (64, sum(map(node.width, node.SOURCES)))).astype(float)
_LATE = _CHANCE.integers(0, 2_000_000, (64, RANKS * MOST_TICKS, len(PHASES) + COLLECTIVES))

#: As the environment says, which is a job's.
CLIENT = Client.of({}, os.environ)


async def drive(agent: Agent, address: str, load: Load, began: float, gate: asyncio.Semaphore) -> None:
    """One agent's life. A real agent whose stream ends comes back; here that is a finding."""
    try:
        async with contextlib.AsyncExitStack() as stack:
            async with gate:
                host, _, port = address.rpartition(":")
                call = await stack.enter_async_context(connect(host, int(port), SILENCE_S, CLIENT))
                await call.write(agent.hello())
                first = await call.read()
            with_batches = first is not None and first.welcome.clock_with_batches
            await _live(agent, _Life(agent, call, with_batches=with_batches), load, began)
    except CallError as error:
        print(f"agent {agent.number}: its stream ended: {error}", file=sys.stderr)


async def _live(agent: Agent, life: _Life, load: Load, began: float) -> None:
    """A batch each flush, at an agent's own moment of it; then Goodbye, and the end after the last ack."""
    following = asyncio.create_task(life.follow())
    beside = [asyncio.create_task(life.beat()), asyncio.create_task(life.speak())]
    step, end = load.start(agent.number), load.lead + load.seconds
    offset = (agent.number * 0.6180339887) % 1.0 * TICKS
    try:
        while step < end:
            ticks = min(life.ticks, end - step)
            step += ticks
            await asyncio.sleep(max(began + step - TICKS + offset - time.monotonic(), 0))
            made = agent.messages(step - ticks, time.monotonic_ns(), ticks)
            for message in made[:-1]:
                await life.write(message)
            await life.write(made[-1], batch=True)
        life.leaving = True
        await life.write(wire.AgentMessage(goodbye=wire.Goodbye(reason="done")).SerializeToString())
        await asyncio.wait_for(following, ACK_S)
    except asyncio.TimeoutError:
        print(f"agent {agent.number}: {agent.sequence - agent.acked} batches unacknowledged", file=sys.stderr)
    finally:
        for task in (following, *beside):
            task.cancel()


class _Life:
    """What happens besides the batches: acknowledgements and clock round trips."""

    def __init__(self, agent: Agent, call: Call, *, with_batches: bool) -> None:
        self._agent, self._call, self._with_batches = agent, call, with_batches
        self._turn = asyncio.Lock()
        self._soon: asyncio.Queue[bytes] = asyncio.Queue()
        self._round_trips = RoundTrips(AgentCounts(), self._soon.put_nowait)
        self.ticks = TICKS
        self.leaving = False

    async def write(self, message: bytes, *, batch: bool = False) -> None:
        """Send one message after the other."""
        async with self._turn:
            await self._call.write(message + self._round_trips.piggybacked() if batch else message)

    async def speak(self) -> None:
        """Send what is no batch."""
        while True:
            await self.write(await self._soon.get())

    async def beat(self) -> None:
        """Ask for the time now and then."""
        self._round_trips.begin(with_batches=self._with_batches)
        while True:
            await asyncio.sleep(CLOCK_PERIOD_S)
            self._round_trips.due()

    async def follow(self) -> None:
        """Take acks and the time in."""
        while (message := await self._call.read()) is not None:
            acked = message.ack.durable_sequence
            if message.HasField("clock"):
                self._round_trips.answered(message.clock)
                acked = message.clock.durable_sequence
            elif message.HasField("throttle"):
                self.ticks = min(max(message.throttle.batch_ns // NS, TICKS), MOST_TICKS)
            self._agent.acked = max(self._agent.acked, acked)
            if self.leaving and self._agent.acked == self._agent.sequence:
                await self._call.done_writing()


class Load(NamedTuple):
    """How many agents; how long they connect and define what they send, and then send; the ranks of the job."""

    count: int
    settle: float
    seconds: int
    world: int

    @property
    def lead(self) -> int:
        """How long before the end of settling batches begin, s: a node's definitions are five of its batches."""
        return int(self.settle * 2 / 3) // TICKS * TICKS

    def start(self, number: int) -> int:
        """When an agent begins: one after the other in the first half of that time."""
        return int(self.lead / 2 * number / self.count) // TICKS * TICKS


async def generate(address: str, load: Load) -> dict[str, Any]:
    """Run agents; how much was sent and acknowledged, and the CPU time of sending after they had settled."""
    agents = [Agent(number, load.world) for number in range(load.count)]
    print("ready", flush=True)
    gate = asyncio.Semaphore(_AT_ONCE)
    began = time.monotonic() + load.settle - load.lead
    lives = [asyncio.create_task(drive(agent, address, load, began, gate)) for agent in agents]
    await asyncio.sleep(load.settle)
    before = time.process_time()
    await asyncio.sleep(load.seconds)
    used = time.process_time() - before
    await asyncio.gather(*lives)
    sent, acked = (sum(map(attrgetter(name), agents)) for name in ("sequence", "acked"))
    return {"sent": sent, "acked": acked, "cpu_s": round(used, 3)}
