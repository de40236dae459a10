"""What is left of a job: a folder of traces, or the rows that hindmost records itself; each on its own clocks."""

import json
import tempfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hindmost_collector.recordings.tables import concatenate, table
from hindmost_judge.model import GPU_TIME, Run
from hindmost_judge.model import Job as RecordedJob

from two_lanes import programs
from two_lanes.job import Array, Job
from two_lanes.machine import History, Step

#: Unix time at which a job begins, ns.
EPOCH = 1_790_000_000_000_000_000
NS = 1e6
#: Of a rank in a step, where work is even.
SAMPLES = 4096
#: Steps of which hindmost's probe times the GPU and reads the CPU time; the first few, then one of many.
TIMED_FIRST, TIMED_EVERY = 6, 64
_FUNCTIONS = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AlltoAll",
    "send": "Send",
    "recv": "Recv",
}


class Clocks:
    """Every rank's host and GPU: ns of the job's begin on it, and by how much it runs faster."""

    def __init__(self, job: Job) -> None:
        random = np.random.default_rng([job.seed, 0x434C4F43])
        nodes = np.arange(job.ranks) // 8
        host = random.normal(0, 0.2e6, nodes[-1] + 1)[nodes]
        self._offset = {"host": EPOCH + host, "gpu": EPOCH + host + random.uniform(0.5e6, 3e6, job.ranks)}
        self._rate = {"host": np.zeros(job.ranks), "gpu": random.normal(0, 5e-6, job.ranks)}

    def read(self, lane: str, ranks: Array, ms: Array) -> Array:
        """Ns that these ranks' clocks show at these times."""
        offset, rate = self._offset[lane][ranks], self._rate[lane][ranks]
        return np.asarray(np.rint(ms * NS * (1 + rate)).astype(np.int64) + np.rint(offset).astype(np.int64))


def recorded(job: Job, history: History, work: Array) -> Run:
    """The run as hindmost reads it; ``work`` [S, R] is counted in samples."""
    if job.written == "run":
        return _rows(job, history, work)
    from hindmost_collector.recordings.load import load  # noqa: PLC0415 - its formats need packages that judging does not

    with tempfile.TemporaryDirectory() as folder:
        _traces(job, history, Path(folder))
        return load(folder)


@cache
def _communicator(kind: str, group: int) -> int:
    return zlib.crc32(kind.encode()) << 16 | group


def _inside(groups: Array) -> Array:
    """[R] the place of each rank in its group."""
    place = np.zeros(len(groups), np.int64)
    for group in np.unique(groups):
        place[groups == group] = np.arange((groups == group).sum())
    return place


# --- traces -----------------------------------------------------------------------------------------------------------


