"""The PMPI shim in programs of many kinds: with mpi4py, in Fortran, alone in their MPI, without MPI at all."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hindmost import ring

from tests.native.mpi_job import AS_ROOT, HERE, Mpi, launch, needs_mpi4py, of

#: MPICH's waiting ranks do not give way: on an oversubscribed machine everything takes its time.
pytestmark = [pytest.mark.needs("mpirun", "cc"), pytest.mark.timeout(500)]


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
