"""What others send takes about as much memory as it is large, and what waits for something is bounded."""

import asyncio

import pytest
from hindmost_collector.ingest.chunk import finish
from hindmost_collector.ingest.clock import JobClock, NodeClock
from hindmost_collector.ingest.decode import PARK_BATCHES, PARK_NS, STACK_LIMIT, Decoder, Parking
from hindmost_collector.ingest.definitions import IDENTITY_LIMIT, Definitions
from hindmost_collector.ingest.packed_fields import packed
from hindmost_collector.ingest.row_builder import NAME_LIMIT, Malformed, Words
from hindmost_collector.ingest.streams import Ingest
from hindmost_collector.live.jobs import LiveJob
from hindmost_collector.store.arrow_tables import arrow_tables
from hindmost_collector.store.schema import to_numpy
from hindmost_proto import telemetry_pb2 as wire


class Decoding:
    """A decoder that knows rank 0 of job j, by the reference 7."""

    def __init__(self) -> None:
        self.definitions = Definitions()
        self.decoder, self.clock = Decoder(self.definitions), NodeClock(0, 0)
        known = wire.Rank(ref=7, job_id="j", rank=0, world_size=1, node="n")
        self.definitions.learn(wire.Definitions(ranks=[known]), self.decoder.job, self.clock)

    def chunk(self, batch: wire.Batch):
        """What becomes of a batch."""
        assert self.decoder.add(packed(batch), "n", "j", self.clock) == []
        return finish(self.decoder.take()["j"])


def test_one_long_stack_makes_no_others_long():
    """Of 400 short stacks and one of a MiB no more than the message is held, in the tick, the window and when read."""
    decoding, batch = Decoding(), wire.Batch(sequence=1)
    for content in (b"x" * (1 << 20), *[b"y"] * 400):
        batch.attachments.add(rank=7, name="stack.txt", time_ns=1, content=content)
    chunk = decoding.chunk(batch)
    assert batch.ByteSize() < chunk.bytes < 2 * batch.ByteSize()
    job = LiveJob("j", 0)
    job.add(chunk, decoding.decoder.words, decoding.definitions, 1)
    assert job.snapshot(decoding.decoder.words)().stacks["text"].tolist() == ["y"]
    [stored] = arrow_tables({"j": [chunk]}, decoding.decoder.words, decoding.definitions)["j", "stacks"]
    read = to_numpy("stacks", stored)["text"]
    assert sorted(map(len, read)) == [*[1] * 400, STACK_LIMIT]
    assert read.nbytes < 401 * 16


def test_names_are_cut():
    """Names of operations, steps, phases and of what is in flight are cut, not repeated at a megabyte a row."""
    decoding, batch, long = Decoding(), wire.Batch(sequence=1), "n" * (1 << 20)
    phases = [wire.PhaseColumn(name=long, ns=[1])]
    batch.steps.add(rank=7, kind=long, step=[1], start_ns=[1], duration_ns=[1], phases=phases)
    batch.collectives.add(rank=7, op_names=[long], op=[0], seq=[1])
    state = batch.rank_states.add(rank=7, time_ns=1)
    state.in_flight.add(kind=long, name=long, start_ns=1)
    chunk = decoding.chunk(batch)
    assert decoding.decoder.words.words == ["n" * NAME_LIMIT]
    assert [chunk.plain["in_flight"][name].tolist() for name in ("kind", "name")] == [["n" * NAME_LIMIT]] * 2


@pytest.mark.parametrize("who", ["job_id", "node", "gpu_uuid", "framework"])
def test_identities_are_never_cut(who):
    """An identifying name that is too long is refused: cut, it might be another's."""
    decoding, long = Decoding(), "n" * (IDENTITY_LIMIT + 1)
    sent = wire.Rank(**{"ref": 8, "job_id": "j", "rank": 1, "world_size": 2, "node": "n", who: long})
    with pytest.raises(Malformed, match="rank 1 says who it is in 1025 characters: at most 1024"):
        decoding.definitions.learn(wire.Definitions(ranks=[sent]), decoding.decoder.job, decoding.clock)
    assert "in 1025 characters: at most 1024" in Ingest.refused(wire.Hello(protocol=1, node=long))