def _traces(job: Job, history: History, folder: Path) -> None:
    """``prof.PID.csv`` and ``steps.RANK.jsonl`` of each rank."""
    clocks = Clocks(job)
    lines: list[list[tuple[int, str]]] = [[] for _ in range(job.ranks)]
    groups = programs.members(job) | {"p2p": np.zeros(job.ranks, np.int64)}
    inside = {kind: _inside(group) for kind, group in groups.items()}
    counts: dict[tuple[str, str, int], int] = {}
    random = np.random.default_rng([job.seed, 0x4C4F47])
    for call in history.calls:
        host, start, end = (
            clocks.read(lane, call.ranks, times)
            for lane, times in (("host", call.enqueued), ("gpu", call.start), ("gpu", call.end))
        )
        after = (20_000 * (1 + random.exponential(2, len(host)))).astype(int)
        logged = clocks.read("host", call.ranks, call.end) + after
        all_times = (one.tolist() for one in (call.ranks, host, start, end, np.maximum(logged, host + 9001)))
        for at, (rank, enqueued, began, ended, known) in enumerate(zip(*all_times, strict=True)):
            key = (call.kind, call.op, rank)
            count = counts[key] = counts.get(key, -1) + 1
            seq = count if call.peers is None else int(inside[call.kind][call.peers[at]])
            algorithm = "RING" if call.peers is None else "P2P"
            comm = _communicator(call.kind, int(groups[call.kind][rank]))
            what = f"{comm:x},{inside[call.kind][rank]},{seq},{_FUNCTIONS[call.op]},{call.size},{algorithm},SIMPLE,24"
            lines[rank].append((enqueued, f"{what},{enqueued},{enqueued + 9000},{began},{ended},{known}\n"))
    for rank, mine in enumerate(lines):
        mine.sort(key=lambda one: one[0])
        (folder / f"prof.{4000 + rank}.csv").write_text("".join(line for _, line in mine))
    steps: list[list[str]] = [[] for _ in range(job.ranks)]
    for step in history.steps:
        if step.kind != "train":
            continue
        begin, fetched, issued = (
            clocks.read("host", step.ranks, times)
            for times in (step.begin, np.maximum(step.fetched, step.begin), step.issued)
        )
        gpu = {name: np.broadcast_to(took, len(step.ranks)) for name, took in step.gpu.items()}
        for at, rank in enumerate(step.ranks.tolist()):
            line: dict[str, Any] = {"step": step.step}
            line |= {"t_start": int(begin[at]), "t_data": int(fetched[at]), "t_end": int(issued[at])}
            line |= {
                short: round(float(gpu[name][at]), 4)
                for short, name in (("fwd_ms", "forward"), ("bwd_ms", "backward"), ("opt_ms", "optimizer"))
                if name in gpu
            }
            steps[rank].append(json.dumps(line) + "\n")
    for rank, text in enumerate(steps):
        (folder / f"steps.{rank}.jsonl").write_text("".join(text))


# --- rows of hindmost -------------------------------------------------------------------------------------------------


