"""Receiving: real gRPC on loopback, simulated agents."""

import asyncio
import json

import grpc
import numpy as np
import pytest
from hindmost_collector.simulate.stream import open_stream
from hindmost_collector.store.parquet.store import read_run
from hindmost_judge.judge import judge
from hindmost_proto import telemetry_pb2 as wire

from tests.collector.stored import steps
from tests.pages import fetched


async def test_rows_come_back_as_sent(collecting, fake_agent, tmp_path):
    """What an agent sends is what read_run returns, on the job clock."""
    async with collecting(out=str(tmp_path), job_id="j", command="train.py") as collector:
        async with fake_agent(collector.addresses["grpc"]) as agent:
            await agent.deliver(range(5))
        now = collector.clock.now()
    run = read_run(tmp_path)
    assert sorted(zip(run.steps["rank"].tolist(), run.steps["step"].tolist(), strict=True)) == [
        (rank, step) for rank in range(2) for step in range(5)
    ]
    assert set(run.steps["forward_ns"].tolist()) == {8_000_000}
    assert set(run.steps["input_ns"].tolist()) == {-1}
    assert run.collectives["comm"].tolist() == [2**63 + 5] * 10
    assert set(run.collectives["op"].tolist()) == {"all_reduce"}
    assert np.abs(run.steps["start_ns"] - now).max() < 60e9
    assert run.job.command == "train.py"
    assert sorted(run.metrics["value"].tolist()) == [0.0, 1.0, 2.0, 3.0, 4.0] + [1e9] * 5


@pytest.mark.parametrize("pause_at", [1, 5, 20, 38])
async def test_verdict_is_of_the_job_and_not_of_the_machine_it_is_tested_on(collecting, fake_agent, tmp_path, pause_at):
    """Batches that are made in a burst, with a pause of the machine between, tell of steps that follow each other."""
    async with collecting(out=str(tmp_path), job_id="j", http="none") as collector:
        agent = fake_agent(collector.addresses["grpc"])
        began = agent.now()
        await agent.connect()
        for step in range(40):
            agent.now = lambda at=began + step * 150_000 + 22_700_000 * (step >= pause_at): at
            await agent.send(agent.batch(step, slow_rank=1))
        await agent.until_acked(40)
        await agent.close()
    found = judge(read_run(tmp_path)).verdicts
    assert [(one.kind, one.ranks, one.cause, one.since_step) for one in found] == [("straggler", (1,), "compute", 0)]


async def test_batches_count_once(collecting, fake_agent, tmp_path):
    """A batch that comes twice, on one stream or two, is stored once."""
    async with collecting(out=str(tmp_path)) as collector:
        async with fake_agent(collector.addresses["grpc"]) as agent:
            first, second = agent.batch(0), agent.batch(1)
            for batch in (first, first, second):
                await agent.send(batch)
            await agent.until_acked(2)
        agent.kept = {1: first, 2: second}
        assert await agent.connect() == 2
        agent.kept = {1: first}
        await agent.stream.write(wire.AgentMessage(batch=first))
        await agent.deliver([2])
        await agent.close()
        assert collector.ingest.counts["duplicate_batches"] == 2
    assert steps(tmp_path) == [(rank, step) for rank in range(2) for step in range(3)]


async def test_the_clock_is_measured_with_batches(collecting, fake_agent, tmp_path):
    """The question arrives with one batch and the whole round trip with the next: the node's hours are taken off."""
    async with collecting(out=str(tmp_path)) as collector, fake_agent(collector.addresses["grpc"]) as agent:
        agent.clock_shift_ns = 5 * 3600 * 10**9
        asked = agent.now()
        await agent.stream.write(wire.AgentMessage(batch=agent.batch(0), asked_ns=asked))
        reply = (await agent.read()).clock
        while not reply.sent_ns:
            reply = (await agent.read()).clock
        measured = wire.ClockSample(sent_ns=asked, received_ns=reply.received_ns, replied_ns=reply.replied_ns)
        measured.returned_ns = agent.now()
        await agent.stream.write(wire.AgentMessage(batch=agent.batch(1), measured=measured))
        await agent.until_acked(2)
        clock = collector.ingest.agents["a@n0"].clock
        found = agent.now() + clock.offset(agent.now()) - collector.clock.now()
        same, error, round_trip = reply.sent_ns == asked, found, clock.round_trip_ns
    assert same
    assert abs(error) <= max(round_trip, 1_000_000)


async def test_late_batches_fill_their_gap(collecting, fake_agent, tmp_path):
    """Batches out of order are all stored, and skipped numbers are counted as missing only while they are."""
    async with collecting(out=str(tmp_path)) as collector, fake_agent(collector.addresses["grpc"]) as agent:
        batches = [agent.batch(step) for step in range(4)]
        for index in (0, 3, 1):
            await agent.send(batches[index])
        await agent.until_acked(4)
        assert [one.skipped for one in collector.ingest.agents.values()] == [1]
    assert steps(tmp_path) == [(rank, step) for rank in range(2) for step in (0, 1, 3)]


async def test_asks_for_definitions(collecting, fake_agent, tmp_path):
    """A batch that refers to the unknown waits for the definitions that the collector asks for."""
    async with collecting(out=str(tmp_path)) as collector:
        agent = fake_agent(collector.addresses["grpc"])
        await agent.connect(define=False)
        await agent.send(agent.batch(0))
        message = await agent.read()
        assert set(message.need.refs) == {9, agent.rank_ref(0), agent.rank_ref(1)}
        await agent.define()
        await agent.until_acked(1)
        await agent.close()
    assert steps(tmp_path) == [(0, 0), (1, 0)]


