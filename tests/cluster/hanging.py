"""An MPI job of which rank 2 stops coming at step 40, in a function that a stack dump names."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI


def read_shard() -> None:
    """A file system that does not answer."""
    time.sleep(600)


def main() -> None:
    """Reduce, step after step."""
    world = MPI.COMM_WORLD
    ours, total = np.ones(1024), np.empty(1024)
    for step in range(100_000):
        if step == 40 and world.rank == 2:
            read_shard()
        world.Allreduce(ours, total)


main()
