"""Simulated agents: real gRPC, a node of eight ranks each."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from hindmost_proto import telemetry_pb2 as wire

METHOD = "/hindmost.v1.Telemetry/Stream"
SERIES, RANKS, COLLECTIVES = 340, 8, 10
PHASES = ("input", "forward", "backward", "optimizer", "sync")
STEP_NS = 1_000_000_000
#: How long to wait for the last acknowledgement.
ACK_S = 60.0


def schema() -> wire.Schema:
    """340 series, as a node of 8 GPUs has them."""
    series = [
        wire.Series(name=f"hindmost_bench_{index // 20}_total", kind="COUNTER", labels={"device": str(index % 20)})
        for index in range(SERIES)
    ]
    return wire.Schema(ref=1, series=series)


@dataclass
class Agent:
    """One simulated node."""

    number: int
    world: int
    plain: bool
    sequence: int = 0
    acked: int = 0

    def opening(self) -> list[wire.AgentMessage]:
        """Hello and definitions."""
        now = time.monotonic_ns()
        hello = wire.Hello(protocol=1, agent_id=f"bench{self.number}", node=f"node{self.number:05}", monotonic_ns=now)
        hello.job_id = "bench"
        ranks = [
            wire.Rank(ref=self.ref(rank), job_id="bench", rank=self.rank(rank), world_size=self.world, node=hello.node)
            for rank in range(RANKS)
        ]
        definitions = wire.Definitions(schemas=[schema()], ranks=ranks)
        return [wire.AgentMessage(hello=hello), wire.AgentMessage(definitions=definitions)]

    def rank(self, local: int) -> int:
        """The job's number of a local rank."""
        return self.number * RANKS + local

    def ref(self, local: int) -> int:
        """What the wire calls it."""
        return (1 << 40) + self.rank(local)

    def batch(self, step: int, random: np.random.Generator) -> wire.AgentMessage:
        """A second's worth."""
        self.sequence += 1
        now = time.monotonic_ns()
        batch = wire.Batch(sequence=self.sequence)
        values = np.cumsum(random.integers(0, 1000, SERIES)).astype(float) + 1000.0 * step
        if self.plain:
            batch.metrics.extend(wire.MetricBlock(schema=1, time_ns=[now], values=[one]) for one in values.tolist())
            return wire.AgentMessage(batch=batch)
        batch.metrics.append(wire.MetricBlock(schema=1, time_ns=[now], values=values))
        self._rows(batch, step, now, random.integers(0, 2_000_000, (RANKS, len(PHASES) + COLLECTIVES)))
        return wire.AgentMessage(batch=batch)

    def _rows(self, batch: wire.Batch, step: int, now: int, jitter: Any) -> None:
        """One block of steps and one of collectives for all ranks, as the agent makes them."""
        ranks = [self.ref(local) for local in range(RANKS)]
        phases = zip(PHASES, (150_000_000 + jitter[:, : len(PHASES)]).T.tolist(), strict=True)
        batch.steps.append(
            wire.StepBlock(
                ranks=ranks,
                rows=[1] * RANKS,
                step=[step] * RANKS,
                start_ns=[now - STEP_NS] * RANKS,
                duration_ns=(STEP_NS + jitter[:, 0]).tolist(),
                phases=[wire.PhaseColumn(name=name, ns=late) for name, late in phases],
            )
        )
        calls, rows = list(range(COLLECTIVES)) * RANKS, COLLECTIVES * RANKS
        batch.collectives.append(
            wire.CollectiveBlock(
                ranks=ranks,
                rows=[COLLECTIVES] * RANKS,
                op_names=["all_reduce"],
                op=[0] * rows,
                comm=[77] * rows,
                seq=[step * COLLECTIVES + call for call in calls],
                start_ns=[now - STEP_NS + call * 80_000_000 for call in calls],
                duration_ns=(9_000_000 + jitter[:, len(PHASES) :]).ravel().tolist(),
                bytes=[1 << 20] * rows,
                flags=[0] * rows,
                peer=[-1] * rows,
                self_ns=[70_000_000] * rows,
                cpu_ns=[-1] * rows,
                runqueue_ns=[-1] * rows,
            )
        )


async def drive(agent: Agent, channel: grpc.aio.Channel, seconds: int, began: float) -> None:
    """One agent's life: a batch a second, at its own moment of the second; then wait for the last ack."""
    call = channel.stream_stream(METHOD, wire.AgentMessage.SerializeToString, wire.CollectorMessage.FromString)()
    random = np.random.default_rng(agent.number)
    for message in agent.opening():
        await call.write(message)
    reader = asyncio.create_task(follow(agent, call))
    offset = (agent.number * 0.6180339887) % 1.0
    for step in range(seconds):
        await asyncio.sleep(max(began + step + offset - time.monotonic(), 0))
        try:
            await call.write(agent.batch(step, random))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            break
    deadline = time.monotonic() + ACK_S
    while agent.acked < agent.sequence and time.monotonic() < deadline and not reader.done():
        await asyncio.sleep(0.1)
    if reader.done():  # a real agent comes back; here it is a finding
        print(f"agent {agent.number}: its stream ended: {await call.code()} {await call.details()}", file=sys.stderr)
    reader.cancel()
    call.cancel()


async def follow(agent: Agent, call: Any) -> None:
    """Take acks in."""
    while True:
        message = await call.read()
        if message == grpc.aio.EOF:
            return
        if message.HasField("ack"):
            agent.acked = max(agent.acked, message.ack.durable_sequence)


async def generate(address: str, count: int, seconds: int, first: int, world: int, plain: bool) -> dict[str, int]:
    """Run ``count`` agents over a few channels; how much was sent and acknowledged, and what sending took."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]  # as the agent's
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(max(count // 64, 1))]
    agents = [Agent(first + number, world, plain) for number in range(count)]
    began = time.monotonic() + 2.0
    lives = (drive(agent, channels[agent.number % len(channels)], seconds, began) for agent in agents)
    await asyncio.gather(*lives)
    for channel in channels:
        await channel.close()
    late = {one.number: one.sequence - one.acked for one in agents if one.acked < one.sequence}
    if late:
        print(f"unacknowledged batches by agent: {late}", file=sys.stderr)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "sent": sum(one.sequence for one in agents),
        "acked": sum(one.acked for one in agents),
        "cpu_ms": round((used.ru_utime + used.ru_stime) * 1e3),
    }
