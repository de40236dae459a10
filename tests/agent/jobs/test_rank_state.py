"""What is said of a rank's life: what it is in while it runs, what it was in when it died, and which rank it is."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost_agent.jobs.rings import GPU_NS, NS, OPEN_NS, Producer, RankStates, Rings
from hindmost_agent.sampler import Host
from hindmost_proto import telemetry_pb2 as wire

ENTERED_NS = 1_000


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[ring.Writer]:
    """A rank's ring, with the rank inside its third all_reduce."""
    made = ring.Writer.create(tmp_path, Identity("job", 1, 4, 1, "n", "torch", "t.py"), "py")
    made.enter(0, ring.COLLECTIVE, made.name("all_reduce"), ENTERED_NS, 3, made.communicator(77, 1, 4, "world"))
    yield made
    made.close()


@pytest.fixture
def producer(tmp_path: Path, writer: ring.Writer) -> Producer:
    rings = Rings(Host(), [tmp_path])
    rings.discover(0)
    (found,) = rings
    return found


def reported(producer: Producer, now_ns: int) -> tuple[wire.RankState.Life, list[tuple[str, int]]]:
    state = RankStates().look(producer, 5, now_ns)
    assert state is not None
    return state.life, [(one.name, one.seq) for one in state.in_flight]


def test_only_what_is_open_for_long_is_in_flight_of_a_running_rank(producer: Producer) -> None:
    """An operation that was merely met at the moment of looking is no news."""
    assert reported(producer, ENTERED_NS + OPEN_NS) == (wire.RankState.RUNNING, [])
    assert reported(producer, ENTERED_NS + OPEN_NS + 1) == (wire.RankState.RUNNING, [("all_reduce", 3)])


def test_a_rank_that_was_never_looked_at_is_not_known() -> None:
    """Asking about it leaves nothing behind: references grow with each start of a rank."""
    states = RankStates()
    assert states.waiting(7, ENTERED_NS) is None
    assert not states._known


def test_a_rank_that_vanished_is_still_where_it_was(producer: Producer) -> None:
    """Its ring outlives it, and says in what it died, however shortly before it had entered that."""
    producer.gone_ns = ENTERED_NS + 2
    assert reported(producer, ENTERED_NS + 2) == (wire.RankState.VANISHED, [("all_reduce", 3)])


def test_a_framework_that_is_imported_later_is_news(producer: Producer, writer: ring.Writer) -> None:
    """The ring of a rank that its launcher named is there before its framework is."""
    producer.refresh({}, 1)
    assert producer.process.framework == "torch"
    writer.set_framework("horovod")
    producer.refresh({}, 1 + GPU_NS)
    assert producer.process.framework == "horovod"


def test_who_tests_in_vain_waits_as_long_as_it_goes_on(tmp_path: Path) -> None:
    """One that tested and then did something else waits for no other."""
    made = ring.Writer.create(tmp_path, Identity("job", 1, 4, 1, "n", "mpi", "a.out"), "mpi")
    rings = Rings(Host(), [tmp_path])
    rings.discover(0)
    (found,), states, counted = rings, RankStates(), []
    for second, tests in enumerate([1, 9, 20, 20, 20]):
        made.enter(0, ring.P2P, made.name("wait"), ENTERED_NS, 0, made.communicator(77, 1, 4, "w"), 2, ring.POLLS)
        with Path(made.path).open("r+b") as file:  # as native/ring.h has it: where the open table counts tests
            os.pwrite(file.fileno(), tests.to_bytes(8, "little"), 1024 + 16)
        state = states.look(found, 5, ENTERED_NS + NS + second * NS)
        counted.append(None if state is None else [(one.name, one.peer - 1) for one in state.in_flight])
    assert counted == [[("wait", 2)], None, None, None, []]
    made.close()


