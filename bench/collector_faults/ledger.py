"""A real collector killed under load, again and again, and what is on its disk in the end."""

import asyncio
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
from hindmost_proto import retry

from bench.collector_faults.client import RANKS, Client

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
