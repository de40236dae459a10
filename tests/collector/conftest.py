"""A simulated agent that speaks the real protocol, and a real collector process to speak it to."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hindmost_collector.simulate.stream import open_stream
from hindmost_proto import telemetry_pb2 as wire

from tests.collecting import collecting as in_this_process

WORLD = 2**63 + 5
SCHEMA = 9
STEP_NS = 20_000_000


class FakeAgent:
    """Keeps what is not acknowledged and replays it, like the real one."""

    #: Whether it waits for a collector that does not listen yet.
    waits = True

    def __init__(self, address: str, agent_id: str = "a", node: str = "n0", job: str = "j", ranks: int = 2) -> None:
        self.address, self.agent_id, self.node, self.job, self.ranks = address, agent_id, node, job, ranks
        self.mine = range(ranks)
        self.kept: dict[int, wire.Batch] = {}
        self.sequence = self.acked = self.replayed = 0
        self.clock_shift_ns = self._step_ended = 0
        self.messages: list[wire.CollectorMessage] = []
        self._channel: Any = None
        self.stream: Any = None

    @classmethod
    def of_several(cls, number: int, ranks: int = 4, address: str = "", job: str = "j") -> Any:
        """The agent of this number of a job of so many ranks, of which it has two."""
        made = cls(address, f"a{number}", f"n{number}", job, ranks)
        made.mine = range(2 * number, 2 * number + 2)
        return made

    def now(self) -> int:
        """This node's CLOCK_MONOTONIC."""
        return time.monotonic_ns() + self.clock_shift_ns

    async def connect(self, *, define: bool = True) -> int:
        """Open a stream and replay; the durable sequence that the collector knows of."""
        self._channel = grpc.aio.insecure_channel(self.address)
        self.stream = open_stream(self._channel, wait_for_ready=self.waits)
        hello = wire.Hello(protocol=1, agent_id=self.agent_id, node=self.node, boot_id="b", job_id=self.job)
        hello.monotonic_ns, hello.realtime_ns = self.now(), time.time_ns()
        await self.stream.write(wire.AgentMessage(hello=hello))
        durable: int = (await self.stream.read()).welcome.durable_sequence
        self.acknowledge(durable)
        if define:
            await self.define()
        for sequence in sorted(self.kept):
            self.replayed = sequence
            await self.stream.write(wire.AgentMessage(batch=self.kept[sequence]))
        return durable

    def acknowledge(self, durable: int) -> None:
        """Forget what is safe."""
        self.acked = max(self.acked, durable)
        self.kept = {sequence: batch for sequence, batch in self.kept.items() if sequence > durable}

    def rank_ref(self, rank: int) -> int:
        """The reference of a rank; different for each job and node."""
        return (hash((self.job, rank)) & 0xFFFFFFFF) << 16 | rank | 1 << 60

    def definitions(self) -> wire.Definitions:
        """Two metric series, this agent's ranks, and one communicator of them."""
        series = [
            wire.Series(name="hindmost_node_cpu_seconds_total", kind="COUNTER", help="CPU.", labels={"mode": "user"}),
            wire.Series(name="hindmost_node_memory_available_bytes", help="Memory."),
        ]
        ranks = [
            wire.Rank(ref=self.rank_ref(rank), job_id=self.job, rank=rank, world_size=self.ranks, node=self.node, pid=7)
            for rank in range(self.ranks)
        ]
        members = [
            wire.Communicator(ref=self.rank_ref(rank) + 2**61, rank=self.rank_ref(rank), id=WORLD, size=self.ranks)
            for rank in range(self.ranks)
        ]
        schemas = [wire.Schema(ref=SCHEMA, series=series)]
        return wire.Definitions(schemas=schemas, ranks=ranks, communicators=members)

    async def define(self) -> None:
        await self.stream.write(wire.AgentMessage(definitions=self.definitions()))

    def batch(self, step: int, slow_rank: int = -1) -> wire.Batch:
        """One step of every rank: 20 ms, one all-reduce, 4 ms more self time on the slow rank.

        It begins after the one before has ended, as on any rank, however fast batches are made: steps that overlap
        are no job's, and which of them a collective belongs to would be up to how busy this machine is.
        """
        self.sequence += 1
        began = max(self.now() - self.clock_shift_ns, self._step_ended)
        self._step_ended = began + STEP_NS
        now = began + self.clock_shift_ns
        batch = wire.Batch(sequence=self.sequence)
        batch.metrics.append(wire.MetricBlock(schema=SCHEMA, time_ns=[now], values=[float(step), 1e9]))
        for rank in self.mine:
            ref, late = self.rank_ref(rank), 4_000_000 * (rank == slow_rank)
            phases = [wire.PhaseColumn(name="forward", ns=[8_000_000 + late])]
            batch.steps.append(
                wire.StepBlock(rank=ref, step=[step], start_ns=[now], duration_ns=[STEP_NS], phases=phases)
            )
            batch.collectives.append(
                wire.CollectiveBlock(
                    rank=ref,
                    op_names=["all_reduce"],
                    op=[0],
                    comm=[WORLD],
                    seq=[step],
                    start_ns=[now + 9_000_000 + late],
                    duration_ns=[6_000_000 - late],
                    bytes=[4096],
                    flags=[0],
                    peer=[-1],
                    self_ns=[14_000_000 + late],
                )
            )
        return batch

    async def send(self, batch: wire.Batch) -> None:
        self.kept[batch.sequence] = batch
        await self.stream.write(wire.AgentMessage(batch=batch))

    async def deliver(self, steps: Iterable[int], slow_rank: int = -1) -> None:
        """Send a batch of each step, and read until the last is durable."""
        for step in steps:
            await self.send(self.batch(step, slow_rank))
        await self.until_acked(self.sequence)

    async def read(self) -> wire.CollectorMessage:
        """The next message; acks are taken to heart."""
        try:
            message = await self.stream.read()
        except grpc.aio.AioRpcError as error:
            raise ConnectionError(error.details()) from error
        if message == grpc.aio.EOF:
            raise ConnectionError(await self.stream.details())
        if message.HasField("ack"):
            self.acknowledge(message.ack.durable_sequence)
        self.messages.append(message)
        return message  # type: ignore[no-any-return]

    async def ended(self) -> str:
        """Read to the end of the stream; the reason it gives."""
        try:
            while True:
                await self.read()
        except ConnectionError as error:
            return str(error)

    async def until_acked(self, sequence: int) -> None:
        """Read until everything up to ``sequence`` is durable."""
        while self.acked < sequence:
            await self.read()

    async def round_trip(self) -> None:
        """Measure the clock once."""
        await self.stream.write(wire.AgentMessage(clock=wire.ClockSample(sent_ns=self.now())))
        reply = await self.read()
        while not reply.HasField("clock"):
            reply = await self.read()
        sample = wire.ClockSample(sent_ns=reply.clock.sent_ns, received_ns=reply.clock.received_ns)
        sample.replied_ns, sample.returned_ns = reply.clock.replied_ns, self.now()
        await self.stream.write(wire.AgentMessage(clock=sample))

    async def close(self) -> None:
        """Break off without a word."""
        if self._channel:
            await self._channel.close()

    async def __aenter__(self) -> Any:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@pytest.fixture
