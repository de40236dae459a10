"""Large jobs, jobs that grow and shrink, many jobs: simulated, in memory unless said otherwise."""

import asyncio

import numpy as np
from hindmost_collector import collector as service
from hindmost_collector.ingest.chunk import finish
from hindmost_collector.ingest.clock import NodeClock
from hindmost_collector.ingest.decode import Decoder
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.packed_fields import packed
from hindmost_collector.live.jobs import LiveJob
from hindmost_collector.live.window import ALL_ROWS, LEAST_ROWS, ROWS, window_limit
from hindmost_collector.store.parquet import journal
from hindmost_collector.store.parquet.store import read_run
from hindmost_judge.judge import judge
from hindmost_proto import telemetry_pb2 as wire

DAY = 86400
STEP_NS = 20_000_000


def node(first, count, world, steps, slow=-1, job="j"):
    """``(definitions, batch)`` of a node's ranks: 20 ms a step, one all-reduce, 6 ms more on the slow rank."""
    ranks = np.arange(first, first + count)
    refs = (1 << 40) + ranks
    defined = [
        wire.Rank(ref=ref, job_id=job, rank=rank, world_size=world, node=f"n{first}", process_start_ticks=1)
        for ref, rank in zip(refs.tolist(), ranks.tolist(), strict=True)
    ]
    late = 6_000_000 * (ranks == slow)
    noise = np.random.default_rng(first).integers(0, 100_000, (count, steps))
    start = np.tile(np.arange(steps) * STEP_NS, count)
    own = np.repeat(10_000_000 + late, steps) + noise.ravel()
    step = list(range(steps)) * count
    batch = wire.Batch(sequence=1)
    rows = {"ranks": refs.tolist(), "rows": [steps] * count}
    batch.steps.add(
        **rows,
        step=step,
        start_ns=start,
        duration_ns=[STEP_NS] * len(step),
        phases=[wire.PhaseColumn(name="forward", ns=own)],
    )
    batch.collectives.add(
        **rows,
        op_names=["all_reduce"],
        op=[0] * len(step),
        comm=[7] * len(step),
        seq=step,
        start_ns=start + own,
        duration_ns=STEP_NS - own,
        self_ns=own,
    )
    return wire.Definitions(ranks=defined), batch


def test_sixteen_thousand_ranks():
    """In one job of 16,384 ranks the slow one is named, from batches as they come over the wire."""
    definitions = Definitions()
    decoder, clock, world = Decoder(definitions), NodeClock(0, 10**18), 16384
    for first in range(0, world, 128):
        defined, batch = node(first, 128, world, 16, slow=12345)
        definitions.learn(defined, decoder.job, clock)
        assert decoder.add(packed(batch), f"n{first}", "j", clock) == []
    job = LiveJob("j", 0)
    job.add(finish(decoder.take()["j"]), decoder.words, definitions, 1)
    report = judge(job.snapshot(decoder.words)())
    assert (job.world_size, len(report.ranks)) == (world, world)
    assert [(verdict.kind, tuple(verdict.ranks)) for verdict in report.verdicts[:1]] == [("straggler", (12345,))]


async def test_elastic_job(collecting, fake_agent, tmp_path):
    """Ranks leave and join: every row of each generation is stored, and the size of the world is the newest one's."""
    sizes = (2, 4, 1)

    seen = []
    async with collecting(out=str(tmp_path), job_id="j") as collector:
        for generation, size in enumerate(sizes):
            agent = fake_agent(collector.addresses["grpc"], agent_id=f"a{generation}", ranks=size)
            await agent.connect(define=False)
            sent = agent.definitions()
            for rank in sent.ranks:
                rank.ref += generation << 70 - 17
                rank.process_start_ticks = 100 + 6000 * generation  # a minute: no first clock offset is off by that
            await agent.stream.write(wire.AgentMessage(definitions=sent))
            for step in range(5):
                batch = agent.batch(generation * 5 + step)
                for block in (*batch.steps, *batch.collectives):
                    block.rank += generation << 70 - 17
                await agent.send(batch)
            await agent.until_acked(5)
            await agent.close()
            seen.append(collector.jobs["j"].world_size)
    assert seen == list(sizes)
    run = read_run(tmp_path)
    expected = {(rank, g * 5 + step) for g, size in enumerate(sizes) for rank in range(size) for step in range(5)}
    assert sorted(zip(run.steps["rank"].tolist(), run.steps["step"].tolist(), strict=True)) == sorted(expected)
    assert run.job.world_size == 1