def test_each_rank_that_is_waited_for_is_said(producer: Producer, writer: ring.Writer) -> None:
    """Any rank is none of them."""
    writer.enter(0, ring.P2P, writer.name("send"), ENTERED_NS, 0, 0, 3, ring.SENDS)
    writer.enter(1, ring.P2P, writer.name("recv"), ENTERED_NS, 0, 0, ring.ANY16)
    state = RankStates().look(producer, 5, ENTERED_NS + NS)
    assert state is not None
    assert [(one.name, one.peer, one.flags) for one in state.in_flight] == [("send", 4, ring.SENDS), ("recv", -1, 0)]


def test_a_ring_that_is_found_after_its_process_ended_is_of_a_process_that_has(tmp_path: Path) -> None:
    """A rank makes a ring for Python and one for MPI; it may die before an agent has seen the second."""
    script = (
        "import sys; from hindmost import ring; from hindmost.identity import Identity\n"
        "who = Identity('job', 1, 4, 1, 'n', 'mpi', 'a.out')\n"
        "for name in ('py', 'mpi'): ring.Writer.create(sys.argv[1] + '/' + name, who, name); print(flush=True)\n"
        "sys.stdin.read(); import os; os.kill(os.getpid(), 11)"
    )
    argv = [sys.executable, "-c", script, str(tmp_path)]
    rings = Rings(Host(), [tmp_path / "py"])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018
        process.stdout.read(2)
        rings.discover(0)
        (found,) = rings
        found.look(Host().proc, 1)
        process.stdin.close()
    rings.ends.collect(5)
    found.look(Host().proc, 7)
    rings.remove(found)
    rings.folders = [tmp_path / "mpi"]
    rings.discover(8)
    (late,) = rings
    state = RankStates().look(late, 5, 9)
    assert state is not None
    assert (state.life, state.ended_ns, state.exit_status) == (wire.RankState.VANISHED, 5, late.end.status or 0)
    rings.close()


def test_what_a_rank_raised_is_said_when_its_probe_has_left(tmp_path: Path) -> None:
    """While MPI, whose ring is open, holds the process. It is whole, though longer than a name."""
    words = "raised ValueError at job.py:3: " + "größer" * 40
    identity = Identity("job", 1, 4, 1, "n", "mpi4py", "train.py")
    python, mpi = (ring.Writer.create(tmp_path, identity, name) for name in ("py", "mpi"))
    rings, states = Rings(Host(), [tmp_path]), RankStates()
    rings.discover(0)
    (found,) = rings
    running = states.look(found, 5, ENTERED_NS)
    python.keep_text(words)
    python.close()
    left = states.look(found, 5, ENTERED_NS + NS)
    assert running is not None
    assert left is not None
    assert (running.last_words, left.last_words, left.life) == ("", words, wire.RankState.RUNNING)
    mpi.close()
    rings.close()


def test_a_rank_that_finished_is_in_nothing(producer: Producer, writer: ring.Writer) -> None:
    """A ring that was closed in order leaves nothing open, whatever its table still holds."""
    writer.close()
    producer.gone_ns = ENTERED_NS + 2
    assert reported(producer, ENTERED_NS + OPEN_NS * 2) == (wire.RankState.FINISHED, [])


def write(directory: Path, rank: int, steps: int) -> None:
    """A ring of this process under this rank, closed after so many steps."""
    made = ring.Writer.create(directory, Identity("job", rank, 3, 0, "n", "horovod", "t.py"), "py", 64)
    for step in range(steps):
        made.event(ring.STEP, made.name("train"), step * 100, 100, step)
    made.close()


def test_a_process_that_moves_is_another_rank(tmp_path: Path) -> None:
    """What it did before stays with the rank it was, which has ended; what it does now is the new rank's."""
    rings = Rings(Host(), [tmp_path])
    write(tmp_path, 2, 3)
    rings.discover(0)
    (old,) = rings
    assert old.gone_ns is None
    write(tmp_path, 1, 1)
    rings.discover(10)
    rings.poll(10)
    assert [(one.process.rank, one.written, one.gone_ns) for one in rings] == [(2, 3, 10), (1, 1, None)]
    assert old.finished(10)
    rings.remove(old)
    assert [one.process.rank for one in rings] == [1]
    rings.close()