def fake_agent() -> type[FakeAgent]:
    return FakeAgent


@pytest.fixture
def collecting() -> Callable[..., Any]:
    """``async with collecting(out=…) as collector``: a collector in this process, its ``addresses`` set."""
    return in_this_process


class Process:
    """A real ``hindmost collector``."""

    def __init__(
        self, *arguments: str, open_files: int | None = None, program: tuple[str, ...] = ("-m", "hindmost")
    ) -> None:
        command = [sys.executable, *program, "collector", *arguments]
        if open_files is not None:  # the child's limit alone: this process may have more files open than that
            command = ["sh", "-c", f'ulimit -Sn {open_files} && exec "$@"', "sh", *command]
        environ = {"HINDMOST_COLLECTOR_FLUSH_SECONDS": "0.2", **os.environ}  # what is taken is acknowledged soon
        self.popen = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.popen.stdout
        line = self.popen.stdout.readline()
        self.addresses: dict[str, str] = json.loads(line) if line else {}

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()


@pytest.fixture
def collector_process() -> Iterator[Callable[..., Process]]:
    """``collector_process("--out", DIR, …)``: started, and killed when the test ends."""
    started: list[Process] = []

    def start(*arguments: str | Path, open_files: int | None = None) -> Process:
        started.append(Process("--listen", "127.0.0.1:0", *map(str, arguments), open_files=open_files))
        return started[-1]

    yield start
    for process in started:
        process.kill()