def _rows(job: Job, history: History, work: Array) -> Run:
    clocks, mpi = Clocks(job), job.shape == "mpi"
    rank = np.arange(job.ranks)
    groups = programs.members(job)
    members = [
        table(
            "communicators",
            comm=np.array([_communicator(kind, one) for one in group.tolist()], np.uint64),
            rank=rank,
            rank_in=_inside(group),
            size=np.bincount(group)[group],
            name="MPI_COMM_WORLD" if mpi else "nccl",
        )
        for kind, group in groups.items()
        if kind == "world" or any(call.kind == kind for call in history.calls)
    ]
    return Run(
        job=RecordedJob(id=f"lanes-{job.seed}", world_size=job.ranks, nodes=-(-job.ranks // 8), exit_code=0),
        ranks=table(
            "ranks",
            rank=rank,
            world_size=job.ranks,
            local_rank=rank % 8,
            node=[f"node{one // 8}" for one in rank.tolist()],
            pid=4000 + rank,
            gpu_uuid="" if mpi else [f"GPU-{one:08x}" for one in rank.tolist()],
            framework="mpi4py" if mpi else "torch",
            start_ns=EPOCH,
        ),
        steps=table("steps", rank=rank[:0])
        if mpi
        else _by_rank("steps", [_step(clocks, s, work) for s in history.steps]),
        collectives=_by_rank("collectives", _calls(job, clocks, history)),
        communicators=concatenate("communicators", members),
        metrics=_metrics(job, clocks, history),
    )


def _by_rank(name: str, parts: list[dict[str, Any]]) -> dict[str, Array]:
    """A table of parts, whose columns are arrays or one value for all rows; ordered by rank."""
    names = dict.fromkeys(column for part in parts for column in part)
    each = [(part, len(part["rank"])) for part in parts]
    columns = {
        column: np.concatenate([np.broadcast_to(part.get(column, -1), count) for part, count in each])
        for column in names
    }
    whole = table(name, **columns)
    order = np.argsort(whole["rank"], kind="stable")
    return {column: values[order] for column, values in whole.items()}


def _step(clocks: Clocks, step: Step, work: Array) -> dict[str, Any]:
    """A row of each rank; how long phases took on hosts, what these waited included."""
    begin, end = (clocks.read("host", step.ranks, times) for times in (step.begin, step.end))
    known = {f"{name}_ns": np.rint(took * NS) for name, took in step.phases.items()}
    if step.kind == "eval":
        known = {name: took for name, took in known.items() if name in ("input_ns", "forward_ns")}
    timed = step.kind == "train" and (step.step < TIMED_FIRST or step.step % TIMED_EVERY == 0)
    if timed:
        waited = sum(step.waited.values())
        busy = step.end - step.begin - waited - step.queued
        known |= {f"gpu_{name}_ns": np.rint(took * NS) for name, took in step.gpu.items()}
        known |= {"cpu_ns": np.rint(busy * NS), "runqueue_ns": np.rint(step.queued * NS)}
    return {
        "rank": step.ranks,
        "step": step.step,
        "kind": step.kind,
        "start_ns": begin,
        "duration_ns": end - begin,
        "work": np.rint(SAMPLES * work[step.step, step.ranks]),
        **known,
    }


def _calls(job: Job, clocks: Clocks, history: History) -> list[dict[str, Any]]:
    groups, numbers = programs.members(job) | {"p2p": np.zeros(job.ranks, np.int64)}, dict[tuple[Any, ...], int]()
    lane = "host" if job.shape == "mpi" else "gpu"
    found, left = [], np.full(job.ranks, np.nan)
    for call in history.calls:
        first = int(call.ranks[0])
        key = (call.kind, first) if call.peers is None else (call.op, first, int(call.peers[0]))
        seq = numbers[key] = numbers.get(key, -1) + 1
        start, end = (clocks.read(lane, call.ranks, times) for times in (call.start, call.end))
        one = {
            "rank": call.ranks,
            "comm": np.array([_communicator(call.kind, g) for g in groups[call.kind][call.ranks].tolist()], np.uint64),
            "seq": seq,
            "op": call.op,
            "start_ns": start,
            "duration_ns": end - start,
            "bytes": call.size,
            "flags": 0 if lane == "host" else GPU_TIME,
            "peer": -1 if call.peers is None else call.peers,
        }
        if lane == "host":
            own = (call.start - left[call.ranks]) * NS
            one |= {"self_ns": np.where(np.isnan(own), -1, np.rint(np.nan_to_num(own)))}
            one |= {"cpu_ns": np.where(np.isnan(own), -1, np.rint(0.99 * np.nan_to_num(own))), "runqueue_ns": 0}
            left[call.ranks] = call.end
        found.append(one)
    return found


def _metrics(job: Job, clocks: Clocks, history: History) -> dict[str, Array]:
    """CPU and run-queue seconds of each process, once a second."""
    last = max(float(step.end.max()) for step in history.steps)
    at = np.arange(0.0, last, 1000.0)
    parts = []
    of_stages: dict[int, list[Step]] = {}
    for step in history.steps:
        of_stages.setdefault(int(step.ranks[0]), []).append(step)
    times = {}
    for steps in of_stages.values():
        ends, begins = np.array([one.end for one in steps]), np.array([one.begin for one in steps])
        queued = np.array([one.queued for one in steps])
        busy = ends - begins - np.array([sum(one.waited.values()) for one in steps]) - queued
        times |= {rank: (ends[:, i], busy[:, i], queued[:, i]) for i, rank in enumerate(steps[0].ranks.tolist())}
    for rank in range(job.ranks):
        ends, busy, queued = times[rank]
        for name, spent in (("cpu", busy), ("runqueue", queued)):
            parts.append(
                table(
                    "metrics",
                    node=np.full(len(at), f"node{rank // 8}"),
                    name=f"hindmost_process_{name}_seconds_total",
                    labels=json.dumps({"job": f"lanes-{job.seed}", "rank": str(rank)}, separators=(",", ":")),
                    time_ns=clocks.read("host", np.full(len(at), rank), at),
                    value=np.interp(at, ends, np.cumsum(spent)) / 1e3,
                )
            )
    return concatenate("metrics", parts)
