"""A job of two ranks with collectives that are not recorded. After 10 s rank 1 misses one, and rank 0 waits for it.

ras_waiting.py FOLDER     # each rank writes its process id and how many it has launched there, for a RAS to tell,
                          # and when rank 1 stopped
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

with suppress(ImportError):
    import hindmost


def all_reduce() -> None:
    time.sleep(600)


def read_shard() -> None:
    time.sleep(600)


def main() -> None:
    rank, folder = int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]), Path(sys.argv[1])
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    with (folder / f"{rank}.launched").open("wb", buffering=0) as launched:
        for number in range(1, 101):
            os.pwrite(launched.fileno(), b"%4d" % number, 0)
            if "hindmost" in sys.modules:
                hindmost.step()
            time.sleep(0.1)
        if rank == 0:
            os.pwrite(launched.fileno(), b" 101", 0)
            all_reduce()
        else:
            (folder / "stopped").write_text(str(time.time()))
            read_shard()


if __name__ == "__main__":
    main()