async def test_leaves_malformed_blocks_out(collecting, fake_agent, tmp_path):
    """Blocks that make no sense are counted and left out; the rest of the batch is kept."""
    async with collecting(out=str(tmp_path)) as collector, fake_agent(collector.addresses["grpc"]) as agent:
        batch = agent.batch(0)
        batch.steps[0].duration_ns.append(3)
        batch.collectives[0].op[0] = 77
        batch.metrics[0].values.append(1.0)
        batch.steps.add(ranks=[agent.rank_ref(0)], rows=[2], step=[9], start_ns=[1], duration_ns=[1])
        batch.intervals.add(rank=agent.rank_ref(0), names=["save"], name=[0, 0], start_ns=[1], duration_ns=[1])
        await agent.send(batch)
        await agent.until_acked(1)
        assert collector.ingest.counts["malformed_blocks"] == 5
    assert steps(tmp_path) == [(1, 0)]


@pytest.mark.parametrize(("failing", "kept"), [("add", [2, 3]), ("missing", [0, 1, 2, 3]), ("learn", [0, 1, 2, 3])])
async def test_what_fails_in_an_unforeseen_way_is_set_aside(
    collecting, fake_agent, tmp_path, monkeypatch, caplog, failing, kept
):
    """It is counted, named once and acknowledged; the agent keeps its stream, and nothing else of it is lost."""
    async with collecting(out=str(tmp_path)) as collector:
        brittle = collector.decoder if failing == "add" else collector.ingest.definitions
        real, left = getattr(brittle, failing), [2]

        def fails_twice(*arguments):
            left[0] -= 1
            if left[0] >= 0:
                raise ZeroDivisionError("no such thing")
            return real(*arguments)

        monkeypatch.setattr(brittle, failing, fails_twice)
        async with fake_agent(collector.addresses["grpc"]) as agent:
            for _ in range(2):
                await agent.define()
            await agent.deliver(range(4))
        counts = collector.ingest.counts
    assert (counts["set_aside"], counts["streams"]) == (2, 1)
    assert steps(tmp_path) == [(rank, step) for rank in (0, 1) for step in kept]
    assert caplog.text.count("the part not yet taken is left out") == 1
    assert "ZeroDivisionError: no such thing" in caplog.text


@pytest.mark.parametrize("first", [wire.AgentMessage(batch=wire.Batch(sequence=1)), wire.AgentMessage()])
async def test_refuses_streams_without_a_greeting(collecting, fake_agent, tmp_path, first):
    """A stream that does not begin with Hello is refused with a reason, and others go on."""
    async with collecting(out=str(tmp_path)) as collector:
        stranger = fake_agent(collector.addresses["grpc"])
        await stranger.connect(define=False)
        await stranger.close()
        stream = fake_agent(collector.addresses["grpc"])

        async with grpc.aio.insecure_channel(stream.address) as channel:
            call = open_stream(channel)
            await call.write(first)
            assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "must be Hello" in await call.details()


async def test_newest_stream_wins(collecting, fake_agent, tmp_path):
    """Of two streams with one identity the older ends with the reason; nothing is stored twice."""
    async with collecting(out=str(tmp_path)) as collector:
        async with fake_agent(collector.addresses["grpc"]) as older:
            await older.deliver([0])
            newer = fake_agent(collector.addresses["grpc"])
            assert await newer.connect() == 1
            assert "replaced" in await older.ended()
            newer.sequence = 1
            await newer.deliver([5])
        await newer.close()
    assert steps(tmp_path) == [(0, 0), (0, 5), (1, 0), (1, 5)]


async def test_metrics_page(collecting, fake_agent, tmp_path):
    """/metrics shows who waits and who causes it, node metrics with their node, and is valid exposition text."""
    from prometheus_client.parser import text_string_to_metric_families

    paths = ("/metrics", "/api/jobs", "/", "/readyz")
    async with collecting(out=str(tmp_path)) as collector, fake_agent(collector.addresses["grpc"], ranks=4) as agent:
        await agent.deliver(range(10), slow_rank=2)
        pages = [await asyncio.to_thread(fetched, f"http://{collector.addresses['http']}{path}") for path in paths]
    metrics, jobs, page, ready = (text for _, text in pages)
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
    }
    assert found["hindmost_rank_wait_seconds_total", ("job_id", "j"), ("rank", "0")] == pytest.approx(0.04)
    assert found["hindmost_rank_wait_seconds_total", ("job_id", "j"), ("rank", "2")] == 0
    assert found["hindmost_rank_caused_wait_seconds_total", ("job_id", "j"), ("rank", "2")] == pytest.approx(0.12)
    assert found["hindmost_rank_last_arrivals_total", ("job_id", "j"), ("rank", "2")] == 10
    assert found["hindmost_node_cpu_seconds_total", ("mode", "user"), ("node", "n0")] == 9
    assert ("hindmost_rank_phase_seconds_total", ("job_id", "j"), ("phase", "input"), ("rank", "0")) not in found
    assert json.loads(jobs)[0]["last_step"] == 9
    assert "hindmost" in page
    assert ready == "ready\n"
