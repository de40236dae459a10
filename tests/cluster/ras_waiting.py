"""A job of two ranks with collectives that are not recorded. After 10 s rank 1 misses one, and rank 0 waits for it.

ras_waiting.py FOLDER     # each rank writes its process id there
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import hindmost


def all_reduce() -> None:
    time.sleep(600)


def read_shard() -> None:
    time.sleep(600)


def main() -> None:
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    Path(sys.argv[1], f"{rank}.pid").write_text(str(os.getpid()))
    for _ in range(100):
        hindmost.step()
        time.sleep(0.1)
    if rank == 0:
        all_reduce()
    else:
        read_shard()


if __name__ == "__main__":
    main()
