"""How many nodes one collector carries: simulated agents, real gRPC on loopback, beside a plain server.

Each agent sends, every second, one tick of 340 metric series and, of 8 ranks, one step with five phases and ten
collectives. CPU is the collector process's own user and system time, so other load on the machine shifts lag, not CPU.
The plain server is what one would write first: one message a sample, one ``prometheus_client`` gauge set for each.

    python bench/collector_load.py --agents 64 256 1024 --seconds 30
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import psutil
from hindmost_proto import telemetry_pb2 as wire
from prometheus_client import CollectorRegistry, Gauge

METHOD = "/hindmost.v1.Telemetry/Stream"
SERIES, RANKS, COLLECTIVES = 340, 8, 10
PHASES = ("input", "forward", "backward", "optimizer", "sync")
STEP_NS = 1_000_000_000


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
        await call.write(agent.batch(step, random))
    deadline = time.monotonic() + 60
    while agent.acked < agent.sequence and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
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
    """Run ``count`` agents over a few channels; how much was sent and acknowledged."""
    options = [("grpc.use_local_subchannel_pool", 1)]
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
    return {"sent": sum(one.sequence for one in agents), "acked": sum(one.acked for one in agents)}


class PlainServer:
    """One message a sample, one gauge set a sample, nothing stored: acknowledged at once."""

    def __init__(self) -> None:
        self._gauge = Gauge("sample", "A sample.", ["node", "series"], registry=CollectorRegistry())

    async def stream(self, requests: Any, context: Any) -> None:
        """Serve one agent."""
        node = ""
        async for message in requests:
            kind = message.WhichOneof("body")
            if kind == "hello":
                node = message.hello.node
                await context.write(wire.CollectorMessage(welcome=wire.Welcome(protocol=1)))
            elif kind == "batch":
                for index, block in enumerate(message.batch.metrics):
                    self._gauge.labels(node, str(index)).set(block.values[0])
                ack = wire.Ack(durable_sequence=message.batch.sequence)
                await context.write(wire.CollectorMessage(ack=ack))

    async def serve(self) -> None:
        """Serve until killed."""
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(
            self.stream, wire.AgentMessage.FromString, wire.CollectorMessage.SerializeToString
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("hindmost.v1.Telemetry", {"Stream": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(json.dumps({"grpc": f"127.0.0.1:{port}", "http": None}), flush=True)
        await server.wait_for_termination()


def lag_p99(address: str | None) -> float | None:
    """Upper bound of the 99th percentile of the event loop's lag, seconds, from the collector's histogram."""
    if address is None:
        return None
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    pattern = r'hindmost_collector_loop_lag_seconds_bucket\{le="([^"]+)"\} ([\d.e+]+)'
    buckets = [(float(bound), float(count)) for bound, count in re.findall(pattern, text)]
    return next(bound for bound, count in buckets if count >= 0.99 * buckets[-1][1])


def measure(agents: int, seconds: int, plain: bool) -> dict[str, Any]:
    """Start a server and its agents, each in processes of their own; what the server took."""
    with tempfile.TemporaryDirectory() as directory:
        arguments = ["-m", "hindmost", "collector", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        command = [__file__, "--serve-plain"] if plain else [*arguments, "--store", directory]
        server = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
        assert server.stdout
        addresses = json.loads(server.stdout.readline())
        load = [__file__, "--generate", addresses["grpc"], "--agents", str(agents), "--seconds", str(seconds)]
        client = subprocess.Popen(
            [sys.executable, *load, *(["--plain"] if plain else [])], stdout=subprocess.PIPE, text=True
        )
        process = psutil.Process(server.pid)
        time.sleep(4.0)  # connecting is not what is measured
        before, began = process.cpu_times(), time.monotonic()
        peak = 0
        while client.poll() is None and time.monotonic() - began < seconds - 3:
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.5)
        after, took = process.cpu_times(), time.monotonic() - began
        cpu = (after.user + after.system - before.user - before.system) / took
        done = json.loads(client.communicate(timeout=180)[0])
        lag = lag_p99(addresses["http"])
        server.kill()
        server.wait()
    return {
        "server": "plain" if plain else "hindmost",
        "agents": agents,
        "cpu_of_a_core": round(cpu, 4),
        "lag_p99_s": lag,
        "rss_mib": round(peak / 2**20),
        "unacknowledged": done["sent"] - done["acked"],
        "batches": done["sent"],
    }


def main() -> None:
    """Parse, measure, print one JSON line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--plain-agents", type=int, nargs="*", default=[64])
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--generate", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--serve-plain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_plain:
        asyncio.run(PlainServer().serve())
    elif args.generate:
        count = args.agents[0]
        done = asyncio.run(generate(args.generate, count, args.seconds, args.first, count * RANKS, args.plain))
        print(json.dumps(done))
    else:
        for agents in args.agents:
            print(json.dumps(measure(agents, args.seconds, plain=False)), flush=True)
        for agents in args.plain_agents:
            print(json.dumps(measure(agents, args.seconds, plain=True)), flush=True)


if __name__ == "__main__":
    main()
