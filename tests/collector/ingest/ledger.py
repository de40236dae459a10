"""A real collector killed under load, again and again, and what is on its disk in the end."""

import asyncio
import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import grpc
from hindmost_proto import retry
from hindmost_proto import telemetry_pb2 as wire

from tests.collector.conftest import FakeAgent, Process
from tests.waiting import until

BROKEN = (grpc.aio.AioRpcError, asyncio.InvalidStateError, OSError, AttributeError, TimeoutError, asyncio.TimeoutError)
#: More than the agents of any test have.
RANKS = 16
#: The real command, its rounds of compaction often enough to be interrupted too.
PROGRAM = """
import sys
import hindmost_collector.collector
hindmost_collector.collector.UPKEEP_S = 0.4
from hindmost_cli import main
sys.exit(main())
"""
#: The numbers of rank or node, and of the step, in each table's rows.
KEYS = {
    "steps": "rank, step",
    "collectives": "rank, seq",
    "metrics": "cast(substr(node, 2) as int), cast(value as bigint)",
}


class Client(FakeAgent):
    """An agent that comes back when it is cut off; ``address`` says where the collector is now."""

    waits, lost = False, 0

    def make(self) -> None:
        """One more step of every rank."""
        batch = self.batch(self.sequence)
        self.kept[batch.sequence] = batch

    async def run(self) -> None:
        """Connect, send and come back, until cancelled."""
        while True:
            with contextlib.suppress(*BROKEN):
                await self._stream()
            await self.close()
            await asyncio.sleep(0.05)

    async def _stream(self) -> None:
        acked = self.acked
        durable = await asyncio.wait_for(self.connect(), 20)
        self.lost += max(acked - durable, 0)
        last, reader = self.replayed, asyncio.create_task(self.ended())
        try:
            while not reader.done():
                for sequence in sorted(one for one in self.kept if one > last):
                    last = sequence
                    if sequence in self.kept:  # it may have been acknowledged while others were written
                        await self.stream.write(wire.AgentMessage(batch=self.kept[sequence]))
                await asyncio.sleep(0.01)
        finally:
            await retry.cancel(reader)


def clients(count: int, address: str) -> list[Client]:
    return [Client.of_several(number, RANKS, address, "ledger") for number in range(count)]


def balance(agents: list[Client], store: Path) -> dict[str, dict[str, int]]:
    """Table to how many rows were made, and are missing, came twice, or are stored though never made."""
    steps = {(rank, step) for agent in agents for rank in agent.mine for step in range(agent.sequence)}
    ticks = {(int(agent.node[1:]), step) for agent in agents for step in range(agent.sequence)}
    found = {}
    for table, made in {"steps": steps, "collectives": steps, "metrics": ticks}.items():
        only = "where name = 'hindmost_node_cpu_seconds_total'" if table == "metrics" else ""
        query = f"select {KEYS[table]}, count(*) from '{store}/*/segments/{table}/*.parquet' {only} group by all"  # noqa: S608
        rows = Counter({(one, two): count for one, two, count in duckdb.sql(query).fetchall()})
        found[table] = {
            "made": len(made),
            "missing": len(made - rows.keys()),
            "doubled": rows.total() - len(rows),
            "unknown": len(rows.keys() - made),
        }
    return found


async def kills(store: Path, instants: int, seed: int, agents: list[Client]) -> dict[str, Any]:
    """Kill the collector at ``instants`` random moments under load: what was acknowledged and lost, and is torn."""
    chance = random.Random(seed)  # noqa: S311 - moments, not secrets

    async def started() -> Process:
        words = ("--listen", "127.0.0.1:0", "--http", "none", "--flush-seconds", "0.05", "--store", str(store))
        made = await asyncio.to_thread(Process, *words, program=("-c", PROGRAM))
        for one in agents:
            one.address = made.addresses["grpc"]
        return made

    async def making() -> None:
        while True:
            for one in agents:
                one.make()
            await asyncio.sleep(0.05)

    collector = await started()
    tasks = [asyncio.create_task(one) for one in (making(), *(agent.run() for agent in agents))]
    try:
        for _ in range(instants):
            await asyncio.sleep(chance.uniform(0.05, 1.5))
            collector.kill()
            collector = await started()
        tasks[0].cancel()
        await until(lambda: all(agent.acked == agent.sequence for agent in agents))
    finally:
        await retry.cancel(*tasks)
        collector.popen.terminate()
        await asyncio.to_thread(collector.popen.communicate)
    return {"lost": sum(agent.lost for agent in agents), "torn": len(list(store.rglob("*.torn")))}