async def test_many_jobs_at_once(collecting, fake_agent, tmp_path, monkeypatch):
    """Twenty jobs at once, over gRPC, each recorded apart; beyond the limit they are recorded and not watched live."""
    monkeypatch.setattr(service, "JOB_LIMIT", 15)

    async def small_job(collector, number):
        async with fake_agent(
            collector.addresses["grpc"], agent_id=str(number), node=f"n{number}", job=f"job{number}"
        ) as agent:
            await agent.deliver(range(number + 1))

    async with collecting(store=str(tmp_path)) as collector:
        await asyncio.gather(*(small_job(collector, number) for number in range(20)))
        assert len(collector.jobs) == 15
    assert [len(read_run(tmp_path / f"job{number}").steps["step"]) for number in range(20)] == [
        2 * (number + 1) for number in range(20)
    ]


def test_windows_share_a_bound():
    """However many jobs there are, their windows hold a bounded number of rows."""
    assert window_limit(0) == window_limit(1) == ROWS
    assert window_limit(100) * 100 <= ALL_ROWS
    assert window_limit(10**6) == LEAST_ROWS
    definitions = Definitions()
    decoder, clock, job = Decoder(definitions), NodeClock(0, 10**18), LiveJob("j", 0)
    for first in range(0, 64, 8):
        defined, batch = node(first, 8, 64, 100)
        definitions.learn(defined, decoder.job, clock)
        decoder.add(packed(batch), "n", "j", clock)
        job.add(finish(decoder.take()["j"]), decoder.words, definitions, 1)
    job.window.bound(2000)
    assert len(job.snapshot(decoder.words)().steps["step"]) <= 2000


def test_what_is_over_is_forgotten():
    """Ranks of a job that is over, schemas without samples and agents long gone take no memory, and may come back."""
    definitions = Definitions()
    decoder, clock = Decoder(definitions), NodeClock(0, 10**18)
    for name in ("a", "b"):
        defined, _ = node(0 if name == "a" else 8, 8, 16, 1, job=name)
        definitions.learn(defined, decoder.job, clock)
    definitions.learn(wire.Definitions(schemas=[wire.Schema(ref=1), wire.Schema(ref=2)]), decoder.job, clock)
    definitions.forget_job("a")
    assert {rank.job for rank in definitions.ranks.values()} == {"b"}
    definitions.prune(0, 100)
    definitions.used({2}, 90)
    definitions.prune(101, 100)
    assert definitions.missing([1, 2]) == [1]


async def test_agents_are_forgotten_and_known_again(collecting, fake_agent, tmp_path):
    """An agent without a stream is forgotten once all it sent is durable; when it comes back its numbers go on."""
    async with collecting(out=str(tmp_path)) as collector:
        async with fake_agent(collector.addresses["grpc"]) as agent:
            await agent.deliver([0])
            collector.ingest.prune(2**62)
            there = len(collector.ingest.agents)
        while collector.ingest.connected():
            await asyncio.sleep(0.01)
        collector.ingest.prune(2**62)
        gone = len(collector.ingest.agents)
        durable = await agent.connect()
        await agent.close()
        assert (there, gone, durable) == (1, 0, 1)


def test_journal_forgets_old_agents(tmp_path, monkeypatch):
    """Numbers of agents that sent nothing for thirty days are dropped when there are many; those of others stay."""
    monkeypatch.setattr(journal, "LEAST_KEPT", 10)
    days = [0.0]
    made = journal.Journal(tmp_path, now=lambda: days[0] * DAY)
    for number in range(200):
        days[0] = float(number * 2)
        made.commit([], sequences={f"agent{number}": number, "steady": number})
    made.close()
    again = journal.Journal(tmp_path)
    again.close()
    assert len(again.state.sequences) <= 40
    assert again.state.sequences["steady"] == 199
    assert again.state.sequences["agent199"] == 199
    assert "agent0" not in again.state.sequences
