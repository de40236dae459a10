"""A rank of the jobs here: marks steps, meets the others in each, and says in a file how many it has marked.

python rank.py MARKS mpi|gloo|horovod|none STEPS MILLISECONDS [SLOW_RANK]
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hindmost

VALUES = 4096


def meeting(how: str) -> tuple[int, Callable[[], object]]:
    """This rank's number, and what meets the others."""
    if how == "mpi":
        import numpy as np  # noqa: PLC0415
        from mpi4py import MPI  # noqa: PLC0415

        values = np.ones(VALUES)
        return MPI.COMM_WORLD.Get_rank(), lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, values)
    if how == "gloo":
        import torch  # noqa: PLC0415
        import torch.distributed as dist  # noqa: PLC0415

        dist.init_process_group("gloo")
        return dist.get_rank(), lambda: dist.all_reduce(torch.ones(VALUES))
    if how == "horovod":
        import horovod.torch as hvd  # noqa: PLC0415
        import torch  # noqa: PLC0415

        hvd.init()
        return int(hvd.rank()), lambda: hvd.allreduce(torch.ones(VALUES), name="gradients")
    return int(os.environ["RANK"]), lambda: None


def main() -> None:
    marks, how, steps, pause_ms = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    slow = int(sys.argv[5]) if sys.argv[5:] else -1
    rank, meet = meeting(how)
    pause_s = pause_ms / 1e3 * (1.5 if rank == slow else 1.0)
    with (marks / str(rank)).open("wb", buffering=0) as count:
        for step in range(steps):
            with hindmost.step():
                time.sleep(pause_s)
                meet()
            os.pwrite(count.fileno(), b"%9d" % (step + 1), 0)


if __name__ == "__main__":
    main()
