"""mpi4py's collectives without a PMPI shim: two real ranks, seen through their rings."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import hindmost
import pytest
from hindmost import ring
from hindmost.probes import mpi4py as probe

INJECT = Path(hindmost.__file__).parent / "inject"

SCRIPT = """
    import array, time
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    other = world.Dup()
    ours = array.array("d", [1.0, 2.0])
    summed = array.array("d", [0.0, 0.0])
    world.Barrier()
    time.sleep(0.05 if world.rank == 1 else 0.0)
    world.Allreduce(ours, summed)
    assert list(summed) == [2.0, 4.0]
    assert world.bcast({"a": 1}, root=1) == {"a": 1}
    other.Allreduce(ours, summed)
    half = world.Split(color=0, key=-world.rank)
    assert half.allgather(world.rank) == [1, 0]
    half.Free()
    half = world.Split(color=world.rank)
    half.barrier()
    if world.rank == 0:
        world.send("x", dest=1)
    else:
        assert world.recv(source=0) == "x"
    try:
        world.Bcast([ours, 99, "no such type"], root=0)
    except KeyError:
        pass
    else:
        raise AssertionError("the user's error has to reach the user")
    world.Iallreduce(ours, summed).Wait()
    world.Barrier()
"""


@pytest.mark.needs("mpirun")
def test_collectives_of_every_communicator_are_seen(tmp_path: Path) -> None:
    """World, duplicates and splits: same ids and sequence numbers on all ranks, the gap before the late rank's own."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environ = {
        **os.environ,
        "PYTHONPATH": str(INJECT),
        "HINDMOST_JOB_ID": "job",
        "HINDMOST_RING_DIR": str(tmp_path / "rings"),
        "HINDMOST_LAUNCHER": "mpirun",
        "HINDMOST_MPI": "python",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    command = ["mpirun", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "-np", "2", sys.executable, str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

    events: dict[int, list[ring.Event]] = {}
    for path in (tmp_path / "rings").glob("*.ring"):
        reader = ring.Reader(path)
        events[reader.header.rank] = reader.poll()
        assert len(reader.communicators()) == 4
        assert reader.open_records() == []
    calls = {
        rank: [(event.name, event.comm_id, event.seq, event.value) for event in seen if event.kind == ring.COLLECTIVE]
        for rank, seen in events.items()
    }
    names = ["barrier", "all_reduce", "broadcast", "all_reduce", "all_gather", "barrier", "broadcast", "all_reduce"]
    assert [name for name, *_ in calls[0]] == [*names, "barrier"]
    alone = 5  # the barrier of the second split, in which each rank is alone
    assert calls[0][:alone] + calls[0][alone + 1 :] == calls[1][:alone] + calls[1][alone + 1 :]
    assert calls[0][alone][1] != calls[1][alone][1]
    assert calls[0][1][3] == 16
    gaps = {rank: next(e for e in seen if e.kind == ring.SELF).duration_ns / 1e6 for rank, seen in events.items()}
    assert gaps[1] >= 50  # what it sleeps; the other may be held up on a busy machine
    waits = {rank: next(e for e in seen if e.name == "all_reduce").duration_ns / 1e6 for rank, seen in events.items()}
    assert gaps[0] + waits[0] > waits[1] + 40  # the other comes when it comes, and waits for the rest
    p2p = {rank: [(e.name, e.peer) for e in seen if e.kind == ring.P2P] for rank, seen in events.items()}
    assert p2p == {0: [("send", 1)], 1: [("recv", 0)]}
    (failed,) = [event for event in events[0] if event.flags & ring.ERROR and event.kind == ring.COLLECTIVE]
    assert failed.name == "broadcast"


def test_a_shim_that_is_on_the_launchers_node_only_is_missed(tmp_path: Path) -> None:
    """A home that nodes do not share: there mpi4py's calls are timed in Python, with the same ids and numbers."""
    here, there = tmp_path / "pmpi-1.so", tmp_path / "pmpi-persistent-2.so"
    here.touch()
    assert probe.absent_shim({"LD_PRELOAD": f"{there}:/usr/lib/libjemalloc.so"}) == str(there)
    assert probe.absent_shim({"LD_PRELOAD": f"{here} /no/other.so"}) == ""
    assert probe.absent_shim({}) == ""


@pytest.mark.parametrize(
    ("buffers", "size"),
    [((memoryview(b"12345678"),), 8), (([memoryview(b"1234"), 4],), 4), (({"pickled": 1},), 0), ((7, None), 0)],
)
def test_bytes_are_those_of_a_buffer(buffers: tuple[Any, ...], size: int) -> None:
    """A buffer says how large it is, alone or in a buffer specification; what is pickled is not known."""
    assert probe.bytes_of(buffers) == size


@pytest.mark.parametrize(
    ("args", "kwargs", "root"), [(("x", 3), {}, 3), (("x",), {"root": 2}, 2), (("x",), {}, 0), (("x", "y"), {}, 0)]
)
def test_a_root_is_found_where_it_was_given(args: tuple[Any, ...], kwargs: dict[str, Any], root: int) -> None:
    """By place, by name, or its default."""
    assert probe.argument(args, kwargs, 1, ("root",), 0) == root
