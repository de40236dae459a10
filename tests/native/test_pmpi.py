"""The PMPI shim under a real mpirun: what it records, and that a program does not notice it."""

import os
import re
import statistics
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hindmost import ring

from tests.native.mpi_job import AS_ROOT, HERE, Mpi, Ran, launch, needs_mpi4py, of

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


COMPUTES = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import numpy
from mpi4py import MPI
data, total = numpy.ones(1000), numpy.empty(1000)
for step in range(80):
    sum(range(200_000))  # some ms without a system call, at the end of which another rank may be let run
    MPI.COMM_WORLD.Allreduce(data, total)
"""


def test_a_rank_that_computes_either_runs_or_waits_for_a_cpu(installed: Mpi, observed: dict[str, str]) -> None:
    """Of four ranks on one CPU none sleeps between collectives; one that did would be named for it."""
    needs_mpi4py(installed)
    ran = launch(installed, observed, str(installed.python), "-c", COMPUTES)
    assert ran.code == 0, ran.errors
    for events in ran.events:
        gaps = [e for e in of(events, ring.SELF) if e.flags & ring.CPU_KNOWN and e.flags & ring.RUNQUEUE_KNOWN]
        if len(gaps) < 20:
            pytest.skip("needs a kernel that says how long a thread waits for a CPU")
        own, ran_ns, queued = (sum(e.duration_ns for e in gaps), sum(e.value for e in gaps), sum(e.seq for e in gaps))
        # A hypervisor may take the CPU away, which is neither; without the queue's time 3/4 would be missing.
        assert own - ran_ns - queued * 1000 < 0.2 * own


PYTHON = """
import numpy, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
rank = world.Get_rank()
data, total = numpy.ones(1000), numpy.empty(1000)
half = world.Split(rank // 2)
for step in range(5):
    world.Allreduce(data, total)
    half.Bcast(data, root=1)
request = world.Iallreduce(data, total)
request.Wait()
gathered = world.allgather(rank)
sys.stdout.write(f"{rank} {total[0]} {gathered}\\n")
"""


def test_mpi4py(installed: Mpi, observed: dict[str, str]) -> None:
    """mpi4py's calls are seen, whichever of an MPI's functions it takes."""
    needs_mpi4py(installed)
    ran = launch(installed, observed, str(installed.python), "-c", PYTHON)
    assert ran.code == 0, ran.errors
    assert sorted(ran.output.splitlines()) == [f"{i} 4.0 [0, 1, 2, 3]" for i in range(4)]
    for rank, events in enumerate(ran.events):
        calls = [(e.name, e.value, e.peer, e.flags) for e in of(events, ring.COLLECTIVE)]
        assert calls[:11] == [("all_reduce", 8000, -1, 0), ("broadcast", 8000, 1, 0)] * 5 + [
            ("all_reduce", 8000, -1, ring.NONBLOCKING)
        ]
        halves = [c for c in ran.readers[rank].communicators() if c.size == 2]
        assert [c.rank for c in halves] == [rank % 2]


def test_every_function_that_is_wrapped_is_listed(installed: Mpi) -> None:
    """The page names each function that the shim takes, by its blocking form where there is one, and no other."""
    text = (HERE.parents[1] / "docs/reference/native.md").read_text()
    table = text[text.index("By name") : text.index("Not timed")]
    listed = set(re.findall(r"`((?:MPI|mpi)_\w+)`", table))
    symbols = subprocess.run(["nm", "-D", "--defined-only", installed.shim], capture_output=True, text=True, check=True)
    taken = set(re.findall(r" T ((?:MPI|mpi)_\w+)", symbols.stdout))
    assert {blocking_form(name, listed) for name in taken} == listed


def blocking_form(name: str, listed: set[str]) -> str:
    """What the documentation calls a function: without Fortran's endings, large counts, `_init`, and the I."""
    name = re.sub(r"(_f08(ts)?)?_$|(_init)?(_c)?$", "", name)
    waiting = "MPI_" + name[5:].capitalize() if name.startswith("MPI_I") else name
    return waiting if waiting in listed else name


MAKING = """
import numpy
from mpi4py import MPI
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
cart = world.Create_cart([2, 2], periods=[True, True])
half = world.Split(rank // 2)
inter = half.Create_intercomm(0, world, 2 if rank < 2 else 0)
made = [cart, cart.Sub([True, False]), half, inter.Merge(), world.Split_type(MPI.COMM_TYPE_SHARED),
        world.Create_dist_graph_adjacent([(rank - 1) % size], [(rank + 1) % size]), world.Dup(), world.Clone(),
        world.Create(world.group.Incl([1, 3]))]
if rank < 3:
    made.append(world.Create_group(world.group.Incl([0, 1, 2])))
used = [comm for comm in made if comm != MPI.COMM_NULL]
MPI.Request.Waitall([comm.Ibarrier() for comm in (used if rank % 2 else reversed(used))])
cart.Neighbor_allgather(numpy.ones(2), numpy.empty(8))
cart.Ineighbor_alltoall(numpy.ones(4), numpy.empty(4)).Wait()
"""


def test_communicators_of_every_making_are_named_alike(installed: Mpi, observed: dict[str, str]) -> None:
    """However a communicator was made, and in whatever order it is used first, all of its members call it the same."""
    needs_mpi4py(installed)
    ran = launch(installed, observed, str(installed.python), "-c", MAKING)
    assert ran.code == 0, ran.errors
    members: dict[int, list[int]] = {}
    for rank, events in enumerate(ran.events):
        for event in of(events, ring.COLLECTIVE, "barrier"):
            members.setdefault(event.comm_id, []).append(rank)
        beside = [(e.name, e.value) for e in of(events, ring.COLLECTIVE) if e.name.startswith("neighbor")]
        assert beside == [("neighbor_all_gather", 16), ("neighbor_all_to_all", 32)]
    found = Counter("".join(map(str, ranks)) for ranks in members.values())
    assert found == {"0123": 6, "02": 1, "13": 2, "01": 1, "23": 1, "012": 1}


@pytest.mark.parametrize("flags", [["-fallow-argument-mismatch"], ["-DFORTRAN08"]], ids=["use mpi", "use mpi_f08"])
def test_fortran(installed: Mpi, observed: dict[str, str], tmp_path: Path, flags: list[str]) -> None:
    """Fortran's names are seen, with bytes, roots and communicators as from C, and each call once."""
    compiler = installed.launcher.parent / "mpifort"
    if not compiler.exists():
        pytest.skip(f"needs mpifort: {installed.launcher.parent} has none")
    program = tmp_path / "program"
    source = str(HERE / "mpi_program.f90")
    subprocess.run([str(compiler), "-cpp", *flags, source, "-o", str(program)], check=True, capture_output=True)
    ran = launch(installed, observed, str(program))
    assert (ran.code, ran.output.split()) == (0, ["sum", "10.0"]), ran.errors
    for rank, events in enumerate(ran.events):
        calls = [(e.name, e.value, e.peer, e.flags) for e in of(events, ring.COLLECTIVE)]
        step = [("all_reduce", 800, -1, 0), ("broadcast", 80, 1, 0)]
        assert calls == [*step * 5, ("all_reduce", 24, -1, 0), ("barrier", 0, -1, 0)]
        assert [(c.size, c.rank) for c in ran.readers[rank].communicators()] == [(4, rank), (2, rank // 2)]
        assert [e.name for e in of(events, ring.MARK)] == ["mpi_init", "mpi_finalize"]
    assert [(e.name, e.value, e.peer) for e in of(ran.events[1], ring.P2P, "recv")] == [("recv", 32, 0)]


@pytest.mark.parametrize("missing", ["HINDMOST_JOB_ID", "HINDMOST_RING_DIR", "probe"])
def test_outside_a_job_nothing_is_made(
    installed: Mpi, program: Path, observed: dict[str, str], tmp_path: Path, missing: str
) -> None:
    """Without a job, or with the probe off, a single rank runs as if there were no shim."""
    environ = observed | {"LD_PRELOAD": str(installed.shim), "HINDMOST_PROBE": "1", "RANK": "0", "WORLD_SIZE": "1"}
    environ |= {"HINDMOST_PROBE": "0"} if missing == "probe" else {missing: ""}
    done = subprocess.run([program], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert "hindmost" not in done.stderr
    assert not (tmp_path / "rings").exists()


@pytest.mark.parametrize(("told", "lines"), [(None, 0), ((0, 2), 1), ((1, 2), 0)])
def test_a_process_that_is_alone_in_its_mpi_is_no_rank(
    installed: Mpi, program: Path, observed: dict[str, str], tmp_path: Path, told: tuple[int, int] | None, lines: int
) -> None:
    """Outside mpirun a process that starts MPI is no rank 0 of 1; where a launcher named several, the first says so."""
    observed = observed | AS_ROOT
    if told is not None:
        observed |= {"RANK": str(told[0]), "WORLD_SIZE": str(told[1])}
    environ = observed | {"LD_PRELOAD": str(installed.shim)}
    done = subprocess.run([program], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.count("hindmost: this rank's MPI calls are not recorded: MPI has each rank alone") == lines
    assert done.stderr.count("hindmost") == lines
    assert list(tmp_path.glob("rings/*.ring")) == []


def test_processes_without_mpi_are_left_alone(installed: Mpi, observed: dict[str, str], tmp_path: Path) -> None:
    """A shell that is preloaded makes no ring, says nothing and does its work."""
    line = ["sh", "-c", f"cat {HERE / 'mpi_program.c'} | wc -l; (exit 7)"]
    environ = observed | {"LD_PRELOAD": str(installed.shim)}
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=60, check=False)
    expected = len((HERE / "mpi_program.c").read_text().splitlines())
    assert (done.returncode, int(done.stdout), done.stderr) == (7, expected, "")
    assert not (tmp_path / "rings").exists()
