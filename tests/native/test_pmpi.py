"""The PMPI shim under a real mpirun: what it records, and that a program does not notice it."""

import os
import statistics
from collections import Counter
from pathlib import Path

import pytest
from hindmost import ring

from tests.native.mpi_job import Mpi, Ran, launch, of

#: MPICH's waiting ranks do not give way: on an oversubscribed machine everything takes its time.
pytestmark = [pytest.mark.needs("mpirun", "cc"), pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def ran(installed: Mpi, program: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The program, observed."""
    folder = tmp_path_factory.mktemp("job")
    job = {
        "HINDMOST_JOB_ID": "job-1",
        "HINDMOST_RING_DIR": str(folder / "rings"),
        "HINDMOST_RING_CAPACITY": str(1 << 18),
    }
    return launch(installed, {**os.environ, **job}, str(program), str(folder / "file"))


def test_program_does_not_notice(installed: Mpi, program: Path, ran: Ran, tmp_path: Path) -> None:
    """Output and exit code are the same with and without the shim, and nothing is said on stderr."""
    environ = {**os.environ, "HINDMOST_RING_DIR": str(tmp_path / "none")}
    alone = launch(installed, environ, str(program), str(tmp_path / "file"), preload=False)
    assert (ran.code, ran.output) == (alone.code, alone.output)
    assert (ran.code, len(ran.output.splitlines())) == (0, 4)
    assert "hindmost" not in ran.errors
    assert alone.events == []


def test_every_rank_has_a_ring(ran: Ran) -> None:
    """Each rank's ring says who it is and that it ended in order; nothing was lost."""
    headers = [reader.header for reader in ran.readers]
    assert [(h.rank, h.world_size, h.local_rank, h.producer) for h in headers] == [(i, 4, i, "mpi") for i in range(4)]
    assert [(reader.closed, reader.lost, reader.open_records()) for reader in ran.readers] == [(True, 0, [])] * 4


def test_collectives_join_across_ranks(ran: Ran) -> None:
    """Communicator and sequence name the same collective on all of its ranks, whichever duplicate was used first."""
    joined: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for rank, events in enumerate(ran.events):
        for event in of(events, ring.COLLECTIVE):
            joined.setdefault((event.comm_id, event.seq), []).append((rank, event.name))
    assert {len({name for _, name in calls}) for calls in joined.values()} == {1}
    sizes = Counter(len(calls) for calls in joined.values())
    assert sizes[2] == 2  # the halves' all-reduces
    assert set(sizes) == {2, 4}
    halves = [sorted(rank for rank, _ in calls) for calls in joined.values() if len(calls) == 2]
    assert sorted(halves) == [[0, 2], [1, 3]]


def test_communicators_that_come_and_go_stay_few(ran: Ran) -> None:
    """A place in the table is used again by the next communicator of the same ranks."""
    for reader in ran.readers:
        found = reader.communicators()
        assert found[0].name == "MPI_COMM_WORLD"
        assert [c.size for c in found] == [4, 4, 4, 2]
        assert len({c.id for c in found}) == 4
        assert [c.rank for c in found[:3]] == [reader.header.rank] * 3
    assert sum(e.name == "barrier" and not e.flags for e in ran.events[0]) >= 40


def test_bytes_and_roots(ran: Ran) -> None:
    """A collective carries the bytes that its rank contributes, in place or not, and its root."""
    for rank, events in enumerate(ran.events):
        calls = [e for e in of(events, ring.COLLECTIVE) if not e.flags]
        assert [(e.value, e.peer) for e in calls if e.name == "all_reduce"][:4] == [(800, -1), (80, -1)] * 2
        assert next((e.value, e.peer) for e in calls if e.name == "gather") == (4 * (rank + 1), 3)
        assert [e.value for e in calls if e.name == "all_gather"] == [4 * (rank + 1)]
        assert [e.value for e in calls if e.name == "all_to_all"] == [16]
        assert [e.value for e in calls if e.name == "reduce_scatter"] == [16]
        assert [(e.value, e.peer) for e in calls if e.name == "broadcast"] == [(16, 2)]


def test_nonblocking_and_persistent_collectives_are_flagged(installed: Mpi, ran: Ran) -> None:
    """They count in their communicator's sequence, and the wait names the collective it is for."""
    for events in ran.events:
        flagged = [e for e in of(events, ring.COLLECTIVE) if e.flags & ring.NONBLOCKING]
        expected = ["barrier", "barrier", "all_reduce"] + ["all_reduce"] * (3 if installed.persistent else 0)
        assert [e.name for e in flagged] == expected
        awaited = [(e.comm_id, e.seq) for e in of(events, ring.P2P, "wait") if e.comm_id]
        assert [(e.comm_id, e.seq) for e in flagged[1:]] == [awaited[0], *awaited[1:]] or awaited[1:] == [
            (e.comm_id, e.seq) for e in flagged[2:]
        ]


def test_point_to_point_has_peer_and_bytes(ran: Ran) -> None:
    """A receive from any source shows who sent and how much came."""
    received = [e for e in of(ran.events[0], ring.P2P, "recv") if not e.flags][:3]
    assert sorted((e.peer, e.value) for e in received) == [(1, 4), (2, 8), (3, 12)]
    for rank in (1, 2, 3):
        assert next((e.peer, e.value) for e in of(ran.events[rank], ring.P2P, "send")) == (0, 4 * rank)
    assert len(of(ran.events[2], ring.P2P, "sendrecv")) == 1


def test_errors_are_passed_on_and_flagged(ran: Ran) -> None:
    """A call that fails returns its error to the program and is marked in the ring."""
    for events in ran.events:
        failed = [e for e in events if e.flags & ring.ERROR and e.kind == ring.COLLECTIVE]
        assert [(e.name, e.value) for e in failed] == [("broadcast", 0)]
    assert all(line.split()[-2] == "1" for line in ran.output.splitlines())


def test_self_time_between_collectives(ran: Ran) -> None:
    """The gap before a step's first all-reduce is its rank's own: CPU where it computes, none where it sleeps."""
    for rank, (least_ms, most_ms) in {1: (4.75, 9.0), 2: (0.0, 1.5)}.items():
        gaps = [e for e in of(ran.events[rank], ring.SELF) if e.duration_ns >= 4_750_000]
        assert len(gaps) >= 11
        known = [e.value / 1e6 for e in gaps if e.flags & ring.CPU_KNOWN]
        assert len(known) >= 7
        assert least_ms <= statistics.median(known) <= most_ms


def test_every_collective_but_the_first_has_its_gap(ran: Ran) -> None:
    """A gap stands directly before the collective that ends it, and begins where the last one ended."""
    for events in ran.events:
        for i, event in enumerate(events):
            if event.kind == ring.SELF:
                assert events[i + 1].kind == ring.COLLECTIVE
                assert event.start_ns + event.duration_ns <= events[i + 1].start_ns
        assert len(of(events, ring.SELF)) == len(of(events, ring.COLLECTIVE)) - 1


def test_file_access_is_recorded(ran: Ran) -> None:
    """MPI file I/O carries its bytes."""
    for events in ran.events:
        names = [
            (e.name, e.value) for e in of(events, ring.IO) if e.name in ("file_open", "file_close") or e.value == 4
        ]
        assert [name for name, _ in names] == ["file_open", "file_write", "file_read", "file_close"]
