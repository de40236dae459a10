"""A collector that records into the real engine, and what people then read from it."""

import asyncio
import json
import socket
import urllib.error
import urllib.request

import pytest
from hindmost_cli import main
from hindmost_collector.store.clickhouse.store import ClickHouseStore

from tests.clickhouse.conftest import Standin
from tests.waiting import until

pytestmark = pytest.mark.clickhouse
STEPS = 40


def recorded(collecting, fake_agent, **where):
    """A job of two ranks, of which rank 1 is slow, recorded by a collector that is then stopped."""

    async def scenario():
        async with collecting(job_id="j", command="train.py", http="none", **where) as collector:
            agent = fake_agent(collector.addresses["grpc"])
            await agent.connect()
            for step in range(STEPS):
                await agent.send(agent.batch(step, slow_rank=1))
            await agent.until_acked(STEPS)
            await agent.close()

    asyncio.run(scenario())


def test_report_from_clickhouse_is_the_one_from_files(collecting, fake_agent, url, tmp_path, capsys):
    """The same job recorded into the engine and into files gets the same verdicts, and SQL counts the same rows."""
    recorded(collecting, fake_agent, store=url)
    recorded(collecting, fake_agent, out=str(tmp_path))
    reports = []
    for place in (url + "?job=j", str(tmp_path)):
        assert main(["report", place, "--format", "json"]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    said = [[(one["kind"], one["ranks"], one["cause"]) for one in report["verdicts"]] for report in reports]
    assert said[0] == said[1]
    assert said[0][0][:2] == ("straggler", [1])
    assert [report["job"]["steps"] for report in reports] == [STEPS, STEPS]
    assert (
        main(["query", url, "select rank, count() as n from steps group by rank order by rank", "--format", "csv"]) == 0
    )
    assert capsys.readouterr().out == f"rank,n\n0,{STEPS}\n1,{STEPS}\n"


def test_page_shows_a_job_that_is_over_from_the_store(collecting, fake_agent, url):
    """The page's report of a job that no agent speaks of any more is the one in the store; of no job there is none."""
    recorded(collecting, fake_agent, store=url)

    async def scenario():
        async with collecting(store=url) as collector:
            address = collector.addresses["http"]
            asked = [f"http://{address}/api/report?job={job}" for job in ("j", "nosuch")]
            return [await asyncio.to_thread(fetched, one) for one in asked]

    (status, report), (missing, _) = asyncio.run(scenario())
    assert (status, missing) == (200, 404)
    assert report["verdicts"][0]["ranks"] == [1]


def fetched(address):
    """Status and JSON of a page."""
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:  # noqa: S310 - our own
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, None


def test_killed_collector_doubles_nothing(collector_process, fake_agent, url):
    """After kill -9 of a collector under load, its agent replays, and every step is there exactly once."""

    async def load(agent, process, first):
        agent.address = process.addresses["grpc"]
        await agent.connect()
        for step in range(first, first + 30):
            await agent.send(agent.batch(step))
        await agent.until_acked(agent.sequence - 15 if first == 0 else agent.sequence)
        process.kill()
        await agent.close()

    async def scenario():
        agent = fake_agent("")
        for first in (0, 30):
            await load(agent, collector_process("--http", "none", "--store", url, *quick), first)

    quick = ("--config", __file__.replace("test_collector.py", "quick.toml"))
    asyncio.run(scenario())
    store = ClickHouseStore(url)
    counts = store.server.rows(f"SELECT step, count() AS n FROM {store.target.place.database}.steps GROUP BY step")
    store.close()
    assert sorted(counts["step"].to_pylist()) == list(range(60))
    assert set(counts["n"].to_pylist()) == {2}


def test_collector_waits_for_the_server(collector_process, fake_agent, tmp_path):
    """Started before its server a collector says what it waits for, and records once the server is there."""
    server = Standin(tmp_path)
    server.kill()
    with socket.create_server(("127.0.0.1", 0)) as free:
        page = f"127.0.0.1:{free.getsockname()[1]}"

    async def scenario():
        starting = asyncio.create_task(
            asyncio.to_thread(collector_process, "--http", page, "--store", server.url("late"))
        )
        await until(lambda: ready(page)[0])
        before = ready(page)
        await asyncio.to_thread(server.start)
        process = await starting
        agent = fake_agent(process.addresses["grpc"])
        await agent.connect()
        for step in range(STEPS):
            await agent.send(agent.batch(step))
        await agent.until_acked(STEPS)
        await agent.close()
        return before, ready(page)

    before, after = asyncio.run(scenario())
    store = ClickHouseStore(server.url("late"))
    count = store.server.command("SELECT count() FROM late.steps")
    store.close()
    server.kill()
    assert before[0] == 503
    assert before[1].startswith(
        f"waiting for the store: ClickHouse at clickhouse://default@127.0.0.1:{server.port}/late"
    )
    assert before[1].endswith("does not answer: Connection refused\n")
    assert (after, int(count)) == ((200, "ready\n"), 2 * STEPS)


def ready(address):
    """Status and text of readiness; 0 while it is not served."""
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_held_collector_says_that_the_server_is_away(collector_process):
    """Where a job waits for it, a collector whose store cannot be reached says in one line which and why, and ends."""
    process = collector_process("--http", "none", "--exit-when-stdin-closes", "--store", "clickhouse://127.0.0.1:1/db")
    _, said = process.popen.communicate(timeout=60)
    assert process.popen.returncode == 1
    assert len(said.splitlines()) == 1
    assert "ClickHouse at clickhouse://default@127.0.0.1:1/db does not answer: Connection refused" in said
