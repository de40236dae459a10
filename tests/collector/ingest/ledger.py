"""A real collector killed under load, again and again, and what is on its disk in the end."""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
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


#: The real command, its rounds of compaction often enough to be interrupted too.
PROGRAM = """
import sys
import hindmost_collector.collector
hindmost_collector.collector.UPKEEP_S = 0.4
from hindmost_cli import main
sys.exit(main())
"""
TABLES = ("steps", "collectives", "metrics")


class Collector:
    """One life of a collector process on a store."""

    def __init__(self, store: Path, *arguments: str, flush_s: float = 0.05) -> None:
        command = [sys.executable, "-c", PROGRAM, "collector", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        environment = {**os.environ, "HINDMOST_COLLECTOR_FLUSH_SECONDS": str(flush_s)}
        self.process = subprocess.Popen(
            [*command, "--store", str(store), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the collector did not start"
        self.addresses: dict[str, str] = json.loads(line)

    def end(self, *, kill: bool) -> None:
        """kill -9, or ask it to leave and wait."""
        self.process.kill() if kill else self.process.terminate()
        self.process.wait(60)


def stored(store: Path) -> dict[str, Counter[tuple[int, int]]]:
    """Table to how often each (rank or node number, step) is on disk."""
    found: dict[str, Counter[tuple[int, int]]] = {}
    keys = {
        "steps": "rank, step",
        "collectives": "rank, seq",
        "metrics": "cast(substr(node, 2) as int), cast(value as bigint)",
    }
    for table in TABLES:
        only = "where name = 'hindmost_ledger_total'" if table == "metrics" else ""
        query = f"select {keys[table]}, count(*) from '{store}/*/segments/{table}/*.parquet' {only} group by all"  # noqa: S608
        found[table] = Counter({(one, two): count for one, two, count in duckdb.sql(query).fetchall()})
    return found


def balance(clients: list[Client], store: Path) -> dict[str, dict[str, int]]:
    """Table to how many rows were made, are stored, are missing, came twice, and are stored though never made."""
    rows = stored(store)
    made = {
        "steps": {(rank, step) for client in clients for rank in client.ranks for step in range(client.sequence)},
        "metrics": {(client.number, step) for client in clients for step in range(client.sequence)},
    }
    made["collectives"] = made["steps"]
    return {
        table: {
            "made": len(made[table]),
            "stored": sum(rows[table].values()),
            "missing": sum(one not in rows[table] for one in made[table]),
            "doubled": sum(count - 1 for count in rows[table].values()),
            "unknown": sum(one not in made[table] for one in rows[table]),
        }
        for table in TABLES
    }


async def load(clients: list[Client], period_s: float) -> None:
    """Have every client make a batch each period, until cancelled."""
    while True:
        for client in clients:
            client.make()
        await asyncio.sleep(period_s)


async def settled(clients: list[Client], limit_s: float) -> bool:
    """Wait until everything is acknowledged; whether it was in time."""
    until = time.monotonic() + limit_s
    while any(client.acked < client.sequence for client in clients) and time.monotonic() < until:
        await asyncio.sleep(0.05)
    return all(client.acked == client.sequence for client in clients)


async def kills(store: Path, instants: int, seed: int, agents: int = 8, period_s: float = 0.02) -> dict[str, Any]:
    """Kill the collector at ``instants`` random moments under load; the ledger."""
    chance = random.Random(seed)  # noqa: S311 - moments, not secrets
    collector = await asyncio.to_thread(Collector, store)
    clients = [Client(number, collector.addresses["grpc"]) for number in range(agents)]
    lives = [asyncio.create_task(client.run()) for client in clients]
    making = asyncio.create_task(load(clients, period_s))
    try:
        for _ in range(instants):
            await asyncio.sleep(chance.uniform(0.05, 1.5))
            collector.end(kill=True)
            collector = await asyncio.to_thread(Collector, store)
            for one in clients:
                one.address = collector.addresses["grpc"]
        making.cancel()
        complete = await settled(clients, 120)
    finally:
        await retry.cancel(making, *lives)
        await asyncio.to_thread(collector.end, kill=False)
    return {
        "kills": instants,
        "seed": seed,
        "agents": agents,
        "ranks": agents * RANKS,
        "batches": sum(client.sequence for client in clients),
        "replayed": sum(client.counts["replayed"] for client in clients),
        "acknowledged_and_lost": sum(client.counts["acknowledged_and_lost"] for client in clients),
        "all_acknowledged": complete,
        "rows": balance(clients, store),
        "torn_segments": len(list(store.rglob("*.torn"))),
    }


def adds_up(result: dict[str, Any]) -> bool:
    """Whether nothing was lost, doubled or torn."""
    rows = result["rows"].values()
    clean = all(not (row["missing"] or row["doubled"] or row["unknown"]) for row in rows)
    return clean and result["all_acknowledged"] and not (result["acknowledged_and_lost"] or result["torn_segments"])
