"""Batches are taken apart: what they say of a rank, what waits, and about as much memory as they are large."""

import asyncio
import weakref
from types import SimpleNamespace

import pytest
from hindmost_collector.ingest import decode
from hindmost_collector.ingest.chunk import finish
from hindmost_collector.ingest.clock import JobClock, NodeClock
from hindmost_collector.ingest.decode import (
    LAST_WORDS_LIMIT,
    PARK_BATCHES,
    PARK_NS,
    STACK_LIMIT,
    Decoder,
    Inbox,
    Parking,
)
from hindmost_collector.ingest.definitions import IDENTITY_LIMIT, Definitions
from hindmost_collector.ingest.packed_fields import packed
from hindmost_collector.ingest.row_builder import NAME_LIMIT, Malformed, Words
from hindmost_collector.ingest.session import Outbox
from hindmost_collector.ingest.streams import Ingest
from hindmost_collector.live.jobs import LiveJob
from hindmost_collector.store.arrow_tables import arrow_tables
from hindmost_collector.store.schema import to_numpy
from hindmost_judge.model import GPU_TIME
from hindmost_proto import telemetry_pb2 as wire


class Decoding:
    """A decoder that knows rank 0 of job j, by the reference 7."""

    def __init__(self) -> None:
        self.definitions = Definitions()
        self.decoder, self.clock = Decoder(self.definitions), NodeClock(0, 0)
        known = wire.Rank(ref=7, job_id="j", rank=0, world_size=1, node="n")
        self.definitions.learn(wire.Definitions(ranks=[known]), self.decoder.job, self.clock)

    def chunk(self, batch: wire.Batch):
        assert self.decoder.add(packed(batch), "n", "j", self.clock) == []
        return finish(self.decoder.take()["j"])


def test_one_long_stack_makes_no_others_long():
    """Of 400 short stacks and one of a MiB no more than the message is held, in the tick, the window and when read."""
    decoding, batch = Decoding(), wire.Batch(sequence=1)
    for content in (*[b"y"] * 400, b"x" * (1 << 20)):
        batch.attachments.add(rank=7, name="stack.txt", time_ns=1, content=content)
    chunk = decoding.chunk(batch)
    assert batch.ByteSize() < chunk.bytes < 2 * batch.ByteSize()
    job = LiveJob("j", 0)
    job.add(chunk, decoding.decoder.words, decoding.definitions, 1)
    assert job.snapshot(decoding.decoder.words)().stacks["text"].nbytes < 401 * 16
    [stored] = arrow_tables({"j": [chunk]}, decoding.decoder.words, decoding.definitions)["j", "stacks"]
    read = to_numpy("stacks", stored)["text"]
    assert sorted(map(len, read)) == [*[1] * 400, STACK_LIMIT]
    assert read.nbytes < 401 * 16


def test_of_stacks_that_come_together_all_are_in_the_file():
    """A report counts them. Events that were asked for twice are there once."""
    decoding, batch = Decoding(), wire.Batch(sequence=1)
    events = ("trace-1-2.json", b"{}")
    for name, content in (("stack.txt", b"a"), events, ("stack.txt", b"b"), events):
        batch.attachments.add(rank=7, name=name, time_ns=1, content=content)
    assert dict(decoding.chunk(batch).attachments) == {"stacks/0.txt": b"ab", "stacks/0-trace-1-2.json": b"{}"}


def test_names_are_cut():
    """Names of operations, steps, phases and of what is in flight are cut, not repeated at a megabyte a row."""
    decoding, batch, long = Decoding(), wire.Batch(sequence=1), "n" * (1 << 20)
    phases = [wire.PhaseColumn(name=long, ns=[1])]
    batch.steps.add(rank=7, kind=long, step=[1], start_ns=[1], duration_ns=[1], phases=phases)
    batch.collectives.add(rank=7, op_names=[long], op=[0], seq=[1])
    state = batch.rank_states.add(rank=7, time_ns=1, last_words=long)
    state.in_flight.add(kind=long, name=long, start_ns=1)
    chunk = decoding.chunk(batch)
    assert decoding.decoder.words.words == ["n" * NAME_LIMIT]
    assert [chunk.plain["in_flight"][name].tolist() for name in ("kind", "name")] == [["n" * NAME_LIMIT]] * 2
    assert chunk.plain["rank_states"]["last_words"].tolist() == ["n" * LAST_WORDS_LIMIT]


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


