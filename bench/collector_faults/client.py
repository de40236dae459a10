"""An agent as the wire demands it: keeps what is not acknowledged, comes back, and sends it again."""

import asyncio
import contextlib
import time
from collections import Counter
from typing import Any

import grpc
from hindmost_collector.simulate.stream import open_stream
from hindmost_proto import retry
from hindmost_proto import telemetry_pb2 as wire

SCHEMA = 9
RANKS = 2
STEP_NS = 10_000_000
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]  # as the agent's
BROKEN = (grpc.aio.AioRpcError, asyncio.InvalidStateError, ConnectionError)


class Client:
    """One agent of job ``job``; its ranks are ``first`` and the next. ``address`` says where the collector is now."""

    def __init__(self, number: int, address: str, job: str = "ledger", shift_ns: int = 0) -> None:
        self.number, self.address, self.job, self.shift_ns = number, address, job, shift_ns
        self.kept: dict[int, wire.Batch] = {}
        self.sequence = self.acked = 0
        self.counts: Counter[str] = Counter()
        self._fresh = asyncio.Event()
        self._call: Any = None

    @property
    def ranks(self) -> list[int]:
        """Its ranks' numbers in the job."""
        return [self.number * RANKS + local for local in range(RANKS)]

    def ref(self, rank: int) -> int:
        """What the wire calls a rank."""
        return 1 << 40 | rank

    def make(self) -> wire.Batch:
        """One more step of every rank, with a collective each, and a tick of two series."""
        self.sequence += 1
        step, now = self.sequence - 1, time.monotonic_ns() + self.shift_ns
        refs, ones = [self.ref(rank) for rank in self.ranks], [1] * RANKS
        batch = wire.Batch(sequence=self.sequence)
        batch.metrics.add(schema=SCHEMA, time_ns=[now], values=[float(step), 1.0])
        batch.steps.add(
            ranks=refs, rows=ones, step=[step] * RANKS, start_ns=[now] * RANKS, duration_ns=[STEP_NS] * RANKS
        )
        batch.collectives.add(
            ranks=refs,
            rows=ones,
            op_names=["all_reduce"],
            op=[0] * RANKS,
            comm=[7] * RANKS,
            seq=[step] * RANKS,
            start_ns=[now] * RANKS,
            duration_ns=[STEP_NS // 2] * RANKS,
        )
        self.kept[self.sequence] = batch
        self._fresh.set()
        return batch

    def _definitions(self) -> wire.Definitions:
        series = [wire.Series(name="hindmost_ledger_total", kind="COUNTER"), wire.Series(name="hindmost_ledger")]
        ranks = [
            wire.Rank(ref=self.ref(rank), job_id=self.job, rank=rank, world_size=1 << 10, node=f"n{self.number}", pid=1)
            for rank in self.ranks
        ]
        return wire.Definitions(schemas=[wire.Schema(ref=SCHEMA, series=series)], ranks=ranks)

    async def run(self) -> None:
        """Connect, send and come back, until cancelled."""
        while True:
            with contextlib.suppress(*BROKEN, TimeoutError, asyncio.TimeoutError):
                await self._stream()
            await asyncio.sleep(0.05)

    async def _stream(self) -> None:
        async with grpc.aio.insecure_channel(self.address, OPTIONS) as channel:
            self._call = call = open_stream(channel)
            hello = wire.Hello(protocol=1, agent_id=f"c{self.number}", node=f"n{self.number}", boot_id="b")
            hello.monotonic_ns, hello.job_id = time.monotonic_ns() + self.shift_ns, self.job
            await call.write(wire.AgentMessage(hello=hello))
            welcome = await asyncio.wait_for(call.read(), 20)
            if welcome == grpc.aio.EOF:
                return
            self._welcomed(welcome.welcome.durable_sequence)
            await call.write(wire.AgentMessage(definitions=self._definitions()))
            reader = asyncio.create_task(self._read(call))
            try:
                await self._write(call, reader)
            finally:
                await retry.cancel(reader)

    def _welcomed(self, durable: int) -> None:
        self.counts["streams"] += 1
        if durable < self.acked:
            self.counts["acknowledged_and_lost"] += self.acked - durable
        self._acknowledge(durable)
        self.counts["replayed"] += len(self.kept)

    def _acknowledge(self, durable: int) -> None:
        for sequence in [one for one in self.kept if one <= durable]:
            del self.kept[sequence]
        self.acked = max(self.acked, durable)

    async def _write(self, call: Any, reader: asyncio.Task[None]) -> None:
        last = 0
        while not reader.done():
            self._fresh.clear()
            for sequence in sorted(one for one in self.kept if one > last):
                last = sequence
                if sequence in self.kept:  # it may have been acknowledged while others were written
                    await call.write(wire.AgentMessage(batch=self.kept[sequence]))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._fresh.wait(), 0.1)

    async def _read(self, call: Any) -> None:
        while (message := await call.read()) != grpc.aio.EOF:
            if message.HasField("ack"):
                self._acknowledge(message.ack.durable_sequence)
            elif message.HasField("need"):
                await call.write(wire.AgentMessage(definitions=self._definitions()))
        raise ConnectionError("the stream ended")
