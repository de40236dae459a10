"""A job that leaves no core idle: each rank multiplies matrices, and averages the result with all others.

Its steps, the products of each, and a file for the times (s, of the system's monotonic clock) at which rank 0 ended
them.
"""

import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"  # one core a rank: numpy's BLAS reads it when it is imported

import numpy as np
from mpi4py import MPI

#: Steps whose times are written at once.
AT_ONCE = 300
steps, products = int(sys.argv[1]), int(sys.argv[2])
random = np.random.default_rng(MPI.COMM_WORLD.rank)
weights, batch = random.random((256, 256), np.float32), random.random((256, 256), np.float32)
mean = np.empty_like(weights)
ended = np.empty(AT_ONCE)
with open(sys.argv[3] if MPI.COMM_WORLD.rank == 0 else os.devnull, "wb") as file:  # noqa: PTH123 - one call
    for step in range(steps):
        gradient = weights
        for _ in range(products):
            gradient = np.tanh(batch @ gradient)
        MPI.COMM_WORLD.Allreduce(gradient, mean)
        weights = mean / MPI.COMM_WORLD.size
        ended[step % AT_ONCE] = time.monotonic()
        if (step + 1) % AT_ONCE == 0:
            ended.tofile(file)
            file.flush()