class Agents:
    """Agents of an ingest whose definitions never come."""

    def __init__(self, limit: int) -> None:
        definitions = Definitions()
        self.ingest = Ingest(JobClock(), definitions, Decoder(definitions, Words()), dict, Parking(limit))

    def join(self, name: str):
        """A new stream of the agent of that name."""
        return asyncio.run(self.ingest.greet(wire.Hello(protocol=1, agent_id=name, node="n", monotonic_ns=1)))

    def send(self, who, sequence: int, samples: int = 1000) -> None:
        """A batch of so many samples of an undefined schema."""
        block = wire.MetricBlock(schema=99, time_ns=[1], values=[1.5] * samples)
        message = wire.AgentMessage(batch=wire.Batch(sequence=sequence, metrics=[block]))
        assert asyncio.run(self.ingest.handle(*who, packed(message)))
        self.ingest.inbox.empty()


def test_what_is_parked_is_bounded_over_all_agents():
    """An agent whose batches no longer fit is asked to send them again; none is lost, and others go on."""
    agents = Agents(limit=100_000)
    first, second = agents.join("a"), agents.join("b")
    for sequence in range(1, 11):
        agents.send(first, sequence)
    before = agents.ingest.parking.bytes
    assert 80_000 < before < 100_000
    for sequence in range(1, 4):
        agents.send(second, sequence)
    assert (agents.ingest.parking.bytes, first[1].closed) == (before, False)
    assert (second[1].closed, second[0].received) == (True, 0)
    assert second[1].reason == "too much waits for definitions that were asked for: send it again"


def test_what_is_parked_goes_with_its_stream():
    """When a stream ends, or another takes its place, what waited of it is let go: it comes again."""
    agents = Agents(limit=100_000)
    agent, outbox = agents.join("a")
    agents.send((agent, outbox), 1)
    assert agents.ingest.parking.bytes > 0
    agents.ingest.part(agent, outbox)
    assert (agents.ingest.parking.bytes, agent.outbox) == (0, None)
    agent, outbox = agents.join("a")
    agents.send((agent, outbox), 1)
    agents.join("a")
    agents.ingest.part(agent, outbox)
    assert (agents.ingest.parking.bytes, agent.outbox is not None) == (0, True)


async def test_what_is_parked_counts_as_pressure(collecting):
    """Batches that wait for definitions fill the same memory as rows that wait for the disk."""
    async with collecting(memory_mib=16, http="none") as collector:
        collector.ingest.parking = Parking(1 << 30)
        collector.ingest.parking.add("a@n", wire.Batch(metrics=[wire.MetricBlock(values=[1.5] * (9 << 17))]), 1)
        collector.gather()
        assert collector.ingest.shed_metrics


def test_what_is_overdue_is_taken():
    """A definition that does not come within five seconds, or 64 batches, holds nothing up any longer."""
    parking = Parking()
    for sequence in range(PARK_BATCHES):
        assert parking.add("a", wire.Batch(sequence=sequence), 1)
    assert [parking.overdue("a", now) for now in (1, 1 + PARK_NS, 2 + PARK_NS)] == [False, False, True]
    parking.add("a", wire.Batch(sequence=99), 1)
    assert parking.overdue("a", 1)
    assert not parking.overdue("b", 1)


async def test_a_job_that_is_judged_whole_holds_no_window(collecting, fake_agent, tmp_path):
    """Its calls and samples are let go once the recording is read; what the page shows of it stays."""
    async with collecting(out=str(tmp_path)) as collector:
        agent = fake_agent(collector.addresses["grpc"])
        await agent.connect()
        await agent.deliver(range(20))
        await agent.close()
        job = collector.jobs["j"]
        assert len(job.snapshot(collector.decoder.words)().collectives["rank"]) == 40
    held = len(job.snapshot(collector.decoder.words)().collectives["rank"])
    assert (held, job.window.last_step) == (0, 19)
    assert job.report["job"]["steps"] == 20
