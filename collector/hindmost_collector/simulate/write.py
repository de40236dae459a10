"""A simulated run as files: a run directory, or what a profiler plugin, a step log, NVML and Flight Recorder leave."""

import json
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hindmost.errors import HindmostError, UsageError
from hindmost_judge.model import Run, Table, rows

from hindmost_collector.recordings.rank_mapping import counted
from hindmost_collector.recordings.tables import select, table
from hindmost_collector.simulate import engine
from hindmost_collector.simulate.engine import draw
from hindmost_collector.simulate.record import pieces
from hindmost_collector.simulate.scenario import Scenario
from hindmost_collector.store import schema
from hindmost_collector.store.parquet.store import ParquetStore

#: Collectives that are made and written at a time.
ROWS_AT_ONCE = 1_000_000


def write(run: Run, folder: Path, kind: str) -> None:
    """Write the recording into a folder that is new or empty. Raises :class:`HindmostError` where that cannot be."""
    with _into(folder):
        run_directory([run], folder, over=True) if kind == "run" else trace_folder(run, folder)


def simulated(scenario: Scenario, folder: Path) -> None:
    """Simulate into a run directory, some steps at a time: of a large job, memory does not hold every row at once."""
    with _into(folder):
        timing = engine.run(scenario, draw(scenario), scenario.faults)
        run_directory(pieces(timing, ROWS_AT_ONCE), folder, over=True)


@contextmanager
def _into(folder: Path) -> Iterator[None]:
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder}: not empty; name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise HindmostError(f"cannot write {folder}: {error.strerror or error}") from error


def run_directory(parts: Iterable[Run], folder: Path, *, over: bool = False) -> None:
    """As a collector would have kept it: segments and ``meta.json``; a run whole, or in ``parts`` that follow.

    No advice looks for processes of a job that is ``over``: they never were. One that hung was cancelled.
    """
    store, ended_ns, exit_code = ParquetStore(folder, single=True), 0, 0
    for run in parts:
        job = run.job.id
        tables = {name: part for name, part in run.tables().items() if rows(part)}
        tables |= {"rank_states": _states(run)} if rows(run.in_flight) else {}
        store.write({(job, name): [_arrow(name, part)] for name, part in tables.items()}, {})
        ended_ns, exit_code = max(ended_ns, _last_ns(run)), -signal.SIGTERM if rows(run.in_flight) else exit_code
    end = {"ended_ns": ended_ns, "exit_code": exit_code} if over else {}
    facts = {"command": "hindmost simulate", "world_size": run.job.world_size, **end}
    store.write_meta(job, {"job_id": job, **facts})
    store.close()


def _arrow(name: str, part: Table) -> pa.Table:
    wanted = schema.arrow_schema(name)
    return pa.table({field.name: pa.array(part[field.name]).cast(field.type) for field in wanted}, schema=wanted)


def _last_ns(run: Run) -> int:
    """When the last was seen of the ranks."""
    ends = [part["start_ns"] + part["duration_ns"] for part in (run.steps, run.collectives)]
    return int(np.concatenate([*ends, run.in_flight["observed_ns"]]).max(initial=0))


def _states(run: Run) -> Table:
    """The ranks still ran when their operations in flight were last looked at."""
    rank, first = np.unique(run.in_flight["rank"], return_index=True)
    return table("rank_states", rank=rank, time_ns=run.in_flight["observed_ns"][first], life=0)


#: Two files a rank: beyond it a folder is no convenience.
MAX_RANKS = 1024
#: Faults whose cause these files show. For any other fault they show the rank, the onset and the cost only: they hold
#: no GPU processes, tokens, run-queue delay, garbage collections, checkpoints or node pressure.
CAUSE_SHOWN = ("gpu_throttle", "input", "network", "hang", "desync")
_FUNCTIONS = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "send": "Send",
    "recv": "Recv",
}
#: Column of ``nvml.csv`` to metric and the factor to its base unit.
_SAMPLED = {
    "util": ("hindmost_gpu_utilization_ratio", 0.01),
    "sm_mhz": ("hindmost_gpu_sm_clock_hertz", 1e6),
    "reasons": ("hindmost_gpu_clocks_event_reasons", 1.0),
}


