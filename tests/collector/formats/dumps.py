"""Dumps as torch's Flight Recorder writes them, of jobs that tests make up."""

import pickle
from pathlib import Path
from typing import Any

#: A recording of four ranks of a real job of which rank 1 hung.
HUNG = "ddp-hang-rank1"


def dump_of(entered: int, completed: int) -> dict[str, Any]:
    """A dump of a rank that entered so many all-reduces, of which so many completed."""
    entries = [
        {
            "frames": [{"name": "backward", "filename": "train.py", "line": 64}],
            "process_group": ("0", "default_pg"),
            "collective_seq_id": seq + 1,
            "p2p_seq_id": 0,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 10**18 + seq * 10**6,
            "input_sizes": [[10, 4]],
            "input_dtypes": ["BFloat16"],
            "state": "completed" if seq < completed else "scheduled",
            "is_p2p": False,
        }
        for seq in range(entered)
    ]
    return {"version": "2.10", "pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1]"}}, "entries": entries}


def write(folder: Path, rank: int, dump: dict[str, Any]) -> None:
    """A rank's dump, where a folder's reader looks for it."""
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def of_group(folder: Path, ranks: str, waiting: tuple[int, ...], **others: int) -> None:
    """Dumps of a group's ranks that wait in operation 4, and of others that entered so many."""
    for rank in (*waiting, *(int(name.removeprefix("r")) for name in others)):
        dump = dump_of(others.get(f"r{rank}", 6), completed=4)
        dump["pg_config"]["0"]["ranks"] = ranks
        write(folder, rank, dump)
