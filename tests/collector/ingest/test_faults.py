"""Faults, one at a time, under load from clients that replay: afterwards every row is there once."""

import asyncio
import contextlib
import os
import subprocess

import numpy as np
import pytest
from hindmost_collector.store.parquet.store import read_run
from hindmost_proto import retry

from tests.collector.ingest import ledger
from tests.needs import need
from tests.waiting import until

pytestmark = pytest.mark.torture

CLEAN = {"missing": 0, "doubled": 0, "unknown": 0}


@contextlib.asynccontextmanager
async def running(*clients):
    """The clients' lives, ended with the block."""
    lives = [asyncio.create_task(client.run()) for client in clients]
    try:
        yield
    finally:
        await retry.cancel(*lives)


def troubles(clients, store):
    """What is wrong with the rows of any table; empty where they add up."""
    found = ledger.balance(clients, store)
    assert all(found[table]["made"] for table in found)
    return {table: row for table, row in found.items() if {key: row[key] for key in CLEAN} != CLEAN}


def test_three_kills(tmp_path):
    """kill -9 at three random moments under load: nothing that was acknowledged is lost, nothing is there twice."""
    agents = ledger.clients(3, "")
    assert asyncio.run(ledger.kills(tmp_path, 3, 7, agents)) == {"lost": 0, "torn": 0}
    assert troubles(agents, tmp_path) == {}
    assert all(agent.sequence > 3 for agent in agents)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a few MB of its own."""
    directory = tmp_path / "disk"
    directory.mkdir()
    need("root", "the right to mount")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", directory], check=True)
    yield directory
    subprocess.run(["umount", "-l", directory], check=True)


def fill(path):
    """Take all the space that is left on a file's disk."""
    with path.open("wb") as file, contextlib.suppress(OSError):
        while True:
            os.write(file.fileno(), bytes(4096))


async def test_full_disk(collecting, small_disk, tmp_path):
    """On a disk that is really full nothing is acknowledged and readiness says why; with room again all is stored."""
    async with collecting(store=str(small_disk), flush_seconds=0.1) as collector:
        clients = ledger.clients(2, collector.addresses["grpc"])
        async with running(*clients):
            for one in clients:
                one.make()
            await until(lambda: all(client.acked == 1 for client in clients))
            fill(small_disk / "ballast")
            for one in clients:
                for _ in range(50):
                    one.make()
            await until(lambda: collector.recorder.failures > 2)
            reason, acked = collector.endpoints.ready(), [client.acked for client in clients]
            (small_disk / "ballast").unlink()
            await until(lambda: all(client.acked == client.sequence for client in clients))
            ready = collector.endpoints.ready()
    assert (reason, acked, ready) == ("recording fails: the disk is full", [1, 1], None)
    assert troubles(clients, small_disk) == {}
    assert list(small_disk.rglob("*.tmp")) == []


@pytest.mark.parametrize("jump_s", [3600, -3600])
async def test_clock_jump(collecting, fake_agent, tmp_path, jump_s):
    """Nodes with clocks hours apart, and one that jumps by an hour, are on one clock after three round trips."""
    async with collecting(out=str(tmp_path)) as collector:
        agents = [fake_agent(collector.addresses["grpc"], agent_id=name, node=name) for name in ("near", "far")]
        agents[1].clock_shift_ns = 5 * 3600 * 10**9
        for agent in agents:
            await agent.connect()
            await agent.round_trip()
            await agent.send(agent.batch(0))
        agents[0].clock_shift_ns += jump_s * 10**9
        for _ in range(4):
            await agents[0].round_trip()
        await agents[0].send(agents[0].batch(1))
        for agent, last in zip(agents, (2, 1), strict=True):
            await agent.until_acked(last)
            await agent.close()
        now = collector.clock.now()
    run = read_run(tmp_path)
    assert np.sort(run.steps["step"]).tolist() == [0, 0, 0, 0, 1, 1]
    assert np.abs(run.steps["start_ns"] - now).max() < 60e9


async def test_client_that_never_reads(collecting, fake_agent, tmp_path):
    """A client that sends and never reads holds no other client up, and what waits for it does not grow."""
    async with collecting(out=str(tmp_path), flush_seconds=0.05) as collector:
        async with fake_agent(collector.addresses["grpc"], agent_id="deaf", node="n9", job="deaf") as deaf:
            (client,) = ledger.clients(1, collector.addresses["grpc"])
            async with running(client):
                for step in range(100):
                    await deaf.send(deaf.batch(step))
                    client.make()
                await until(lambda: client.acked == 100)
                await until(lambda: collector.ingest.agents["deaf@n9"].durable == 100)
                waiting = len(collector.ingest.agents["deaf@n9"].outbox.drain())
        assert waiting <= 2


async def test_two_agents_of_one_identity(collecting, tmp_path, caplog):
    """Two agents with one identity: each sequence number is taken once, the rest is counted, and one line says so."""
    async with collecting(store=str(tmp_path), flush_seconds=0.05) as collector:
        twins = ledger.clients(1, collector.addresses["grpc"]) + ledger.clients(1, collector.addresses["grpc"])
        async with running(*twins):
            for one in twins:
                for _ in range(20):
                    one.make()
            await until(lambda: all(twin.acked == 20 for twin in twins))
            await until(lambda: next(iter(collector.ingest.agents.values())).contested)
        counts = collector.ingest.counts
    assert troubles(twins[:1], tmp_path) == {}
    assert counts["batches"] - counts["duplicate_batches"] == 20
    assert sum("two agents on node n0" in record.message for record in caplog.records) == 1
