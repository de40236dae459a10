"""Files as other tools write them, of jobs that tests make up."""

import json
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MS = 1_000_000
#: When such a job begins, ns since 1970.
BEGIN_NS = 1_790_857_026_000_000_000
#: A recording of four ranks of a real job of which rank 1 hung.
HUNG = "ddp-hang-rank1"


def profiler_line(comm: int, member: int, seq: int, op: str, host: int, *gpu: int) -> str:
    """A line of NCCL's profiler CSV: enqueued at ``host``; ``gpu``: its start and end there, and when it was logged."""
    way = "P2P,-" if op in {"Send", "Recv"} else "RING,LL"
    return f"{comm:x},{member},{seq},{op},1024,{way},1,{host},{host + 9},{','.join(map(str, gpu))}\n"


def step_lines(starts: Iterable[int], length_ns: int, input_ns: int = MS, first: int = 0, **phases: float) -> str:
    """A log of steps that begin at these times."""
    return "".join(
        json.dumps({"step": step, "t_start": at, "t_data": at + input_ns, "t_end": at + length_ns, **phases}) + "\n"
        for step, at in enumerate(starts, first)
    )


def entry(seq: int, created_ns: int, *, ended: bool = True, **fields: Any) -> dict[str, Any]:
    """An operation in a Flight Recorder dump."""
    return {
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq + 1,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": created_ns,
        "state": "completed" if ended else "scheduled",
        "is_p2p": False,
        **fields,
    }


def dump(entries: list[dict[str, Any]], **groups: str) -> dict[str, Any]:
    """A rank's dump; ``groups``: the ranks of each group, of the job's own where none is named."""
    config = {name: {"desc": "default_pg", "ranks": ranks} for name, ranks in (groups or {"0": "[0, 1]"}).items()}
    return {"version": "2.10", "pg_config": config, "entries": entries}


def dump_of(entered: int, completed: int) -> dict[str, Any]:
    """A dump of a rank that entered so many all-reduces, of which so many completed."""
    fields = {
        "frames": [{"name": "backward", "filename": "train.py", "line": 64}],
        "input_sizes": [[10, 4]],
        "input_dtypes": ["BFloat16"],
    }
    return dump([entry(seq, 10**18 + seq * MS, ended=seq < completed, **fields) for seq in range(entered)])


def write(folder: Path, rank: int, content: dict[str, Any], *, as_json: bool = False, at_ns: int | None = None) -> None:
    """A rank's dump, where a folder's reader looks for it; ``at_ns``: when it was written."""
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(json.dumps(content).encode() if as_json else pickle.dumps(content, protocol=2))
    if at_ns is not None:
        os.utime(path, ns=(0, at_ns))


def of_group(folder: Path, ranks: str, waiting: tuple[int, ...], **others: int) -> None:
    """Dumps of a group's ranks that wait in operation 4, and of others that entered so many."""
    for rank in (*waiting, *(int(name.removeprefix("r")) for name in others)):
        content = dump_of(others.get(f"r{rank}", 6), completed=4)
        content["pg_config"]["0"]["ranks"] = ranks
        write(folder, rank, content)