class Parsed:
    """A message that can be seen to go."""

    def __init__(self, message):
        self._message = message

    def __getattr__(self, name):
        return getattr(self._message, name)


async def test_what_has_been_taken_is_not_kept(collecting, fake_agent, monkeypatch):
    """Between two messages of an agent its stream holds none but its Hello."""
    seen, parsed = [], Inbox.parsed

    def watched(inbox: Inbox, raw: bytes) -> Parsed:
        message = Parsed(parsed(inbox, raw))
        seen.append((message.WhichOneof("body"), weakref.ref(message)))
        return message

    monkeypatch.setattr(Inbox, "parsed", watched)
    async with collecting(http="none") as collector, fake_agent(collector.addresses["grpc"]) as agent:
        await agent.deliver(range(3))
        assert [kind for kind, _ in seen] == ["hello", "definitions", *["batch"] * 3]
        assert [kind for kind, message in seen if message()] == ["hello"]


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
    async with collecting(out=str(tmp_path)) as collector, fake_agent(collector.addresses["grpc"]) as agent:
        await agent.deliver(range(20))
        job = collector.jobs["j"]
        assert len(job.snapshot(collector.decoder.words)().collectives["rank"]) == 40
    held = len(job.snapshot(collector.decoder.words)().collectives["rank"])
    assert (held, job.window.last_step) == (0, 19)
    assert job.report["job"]["steps"] == 20


@pytest.fixture
def taken():
    """What has been taken, as ``(agent, sequence, arrived)``."""
    return []


@pytest.fixture
def waiting(taken):
    """An inbox whose taker fails at sequence 13."""

    def take(agent, outbox, batch, now_ns):
        if batch.sequence == 13:
            raise RuntimeError("no such thing")
        taken.append((agent.identity, batch.sequence, now_ns))

    return Inbox(take)


def stream(name):
    """An agent, and the outbox of its stream."""
    return SimpleNamespace(identity=name, node="n"), Outbox(JobClock())


def test_batches_are_taken_in_the_order_in_which_they_came(waiting, taken):
    """Every caller has all of them, each with its arrival time."""
    one, two = stream("a"), stream("b")
    for sequence in (1, 2, 3):
        waiting.add(*one, wire.Batch(sequence=sequence), 10 + sequence)
        waiting.add(*two, wire.Batch(sequence=sequence), 20 + sequence)
    assert taken == []
    waiting.empty()
    waiting.empty()
    assert taken == [("a", 1, 11), ("b", 1, 21), ("a", 2, 12), ("b", 2, 22), ("a", 3, 13), ("b", 3, 23)]