def trace_folder(run: Run, folder: Path) -> None:
    """``prof.PID.csv`` and ``steps.RANK.jsonl`` of every rank, ``nvml.csv`` of their GPUs; of a job that stopped the
    Flight Recorder's dumps. All of it is what :mod:`hindmost_collector.recordings.load` reads.
    """
    size = rows(run.ranks)
    if size > MAX_RANKS:
        raise UsageError(f"{size} ranks as traces are {2 * size} files: at most {MAX_RANKS} ranks, or --format run")
    inside = {
        (int(comm), int(rank)): int(place)
        for comm, rank, place in zip(*(run.communicators[name] for name in ("comm", "rank", "rank_in")), strict=True)
    }
    for rank, pid in zip(run.ranks["rank"].tolist(), run.ranks["pid"].tolist(), strict=True):
        steps = _of(run.steps, rank)
        (folder / f"steps.{rank}.jsonl").write_text("".join(_step_lines(steps)))
        operations = _of(run.collectives, rank)
        (folder / f"prof.{pid}.csv").write_text("".join(_operation_lines(operations, steps, rank, inside)))
        if rows(run.in_flight):
            (folder / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(_dump(run, rank, operations, steps)))
    if rows(run.metrics):
        (folder / "nvml.csv").write_text("".join(_samples(run)))


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


#: A proxy thread sees that a kernel has ended, and logs it, some time after.
_LOGGED_NS = 50_000


def _operation_lines(c: Table, steps: Table, rank: int, inside: dict[tuple[int, int], int]) -> list[str]:
    """Enqueued within their step, in order; numbers count per communicator and function."""
    number = counted([c["comm"], c["op"]])
    enqueued = _enqueued(c, steps)
    columns = (c[name].tolist() for name in ("comm", "op", "bytes", "start_ns", "duration_ns", "peer"))
    lines = []
    for count, host, (comm, op, size, start, took, peer) in zip(
        number.tolist(), enqueued, zip(*columns, strict=True), strict=True
    ):
        kind, seq = ("P2P", peer) if peer >= 0 else ("RING", count)
        who = f"{comm:x},{inside.get((comm, rank), rank)},{seq},{_FUNCTIONS[op]},{size},{kind},SIMPLE,24"
        logged = max(host + 2, start + took + _LOGGED_NS)
        lines.append(f"{who},{host},{host + 1},{start},{start + took},{logged}\n")
    return lines


def _enqueued(c: Table, steps: Table) -> list[int]:
    """When the host enqueued each operation: in its step, once the input was there, one after the other."""
    began = dict(zip(steps["step"].tolist(), (steps["start_ns"] + steps["input_ns"]).tolist(), strict=True))
    return [began[step] + place % 1000 for place, step in enumerate(c["step"].tolist())]


def _dump(run: Run, rank: int, operations: Table, steps: Table) -> dict[str, Any]:
    """What the Flight Recorder of a rank holds: the collectives of its last step, and what of the next is open."""
    table, groups = run.communicators, {}
    for comm in table["comm"][table["rank"] == rank].tolist():
        indices = np.flatnonzero(table["comm"] == comm)
        members = table["rank"][indices[np.argsort(table["rank_in"][indices])]].tolist()
        groups[f"{comm:x}"] = {"name": f"{comm:x}", "desc": str(table["name"][indices[0]]), "ranks": str(members)}
    last = (operations["step"] == operations["step"].max(initial=-1)) & (operations["peer"] < 0)
    ended = zip(
        *(operations[name][last].tolist() for name in ("comm", "seq", "op")),
        np.array(_enqueued(operations, steps), np.int64)[last].tolist(),
        strict=True,
    )
    mine = run.in_flight["rank"] == rank
    left = zip(*(run.in_flight[name][mine].tolist() for name in ("comm", "seq", "name", "start_ns")), strict=True)
    entries = [_entry(groups, one, "completed") for one in ended] + [_entry(groups, one, "scheduled") for one in left]
    return {"version": "2.10", "pg_config": groups, "entries": entries}


def _entry(groups: dict[str, Any], operation: tuple[int, int, str, int], state: str) -> dict[str, Any]:
    comm, seq, op, created = operation
    name = f"{comm:x}"
    return {
        "process_group": [name, groups[name]["desc"]],
        "collective_seq_id": seq + 1,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": created,
        "state": state,
        "is_p2p": False,
    }


def _samples(run: Run) -> list[str]:
    """Every GPU's samples, the GPU called by the number of its rank."""
    table, index = run.metrics, dict(zip(run.ranks["gpu_uuid"].tolist(), run.ranks["rank"].tolist(), strict=True))
    rows_of = {name: np.flatnonzero(table["name"] == name) for name, _ in _SAMPLED.values()}
    first = next(iter(rows_of.values()))
    gpus = [index[json.loads(label)["gpu_uuid"]] for label in table["labels"][first].tolist()]
    columns = [(table["value"][rows_of[name]] / factor).round(1) for name, factor in _SAMPLED.values()]
    found = [f"t_ns,gpu,{','.join(_SAMPLED)}\n"]
    for time, gpu, *values in zip(table["time_ns"][first].tolist(), gpus, *columns, strict=True):
        found.append(f"{time},{gpu},{','.join(f'{value:g}' for value in values)}\n")
    return found
