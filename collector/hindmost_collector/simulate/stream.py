"""A simulated job straight into a running collector: the messages of its nodes' agents, a few steps at a time."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import grpc
import numpy as np
from hindmost.credentials import Client
from hindmost.errors import HindmostError
from hindmost_judge.model import PHASES, Table, rows
from hindmost_proto import METHOD, retry
from hindmost_proto import telemetry_pb2 as wire

from hindmost_collector.ingest.connections import GONE
from hindmost_collector.ingest.definitions import communicator_reference, rank_reference, schema_reference
from hindmost_collector.recordings.tables import select
from hindmost_collector.serve.credentials import open_channel
from hindmost_collector.simulate import engine
from hindmost_collector.simulate.engine import SEEN_SECONDS, Timing, draw
from hindmost_collector.simulate.record import (
    EPOCH_NS,
    Metric,
    collectives_of,
    communicators_of,
    gpu,
    in_flight,
    labels_of,
    on_host_clock,
    reporting_ranks,
    sampled,
    steps_of,
)
from hindmost_collector.simulate.record import node as node_of
from hindmost_collector.simulate.scenario import Scenario

#: How often agents of a job that stands still say so, where it is not sent at once.
LOOK_S = 2.0
#: How long the collector may take to say hello, and to make the last batch durable.
WELCOME_S = 10.0
DURABLE_S = 120.0


def send(
    scenario: Scenario,
    address: str,
    speed: float = 0.0,
    client: Client = Client(),  # noqa: B008 - immutable
) -> int:
    """Send a job to the collector at ``address``; ``speed`` seconds of it a second, 0: as fast as it is taken.

    Returns the count of batches, all acknowledged: durable where the collector records. Raises
    :class:`HindmostError` where the collector does not answer. A job that stops stands still for a minute of its time.
    """
    return asyncio.run(_send(Job.of(scenario, time.time_ns()), address, speed, client))


async def _send(job: Job, address: str, speed: float, client: Client) -> int:
    async with open_channel(address, client) as channel:
        try:
            await retry.within(WELCOME_S, channel.channel_ready())
        except asyncio.TimeoutError:  # another class than TimeoutError in Python 3.10
            raise HindmostError(_silent(address, client)) from None
        streams: list[_Stream] = []
        try:
            for node in job.nodes:  # one after the other: of two thousand at once some are cancelled unasked
                streams.append(_Stream(channel, client))
                await streams[-1].open(job.opening(node))
            await _batches(job, streams, speed)
            await retry.within(DURABLE_S, asyncio.gather(*(one.close() for one in streams)))
        except (*GONE, asyncio.TimeoutError, _LeftError) as error:
            if refused := [one for one in streams if one.over and await one.refused()]:
                raise HindmostError(f"the collector at {address} refuses it: {await refused[0].details()}") from None
            raise HindmostError(
                f"the collector at {address} left before it had all of the job ({await _reason(error, streams)}):"
                " see its log, start it again by `hindmost collector`, and send the job again"
            ) from None
        finally:
            for stream in streams:
                stream.cancel()
    return sum(job.sequence.values())


def _silent(address: str, client: Client) -> str:
    """Why no connection may have come about, of which gRPC gives no reason."""
    remedy = "--tls-ca has to be the authority of its certificate" if client.ca else "if it speaks TLS, give --tls-ca"
    return f"no collector answers at {address}: start one with `hindmost collector`; {remedy}"


async def _batches(job: Job, streams: list[_Stream], speed: float) -> None:
    began = time.monotonic()
    for node, ends, message in job.batches(LOOK_S) if speed > 0 else job.batches():
        if speed > 0:
            await asyncio.sleep(max(began + ends / speed - time.monotonic(), 0.0))
        await streams[node].write(message)


class _LeftError(Exception):
    """A stream ended before all of it was durable."""


async def _reason(error: Exception, streams: list[_Stream]) -> str:
    """What the connection or the collector said of its end, in words."""
    if isinstance(error, asyncio.TimeoutError):
        return f"no answer for {DURABLE_S:.0f} s"
    reasons = [await stream.details() for stream in streams if stream.over]
    return next(filter(None, reasons), "it gave no reason")


def open_stream(channel: grpc.aio.Channel, **options: Any) -> Any:
    """An agent's call on ``channel``; ``options`` are those of a grpc call, such as ``wait_for_ready``.

    Labels are written in order: references are hashes of what is sent.
    """
    types = (partial(wire.AgentMessage.SerializeToString, deterministic=True), wire.CollectorMessage.FromString)
    return channel.stream_stream(METHOD, *types)(**options)


class _Stream:
    """One node's stream, and what of it is durable."""

    def __init__(self, channel: grpc.aio.Channel, client: Client) -> None:
        self._call = open_stream(channel, metadata=tuple(client.bearer().items()))
        self._sent = self._durable = 0
        self._moved = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def open(self, messages: list[wire.AgentMessage]) -> None:
        """Say hello, and the rest after the answer: writing to a call that was refused hides why."""
        await self._call.write(messages[0])
        try:
            await retry.within(WELCOME_S, self._call.read())
        except asyncio.TimeoutError:
            raise HindmostError(
                f"no welcome within {WELCOME_S:.0f} s: is it the agents' port of a collector?"
            ) from None
        for message in messages[1:]:
            await self._call.write(message)
        self._reader = asyncio.create_task(self._read())
        self._reader.add_done_callback(lambda _: self._moved.set())

    @property
    def ended(self) -> bool:
        """Whether the collector says no more."""
        return self._reader is not None and self._reader.done()

    @property
    def over(self) -> bool:
        """Whether the whole call is over, and has its details."""
        return bool(self._call.done())

    async def refused(self) -> bool:
        """Whether the collector did not accept what this client proves."""
        return await self._call.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

    async def details(self) -> str:
        """The collector's reason for the stream's end; nothing where grpc met the end before it arrived."""
        met = await self._call.code() is grpc.StatusCode.INTERNAL
        return "" if met else str(await self._call.details() or "")

    async def write(self, message: wire.AgentMessage) -> None:
        if self.ended:
            raise _LeftError
        self._sent = message.batch.sequence
        await self._call.write(message)

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):  # how it ended is read from the call
            while (message := await self._call.read()) is not grpc.aio.EOF:
                if message.HasField("ack"):
                    self._durable = max(self._durable, message.ack.durable_sequence)
                    self._moved.set()

    async def close(self) -> None:
        """Wait until all is durable, then say goodbye."""
        while self._durable < self._sent:
            if self.ended:
                raise _LeftError
            self._moved.clear()
            await self._moved.wait()
        await self._call.write(wire.AgentMessage(goodbye=wire.Goodbye(reason="the simulation is over")))
        await self._call.done_writing()

    def cancel(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        self._call.cancel()


#: The reading of a node's monotonic clock when its job began; any.
NODE_BASE_NS = 10**12
#: Steps that are made and sent at a time: what is in memory of a large job at once.
STEPS_AT_ONCE = 4
#: After how many seconds an agent tells of what its ranks are inside of, at first.
SOON_S = 1.0
_CALLS = ("seq", "start_ns", "duration_ns", "bytes", "flags", "peer", "self_ns", "cpu_ns", "runqueue_ns")


@dataclass
class Job:
    """A simulated job that is sent at Unix time ``now_ns``: GPUs' clocks show that, nodes' their own."""

    timing: Timing
    now_ns: int
    sequence: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, scenario: Scenario, now_ns: int = NODE_BASE_NS) -> Job:
        return cls(engine.run(scenario, draw(scenario), scenario.faults), now_ns)

    @property
    def scenario(self) -> Scenario:
        return self.timing.scenario

    @property
    def nodes(self) -> range:
        return range(-(-self.scenario.ranks // self.scenario.gpus_per_node))

    def ranks(self, node: int) -> range:
        each = self.scenario.gpus_per_node
        return range(node * each, min((node + 1) * each, self.scenario.ranks))

    @property
    def name(self) -> str:
        return f"simulated-{self.scenario.seed}"

    @cached_property
    def _started(self) -> int:
        """When the processes started, in ticks; any, but another for each scenario: the processes are others."""
        return int.from_bytes(hashlib.blake2b(f"{self.scenario}".encode(), digest_size=4).digest(), "little")

    @cached_property
    def _rank_refs(self) -> list[int]:
        return [self._rank(rank).ref for rank in range(self.scenario.ranks)]

    @cached_property
    def _schemas(self) -> list[wire.Schema]:
        """The series of each node."""
        found = [wire.Schema(series=self._series(node)) for node in self.nodes]
        for one in found:
            one.ref = schema_reference(one)
        return found

    def opening(self, node: int) -> list[wire.AgentMessage]:
        """Hello and all that later messages refer to."""
        hello = wire.Hello(protocol=1, agent_id=f"{self.name}-{self.now_ns}-{node}", job_id=self.name)
        hello.node, hello.monotonic_ns, hello.realtime_ns = self._node(node), NODE_BASE_NS, self.now_ns
        definitions = wire.Definitions(
            schemas=[self._schemas[node]],
            ranks=[self._rank(rank) for rank in self.ranks(node)],
            communicators=list(self._communicators(node)),
        )
        return [wire.AgentMessage(hello=hello), wire.AgentMessage(definitions=definitions)]

    def batches(self, seen_every_s: float = SEEN_SECONDS) -> Iterator[tuple[int, float, wire.AgentMessage]]:
        """Node, when its newest row ends (s from the begin), and the batch; in order of time.

        Where the job stops, its agents tell every ``seen_every_s`` seconds, for :data:`SEEN_SECONDS`, what is open.
        """
        begun, ends = np.append(self.timing.begin[:, 0], np.inf), self.scenario.whole_steps
        for first in range(0, ends, STEPS_AT_ONCE):
            last = min(first + STEPS_AT_ONCE, ends)
            read = self._samples(begun[first], begun[last])
            steps, calls = steps_of(self.timing, last, first), collectives_of(self.timing, last, first)
            newest = float(self.timing.finish[last - 1].max()) / 1e9
            for node, mine, theirs in zip(self.nodes, self._by_node(steps), self._by_node(calls), strict=True):
                batch = self._batch(node, *read)
                batch.steps.append(self._steps(node, mine))
                if rows(theirs):
                    batch.collectives.append(self._calls(node, theirs))
                yield node, newest, wire.AgentMessage(batch=batch)
        if self.scenario.halts_at is not None:
            yield from self._standing_still(float(begun[ends]), seen_every_s)

    def _standing_still(self, since: float, every_s: float) -> Iterator[tuple[int, float, wire.AgentMessage]]:
        """Every rank's state again and again, until all have waited for long enough.

        First as soon as all wait, as agents do: who was not heard of yet is not taken for who does not come.
        """
        for seen in (
            self.timing.stopped_ns + np.append(SOON_S, np.arange(every_s, SEEN_SECONDS + every_s, every_s)) * 1e9
        ):
            read = self._samples(since, seen)
            open_calls = in_flight(self.timing, int(seen))
            for node, inside in zip(self.nodes, self._by_node(open_calls), strict=True):
                batch = self._batch(node, *read)
                batch.rank_states.extend(self._state(rank, inside, int(seen)) for rank in self.ranks(node))
                yield node, seen / 1e9, wire.AgentMessage(batch=batch)
            since = seen

    def _state(self, rank: int, open_calls: Table, seen: int) -> wire.RankState:
        """A rank that runs, and what it is inside of."""
        mine = np.flatnonzero(open_calls["rank"] == rank)
        columns = (open_calls[name][mine].tolist() for name in ("kind", "name", "comm", "seq"))
        began = (open_calls["start_ns"][mine] - EPOCH_NS + NODE_BASE_NS).tolist()
        inside = [
            wire.InFlight(kind=kind, name=name, comm=comm, seq=seq, start_ns=start)
            for kind, name, comm, seq, start in zip(*columns, began, strict=True)
        ]
        now = int(on_host_clock(self.timing.draws, np.array([float(seen)]), [rank])[0]) - EPOCH_NS + NODE_BASE_NS
        return wire.RankState(rank=self._rank_refs[rank], time_ns=now, life=wire.RankState.RUNNING, in_flight=inside)

    def _samples(self, since: float, until: float) -> tuple[Any, dict[Metric, Any]]:
        """When samples were taken between two times, and of each metric the values of all ranks."""
        at, samples = self._sampled
        indices = np.flatnonzero((at >= since) & (at < until))
        return at[indices], {metric: values[indices] for metric, values in samples.items()}

    def _batch(self, node: int, at: Any, samples: dict[Metric, Any]) -> wire.Batch:
        self.sequence[node] = self.sequence.get(node, 0) + 1
        batch = wire.Batch(sequence=self.sequence[node])
        if len(at):
            whose = {metric: reporting_ranks(self.scenario, metric, self.ranks(node)) for metric in samples}
            values = np.concatenate([samples[metric][:, ranks] for metric, ranks in whose.items()], axis=1)
            times = (NODE_BASE_NS + at).astype(np.int64)
            batch.metrics.append(wire.MetricBlock(schema=self._schemas[node].ref, time_ns=times, values=values.ravel()))
        return batch

    def _by_node(self, table: Table) -> list[Table]:
        """The rows of each node, its ranks one after the other."""
        order = np.argsort(table["rank"], kind="stable")
        edges = np.searchsorted(table["rank"][order], [node * self.scenario.gpus_per_node for node in self.nodes][1:])
        return [select(table, part) for part in np.split(order, edges)]

    def _steps(self, node: int, table: Table) -> wire.StepBlock:
        phases = [(name, table[f"{name}_ns"]) for name in PHASES]
        return wire.StepBlock(
            **self._whose(node, table),
            step=table["step"],
            start_ns=table["start_ns"] - EPOCH_NS + NODE_BASE_NS,
            duration_ns=table["duration_ns"],
            work=table["work"],
            phases=[wire.PhaseColumn(name=name, ns=ns) for name, ns in phases if (ns >= 0).any()],
            kind="train",
        )

    def _calls(self, node: int, table: Table) -> wire.CollectiveBlock:
        names, code = np.unique(table["op"], return_inverse=True)
        columns = {name: table[name] for name in _CALLS} | {"start_ns": table["start_ns"] - EPOCH_NS + self.now_ns}
        return wire.CollectiveBlock(
            **self._whose(node, table), op_names=names.tolist(), op=code, comm=table["comm"], **columns
        )

    def _whose(self, node: int, table: Table) -> dict[str, Any]:
        """Which rows are of which rank, as blocks of several ranks say it."""
        count = np.bincount(table["rank"] - self.ranks(node)[0], minlength=len(self.ranks(node)))
        return {"ranks": [self._rank_refs[rank] for rank in self.ranks(node)], "rows": count}

    def _node(self, node: int) -> str:
        return node_of(self.scenario, self.ranks(node)[0])

    def _rank(self, rank: int) -> wire.Rank:
        found = wire.Rank(
            job_id=self.name,
            rank=rank,
            world_size=self.scenario.ranks,
            local_rank=rank % self.scenario.gpus_per_node,
            node=node_of(self.scenario, rank),
            gpu_uuid=gpu(rank),
            framework="torch",
            command="hindmost simulate",
            process_start_ticks=self._started,
        )
        found.ref = rank_reference(found)
        return found

    @cached_property
    def _sampled(self) -> tuple[Any, dict[Metric, Any]]:
        """When samples are taken, and of each metric the values of all ranks."""
        return sampled(self.timing)

    @cached_property
    def _memberships(self) -> list[Table]:
        """Of each node its ranks' places in their communicators."""
        return self._by_node(communicators_of(self.timing.groups))

    def _series(self, node: int) -> list[wire.Series]:
        _, samples = self._sampled
        return [
            wire.Series(
                name=metric.name,
                kind="COUNTER" if metric.name.endswith("_total") else "GAUGE",
                labels=labels_of(self.scenario, metric, rank),
            )
            for metric in samples
            for rank in reporting_ranks(self.scenario, metric, self.ranks(node))
        ]

    def _communicators(self, node: int) -> Iterator[wire.Communicator]:
        table = self._memberships[node]
        columns = (table[name].tolist() for name in ("rank", "comm", "rank_in", "size", "name"))
        for rank, comm, inside, size, name in zip(*columns, strict=True):
            found = wire.Communicator(rank=self._rank_refs[rank], id=comm, rank_in=inside, size=size, name=name)
            found.ref = communicator_reference(found)
            yield found