def test_what_waits_is_bounded(waiting, taken):
    """Many batches are taken at once, and few whose messages are large."""
    one = stream("a")
    for sequence in range(100, 100 + decode.MANY):
        waiting.add(*one, wire.Batch(sequence=sequence), 0)
    assert len(taken) == decode.MANY
    large = wire.AgentMessage(batch=wire.Batch(metrics=[wire.MetricBlock(values=[1.5] * (decode.BYTES // 8))]))
    waiting.add(*one, waiting.parsed(large.SerializeToString()).batch, 0)
    assert len(taken) == decode.MANY + 1


def test_a_batch_that_cannot_be_taken_ends_its_own_stream(waiting, taken, caplog):
    """The others' are taken, and nothing more of that stream: it comes again."""
    one, two = stream("a"), stream("b")
    for sequence in (12, 13, 14):
        waiting.add(*one, wire.Batch(sequence=sequence), 0)
        waiting.add(*two, wire.Batch(sequence=sequence + 100), 0)
    waiting.empty()
    assert [(who, sequence) for who, sequence, _ in taken] == [("a", 12), ("b", 112), ("b", 113), ("b", 114)]
    assert (one[1].closed, two[1].closed) == (True, False)
    assert "agent a" in caplog.text


def test_times_beyond_64_bits_are_the_last_that_a_column_holds():
    """A clock may be off by anything: a rank's state, and what it is in, are stored all the same."""
    decoding, end = Decoding(), (1 << 63) - 1
    decoding.clock = NodeClock(0, 10**18)
    state = wire.RankState(rank=7, time_ns=end, life=1, ended_ns=end, events_total=(1 << 64) - 1)
    state.in_flight.add(kind="phase", name="input", start_ns=end)
    chunk = decoding.chunk(wire.Batch(sequence=1, rank_states=[state]))
    (stored,) = arrow_tables({"j": [chunk]}, decoding.decoder.words, decoding.definitions)["j", "rank_states"]
    (row,) = stored.to_pylist()
    assert [row[name] for name in ("time_ns", "ended_ns", "events_total")] == [end] * 3


AHEAD = 1_000_000


def decoded(**columns: list[int]) -> dict[str, list[int]]:
    """Start and enqueue times on the job's clock, which is ``AHEAD`` of the node's, of three calls of rank 0."""
    decoding, batch = Decoding(), wire.Batch(sequence=1)
    decoding.clock = NodeClock(0, AHEAD)
    calls = {"rank": 7, "op_names": ["all_reduce"], "op": [0, 0, 0], "comm": [1] * 3, "seq": [0, 1, 2]}
    batch.collectives.add(**calls, **columns)
    found = decoding.chunk(batch).coded["collectives"]
    return {name: found[name].tolist() for name in ("start_ns", "enqueue_ns")}


@pytest.mark.parametrize("first", [-1, 30])
def test_launches_are_on_the_jobs_clock_and_starts_on_the_gpus(first: int) -> None:
    """Also where no call of the batch began on the host's clock, and the first one's launch is not known."""
    found = decoded(start_ns=[900, 910, 920], flags=[GPU_TIME] * 3, enqueue_ns=[first, 40, 50])
    assert found["start_ns"] == [900, 910, 920]
    assert found["enqueue_ns"] == [first if first < 0 else AHEAD + first, AHEAD + 40, AHEAD + 50]


def test_calls_of_the_host_have_no_launch() -> None:
    """An agent that sends no such column, as earlier ones do, measured none."""
    found = decoded(start_ns=[900, 910, 920], flags=[0] * 3)
    assert found == {"start_ns": [AHEAD + 900, AHEAD + 910, AHEAD + 920], "enqueue_ns": [-1] * 3}


def test_a_rank_may_name_its_framework_and_its_gpu_later() -> None:
    """A probe comes after the ring of its process; what says less, or nothing new, is no row."""
    definitions = Definitions()
    decoder, clock = Decoder(definitions), NodeClock(0, 0)
    for more in ({"framework": "python"}, {}, {"framework": "torch"}, {"framework": "torch", "gpu_uuid": "GPU-1"}, {}):
        sent = wire.Rank(ref=7, job_id="j", rank=0, world_size=1, node="n", **more)
        definitions.learn(wire.Definitions(ranks=[sent]), decoder.job, clock)
    rows = decoder.job("j").ranks
    assert [(row[6], row[5]) for row in rows] == [("python", ""), ("torch", ""), ("torch", "GPU-1")]
    assert definitions.ranks[7].framework == "torch"


def test_what_no_row_measures_takes_no_memory_of_a_row() -> None:
    """A thousand plain calls take the memory of what was sent of them, their rank, and one value of each other
    column."""
    decoding, batch, calls = Decoding(), wire.Batch(sequence=1), range(1000)
    batch.collectives.add(rank=7, op_names=["x"], op=[0] * 1000, seq=calls, start_ns=calls, duration_ns=calls)
    assert decoding.chunk(batch).bytes < 1000 * (3 * 8 + 4) + 1000


def test_times_that_are_all_alike_are_on_the_jobs_clock_too() -> None:
    """A column of one value is kept as one, and moved like others."""
    found = decoded(start_ns=[900] * 3, flags=[0] * 3, enqueue_ns=[30] * 3)
    assert found == {"start_ns": [AHEAD + 900] * 3, "enqueue_ns": [AHEAD + 30] * 3}
