"""MPI jobs of four ranks that stop at step 40: python waiting.py reduce|ring|deadlock|raise|parted.

Open MPI waits by asking again and again. From that step on the ranks give way to whatever else runs on this machine:
in their session, and where the kernel shares the CPU among sessions (autogroup), their session to the others.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from mpi4py import MPI


def read_shard() -> None:
    """A file system that does not answer."""
    time.sleep(600)


def give_way() -> None:
    """Take what nothing else wants."""
    os.nice(19)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("10")


def reduce(world: MPI.Intracomm, step: int) -> None:
    """Rank 2 does not come to a collective."""
    if step == 40 and world.rank == 2:
        read_shard()
    world.Allreduce(np.ones(1024), np.empty(1024))


def ring(world: MPI.Intracomm, step: int) -> None:
    """Everyone sends to the next; rank 2 stops before."""
    if step == 40 and world.rank == 2:
        read_shard()
    ours, theirs = np.ones(1024), np.empty(1024)
    request = world.Irecv(theirs, source=(world.rank - 1) % world.size)
    world.Send(ours, dest=(world.rank + 1) % world.size)
    request.Wait()


def deadlock(world: MPI.Intracomm, step: int) -> None:
    """Ranks 0 and 1 both receive first."""
    theirs = np.empty(1024)
    if step == 40 and world.rank < 2:
        world.Recv(theirs, source=1 - world.rank)
        world.Send(theirs, dest=1 - world.rank)
    world.Allreduce(MPI.IN_PLACE, theirs)


def raising(world: MPI.Intracomm, step: int) -> None:
    """Rank 2 raises; what is pickled is reduced by messages."""
    if step == 40 and world.rank == 2:
        raise ValueError("a bad sample")
    world.allreduce(step)


def parted(world: MPI.Intracomm, step: int) -> None:
    """Rank 1 calls another collective than the rest."""
    everything = np.empty(world.size)
    if step == 40 and world.rank == 1:
        world.Allgather(np.ones(1), everything)
    world.Allreduce(MPI.IN_PLACE, everything)


def main() -> None:
    """Step after step."""
    act = {"reduce": reduce, "ring": ring, "deadlock": deadlock, "raise": raising, "parted": parted}[sys.argv[1]]
    for step in range(100_000):
        time.sleep(0.002)
        if step == 40:
            give_way()
        act(MPI.COMM_WORLD, step)


main()
