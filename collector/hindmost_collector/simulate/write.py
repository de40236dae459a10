"""A simulated run as files: a run directory, or the trace folder that an NCCL profiler plugin and a step log leave."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from hindmost.errors import HindmostError, UsageError

from hindmost_collector.model import UNMEASURED, Run, Table, rows
from hindmost_collector.sources.columns import select
from hindmost_collector.sources.processes import counted
from hindmost_collector.store import schema
from hindmost_collector.store.parquet import ParquetStore

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = ("run", "traces")
#: Two files a rank: beyond it a folder is no convenience.
MAX_TRACE_RANKS = 1024
_FUNCTIONS = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "send": "Send",
    "recv": "Recv",
}


def write(run: Run, folder: Path, kind: str) -> None:
    """Write the recording into a folder that is new or empty. Raises :class:`HindmostError` where that cannot be."""
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder}: not empty; name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        run_directory(run, folder) if kind == "run" else trace_folder(run, folder)
    except OSError as error:
        raise HindmostError(f"cannot write {folder}: {error.strerror or error}") from error


def run_directory(run: Run, folder: Path) -> None:
    """As a collector would have kept it: segments and ``meta.json``."""
    store = ParquetStore(folder, single=True)
    job = run.job.id
    tables = {name: part for name, part in run.tables().items() if rows(part)}
    tables |= {"rank_states": _states(run)} if rows(run.in_flight) else {}
    store.write({(job, name): [_arrow(name, part)] for name, part in tables.items()}, {})
    store.write_meta(job, {"job_id": job, "command": "hindmost simulate", "world_size": run.job.world_size})


def _arrow(name: str, part: Table) -> pa.Table:
    wanted = schema.arrow_schema(name)
    return pa.table({field.name: pa.array(part[field.name]).cast(field.type) for field in wanted}, schema=wanted)


def _states(run: Run) -> Table:
    """The ranks still ran when their operations in flight were last looked at."""
    rank, first = np.unique(run.in_flight["rank"], return_index=True)
    unknown = np.full(len(rank), UNMEASURED)
    seen = run.in_flight["observed_ns"][first]
    return {"rank": rank, "time_ns": seen, "life": unknown * 0, "events_total": unknown, "events_lost_total": unknown}


def trace_folder(run: Run, folder: Path) -> None:
    """``prof.PID.csv`` and ``steps.RANK.jsonl`` of every rank; what :mod:`hindmost_collector.sources` reads."""
    size = rows(run.ranks)
    if size > MAX_TRACE_RANKS:
        raise UsageError(
            f"{size} ranks as traces are {2 * size} files: at most {MAX_TRACE_RANKS} ranks, or --format run"
        )
    inside = {
        (int(comm), int(rank)): int(place)
        for comm, rank, place in zip(*(run.communicators[name] for name in ("comm", "rank", "rank_in")), strict=True)
    }
    for rank, pid in zip(run.ranks["rank"].tolist(), run.ranks["pid"].tolist(), strict=True):
        steps = _of(run.steps, rank)
        (folder / f"steps.{rank}.jsonl").write_text("".join(_step_lines(steps)))
        operations = _of(run.collectives, rank)
        (folder / f"prof.{pid}.csv").write_text("".join(_operation_lines(operations, steps, rank, inside)))


def _of(part: Table, rank: int) -> Table:
    mine = np.flatnonzero(part["rank"] == rank)
    return select(part, mine[np.argsort(part["start_ns"][mine], kind="stable")])


def _step_lines(steps: Table) -> list[str]:
    names = ("step", "start_ns", "input_ns", "duration_ns", "gpu_forward_ns", "gpu_backward_ns", "gpu_optimizer_ns")
    lines = []
    for step, start, waited, took, *gpu in zip(*(steps[name].tolist() for name in names), strict=True):
        times = {"step": step, "t_start": start, "t_data": start + waited, "t_end": start + took}
        lines.append(
            json.dumps(times | dict(zip(("fwd_ms", "bwd_ms", "opt_ms"), (ns / 1e6 for ns in gpu), strict=True)))
        )
    return [line + "\n" for line in lines]


def _operation_lines(c: Table, steps: Table, rank: int, inside: dict[tuple[int, int], int]) -> list[str]:
    """Enqueued within their step, in order; numbers count per communicator and function."""
    number = counted([c["comm"], c["op"]])
    began = dict(zip(steps["step"].tolist(), (steps["start_ns"] + steps["input_ns"]).tolist(), strict=True))
    columns = (c[name].tolist() for name in ("comm", "op", "bytes", "start_ns", "duration_ns", "peer", "step"))
    lines = []
    for place, (count, (comm, op, size, start, took, peer, step)) in enumerate(
        zip(number.tolist(), zip(*columns, strict=True), strict=True)
    ):
        host = began[step] + place % 1000
        kind, seq = ("P2P", peer) if peer >= 0 else ("RING", count)
        who = f"{comm:x},{inside.get((comm, rank), rank)},{seq},{_FUNCTIONS[op]},{size},{kind},SIMPLE,24"
        lines.append(f"{who},{host},{host + 1},{start},{start + took},{host + 2}\n")
    return lines
