"""An agent that is killed, and the next one on the same spool and rings: every event arrives exactly once."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost_agent.agent import Agent
from hindmost_agent.delivery.spool import Spool
from hindmost_agent.jobs.rings import Rings
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Host
from hindmost_proto import telemetry_pb2 as wire

CAPACITY = 64


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[ring.Writer]:
    (tmp_path / "rings").mkdir()
    made = ring.Writer.create(tmp_path / "rings", Identity("job", 0, 1, 0, "n", "torch", "t.py"), "py", CAPACITY)
    yield made
    made.close()


def started(tmp_path: Path) -> Agent:
    host, spool = Host(), Spool(tmp_path / "spool", 1 << 20)
    return Agent(
        "n", NS, host, Runner({}, host, NS), Rings(host, [tmp_path / "rings"], marks=spool.marks), spool, flush_ns=NS
    )


def killed(agent: Agent) -> None:
    """As the kernel leaves it: descriptors are closed, nothing is said or written."""
    assert agent.spool is not None
    os.close(agent.spool._lock)  # only a process that dies gives a lock up without a word
    agent.spool._lock = -1


def batches(tmp_path: Path) -> list[wire.Batch]:
    spool = Spool(tmp_path / "spool", 1 << 20)
    spool.connected(0)
    messages = [wire.AgentMessage.FromString(one.message) for one in iter(spool.next, None)]
    spool.close()
    return [message.batch for message in messages if message.WhichOneof("body") == "batch"]


def steps(found: list[wire.Batch]) -> list[int]:
    return [step for batch in found for block in batch.steps for step in block.step]


def write_step(writer: ring.Writer, step: int, *, half: bool = False) -> None:
    """A step of 100 ns with a phase of 40 and a collective; ``half``: the step itself is not over yet."""
    start = step * 100
    writer.event(ring.PHASE, writer.name("forward"), start, 40)
    writer.event(ring.COLLECTIVE, writer.name("all_reduce"), start + 50, 10, seq=step)
    if not half:
        writer.event(ring.STEP, writer.name("train"), start, 100, seq=step)


def test_every_event_arrives_once_though_the_agent_was_killed_in_a_step(tmp_path: Path, writer: ring.Writer) -> None:
    """The next agent reads on at the mark, and finishes the step of which the first had seen the phase only."""
    first = started(tmp_path)
    write_step(writer, 0)
    write_step(writer, 1, half=True)
    first.tick(NS)
    first.tick(2 * NS)
    killed(first)
    writer.event(ring.STEP, writer.name("train"), 100, 100, seq=1)
    write_step(writer, 2)
    second = started(tmp_path)
    second.tick(3 * NS)
    second.tick(4 * NS)
    killed(second)
    found = batches(tmp_path)
    assert steps(found) == [0, 1, 2]
    assert [seq for batch in found for block in batch.collectives for seq in block.seq] == [0, 1, 2]
    assert [ns for batch in found for block in batch.collectives for ns in block.self_ns] == [-1, 90, 90]
    assert [list(block.phases[0].ns) for batch in found for block in batch.steps] == [[40], [40, 40]]
    assert not any(batch.intervals for batch in found)
    assert second.host.counts.ring_events == 4
    assert second.host.counts.dropped == {"spool_full": 0, "memory_full": 0, "memory_lost": 0, "damaged": 0}


def test_steps_that_wait_for_gpu_times_are_neither_lost_nor_doubled(tmp_path: Path, writer: ring.Writer) -> None:
    """A step that the first agent let go is not sent again; one that it still held is, with its GPU time."""
    first = started(tmp_path)
    base = 10 * NS
    gpu = writer.name("gpu_forward")
    for step in range(1, 5):
        writer.event(ring.STEP, writer.name("train"), base + step * 100, 100, seq=step)
        if step == 1:
            writer.event(ring.PHASE, gpu, base, 7, seq=1)
    writer.event(ring.PHASE, gpu, base, 8, seq=3)
    first.tick(base + NS // 2)
    first.tick(base + 3 * NS // 2)
    killed(first)
    assert steps(batches(tmp_path)) == [1, 2]
    writer.event(ring.PHASE, gpu, base, 9, seq=4)
    second = started(tmp_path)
    second.tick(base + NS)
    second.tick(base + 2 * NS)
    second.tick(base + 9 * NS)
    killed(second)
    found = batches(tmp_path)
    assert steps(found) == [1, 2, 3, 4]
    gpu_ns = {
        step: ns
        for batch in found
        for block in batch.steps
        for column in block.phases
        for step, ns in zip(block.step, column.ns, strict=True)
        if ns >= 0
    }
    assert gpu_ns == {3: 8, 4: 9}


def test_what_was_overwritten_between_two_agents_is_lost_and_counted_once(tmp_path: Path, writer: ring.Writer) -> None:
    """Only records after the mark count as lost, and the rank's count goes on from the first agent's."""
    first = started(tmp_path)
    for step in range(40):
        write_step(writer, step)
    first.tick(NS)
    first.tick(2 * NS)
    killed(first)
    assert first.host.counts.ring_lost == 120 - CAPACITY
    for step in range(40, 70):
        write_step(writer, step)
    second = started(tmp_path)
    second.tick(3 * NS)
    second.tick(4 * NS)
    killed(second)
    assert second.host.counts.ring_events == CAPACITY
    assert second.host.counts.ring_lost == 120 - CAPACITY + 90 - CAPACITY
    numbers = steps(batches(tmp_path))
    assert len(numbers) == len(set(numbers)) > 0
    assert numbers[-1] == 69


def test_a_ring_of_the_same_name_made_anew_is_read_from_its_start(tmp_path: Path, writer: ring.Writer) -> None:
    """A mark belongs to one ring, not to a file's name."""
    write_step(writer, 0)
    (path,) = (tmp_path / "rings").glob("*.ring")
    marks = {str(path): [1, 3, 0, 0, 0]}
    rings = Rings(Host(), [tmp_path / "rings"], marks=marks)
    rings.discover(0)
    rings.poll(0)
    (producer,) = rings
    assert [step.step for step in producer.take(0).steps] == [0]
