"""Kineto / PyTorch profiler Chrome traces, one a rank, plain or gzip: NCCL kernels, profiled steps, copies.

Collectives are the NCCL kernels; a kernel belongs to the step in which the host launched it (the launch has the same
``correlation``). Host and GPU times are of one clock, which the profiler keeps; kernels run beside the host all the
same, so that how long they took says what a GPU waited, and the marks of a host's step not when its GPU was in it.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost.errors import UsageError

from hindmost_collector.model import GPU_TIME, PROFILED, UNMEASURED, Job, Run, Table
from hindmost_collector.sources import damaged, one_job
from hindmost_collector.sources.columns import concatenate, table
from hindmost_collector.sources.json_stream import events
from hindmost_collector.sources.operations import operation
from hindmost_collector.sources.process_groups import ITEM_BYTES, ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hindmost_collector.sources.files import Sample

NAME = "PyTorch profiler (Kineto) Chrome traces"

#: NCCL kernels, and launches, kept of one rank.
MAX_EVENTS = 2_000_000
_KERNEL = re.compile(r"^nccl(?:Dev)?Kernel_(?P<op>[A-Za-z]+)")
_STEP = re.compile(r"^ProfilerStep#(\d{1,15})$")
_RANK = re.compile(r"(\d+)(?:\.\w+)*$")
_NO_STEP = np.iinfo(np.int64).min


def recognises(sample: Sample) -> bool:
    """Whether it begins as the PyTorch profiler's export does."""
    head = sample.head
    return (
        head.lstrip()[:1] == b"{"
        and b'"schemaVersion"' in head
        and (b'"deviceProperties"' in head or b'"traceEvents"' in head or b'"distributedInfo"' in head)
    )


@dataclass
class _Trace:
    """What is kept of one rank's trace. Times are us of the trace."""

    path: Path
    beside: dict[str, Any] = field(default_factory=dict)
    kernels: list[tuple[float, float, str, int, int, int]] = field(default_factory=list)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    spans: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    launched_id: array[int] = field(default_factory=lambda: array("q"))
    launched_at: array[float] = field(default_factory=lambda: array("d"))
    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    cut: bool = False

    def rank(self) -> int:
        info = self.beside.get("distributedInfo")
        rank = info.get("rank") if isinstance(info, dict) else None
        found = _RANK.search(self.path.name)
        if isinstance(rank, int):
            return rank
        if found is None:
            raise UsageError(f"{self.path}: whose trace is this? it has no distributedInfo; name it trace.RANK.json.gz")
        return int(found[1])

    def nanoseconds(self, microseconds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        base = self.beside.get("baseTimeNanoseconds")
        since: np.ndarray[Any, Any] = np.rint(microseconds * 1000).astype(np.int64)
        since += base if isinstance(base, int) and abs(base) < 1 << 62 else 0
        return since


def load(files: Sequence[Path]) -> Run:
    """All ranks' profiled steps and collectives; what lies outside the profiled steps is left out."""
    read, left_out = damaged.whole(files, _read)
    traces = {trace.rank(): trace for trace in read}
    if len(traces) < len(read):
        raise UsageError(f"{files[0].parent}: two {NAME} of one rank; name the folder of one job")
    _refuse_contradictions(f"{files[0].parent}: {NAME}", traces)
    size = max(max(traces) + 1, *(_world_size(trace) for trace in traces.values()))
    ordered = sorted(traces.items())
    return Run(
        job=Job(id="", world_size=size, source=NAME),
        ranks=table("ranks", rank=[rank for rank, _ in ordered], world_size=size, framework="torch"),
        steps=concatenate("steps", [_steps(rank, trace) for rank, trace in ordered]),
        collectives=concatenate("collectives", [_collectives(rank, trace) for rank, trace in ordered]),
        communicators=concatenate("communicators", [_communicators(rank, trace) for rank, trace in ordered]),
        notes=(*left_out, *_notes(traces)),
    )


def _refuse_contradictions(where: str, traces: dict[int, _Trace]) -> None:
    steps = {f"rank {rank}": (trace, *_windows(trace)) for rank, trace in sorted(traces.items())}
    times = {name: trace.nanoseconds(at) for name, (trace, _, at, _) in steps.items()}
    one_job.refuse_twins(where, times)
    one_job.refuse_other_times(where, times)
    one_job.refuse_other_steps(where, {name: number for name, (_, number, _, _) in steps.items()})
    sizes = sorted({_world_size(trace) for trace in traces.values()} - {0})
    if len(sizes) > 1:
        told = " and ".join(map(str, sizes[:2]))
        raise UsageError(f"{where}: of jobs of {told} ranks; name the folder of one job")


def _notes(traces: dict[int, _Trace]) -> tuple[str, ...]:
    steps = {step for trace in traces.values() for step in trace.steps}
    notes = []
    if not steps:
        notes = ["The traces mark no steps (call profiler.step() in the loop): operations are matched by their order."]
    notes += [f"{trace.path.name}: cut off, read up to there." for trace in traces.values() if "torn" in trace.beside]
    torn = {trace.path.name: trace.beside["skipped"] for trace in traces.values() if "skipped" in trace.beside}
    notes += [f"{name}: {count} torn event{'s' * (count > 1)} left out." for name, count in torn.items()]
    notes += [f"{trace.path.name}: only the first {MAX_EVENTS:,} operations." for trace in traces.values() if trace.cut]
    return tuple(notes)


def _world_size(trace: _Trace) -> int:
    info = trace.beside.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return size if isinstance(size, int) else 0


def _read(path: Path) -> _Trace:
    trace = _Trace(path)
    for event in events(path, trace.beside):
        if event.get("ph") != "X":
            continue
        start, took = event.get("ts"), event.get("dur")
        if isinstance(start, int | float) and isinstance(took, int | float):
            _take(trace, event, float(start), float(took))
    return trace


def _take(trace: _Trace, event: dict[str, Any], start: float, took: float) -> None:
    kind, name = event.get("cat"), str(event.get("name", ""))
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    if kind == "kernel" and (found := _KERNEL.match(name)):
        _take_kernel(trace, found["op"], args, start, took)
    elif kind in ("cuda_runtime", "cuda_driver") and "LaunchKernel" in name:
        correlation = args.get("correlation")
        if isinstance(correlation, int) and len(trace.launched_id) < MAX_EVENTS and abs(correlation) < 1 << 62:
            trace.launched_id.append(correlation)
            trace.launched_at.append(start)
    elif kind == "user_annotation" and (step := _STEP.match(name)):
        trace.steps[int(step[1])] = (start, start + took)
    elif kind == "user_annotation" and name.startswith("enumerate(DataLoader)"):
        trace.spans.setdefault("input", []).append((start, took))
    elif kind == "gpu_user_annotation" or (kind == "gpu_memcpy" and "HtoD" in name):
        phase = _phase(name)
        if phase and len(trace.spans.setdefault(phase, [])) < MAX_EVENTS:
            trace.spans[phase].append((start, took))


def _phase(name: str) -> str:
    if "HtoD" in name:
        return "h2d"
    return "forward" if name.endswith(".forward") else "optimizer" if name.startswith("Optimizer.step") else ""


def _take_kernel(trace: _Trace, op: str, args: dict[str, Any], start: float, took: float) -> None:
    if len(trace.kernels) >= MAX_EVENTS:
        trace.cut = True
        return
    correlation = args.get("correlation")
    elements, item = args.get("In msg nelems"), ITEM_BYTES.get(str(args.get("dtype")), 0)
    size = elements * item if isinstance(elements, int) and item and abs(elements) < 1 << 56 else UNMEASURED
    group = args.get("Process Group Name")
    identity = 0
    if isinstance(group, str):
        known = trace.groups.setdefault(group, ProcessGroup.named(group, args.get("Process Group Ranks")))
        identity = known.comm
    known_id = correlation if isinstance(correlation, int) and abs(correlation) < 1 << 62 else -1
    trace.kernels.append((start, took, operation(op), known_id, size, identity))


def _windows(trace: _Trace) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The profiled steps in order: number, start, end. A step lasts until the next one starts."""
    steps = sorted((start, end, number) for number, (start, end) in trace.steps.items())
    number = np.array([step[2] for step in steps], dtype=np.int64)
    start = np.array([step[0] for step in steps])
    return number, start, np.append(start[1:], [step[1] for step in steps[-1:]])


def _step_of(trace: _Trace, times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    number, start, end = _windows(trace)
    if not len(number):
        return np.zeros(len(times), dtype=np.int64)
    at = np.searchsorted(start, times, side="right") - 1
    inside = (at >= 0) & (times < end[at])
    return np.where(inside, number[at], _NO_STEP)


def _collectives(rank: int, trace: _Trace) -> Table:
    if not trace.kernels:
        return table("collectives", rank=[])
    start, took, op, correlation, size, comm = (np.array(column) for column in zip(*trace.kernels, strict=True))
    launched = _launched(trace, correlation, start)
    step = _step_of(trace, launched)
    comm = comm.astype(np.uint64)
    only = _groups(trace)
    comm[comm == 0] = only[0].comm if len(only) == 1 else 0
    order = np.lexsort((launched, step, comm))
    order = order[step[order] != _NO_STEP]
    return table(
        "collectives",
        rank=np.full(len(order), rank),
        comm=comm[order],
        seq=_numbers(comm[order], step[order]),
        op=op[order],
        start_ns=trace.nanoseconds(start[order]),
        duration_ns=np.rint(took[order] * 1000),
        bytes=size[order],
        flags=GPU_TIME,
        step=step[order] if trace.steps else UNMEASURED,
        enqueue_ns=trace.nanoseconds(launched[order]),
    )


def _launched(trace: _Trace, correlation: np.ndarray[Any, Any], start: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """When the host launched each kernel; long ago where that was before the profiler began.

    A trace without any launch (of GPU activity only) gives the kernels' own start.
    """
    ids, at = np.array(trace.launched_id, dtype=np.int64), np.array(trace.launched_at)
    if not len(ids):
        return start
    order = np.argsort(ids, kind="stable")
    place = order[np.minimum(np.searchsorted(ids, correlation, sorter=order), len(ids) - 1)]
    when: np.ndarray[Any, Any] = np.where(ids[place] == correlation, at[place], -np.inf)
    return when


def _numbers(comm: np.ndarray[Any, Any], step: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Sequence numbers alike on all ranks though traces begin at different operations: step and place in it."""
    first = (
        np.flatnonzero(np.diff(step, prepend=_NO_STEP) | (np.diff(comm, prepend=comm[:1]) != 0)) if len(step) else step
    )
    place = np.arange(len(step)) - np.repeat(first, np.diff(first, append=len(step)))
    number: np.ndarray[Any, Any] = step * 1_000_000 + place
    return number


def _groups(trace: _Trace) -> list[ProcessGroup]:
    """The process groups of the trace's header, and those that kernels name."""
    info = trace.beside.get("distributedInfo")
    config = info.get("pg_config") if isinstance(info, dict) else None
    listed = [one for one in config if isinstance(one, dict)] if isinstance(config, list) else []
    known = {str(one.get("pg_name")): ProcessGroup.named(str(one.get("pg_name")), one.get("ranks")) for one in listed}
    return list({**trace.groups, **known}.values())


def _communicators(rank: int, trace: _Trace) -> Table:
    mine = [group for group in _groups(trace) if rank in group.ranks]
    return table(
        "communicators",
        comm=np.array([group.comm for group in mine], dtype=np.uint64),
        rank=[rank] * len(mine),
        rank_in=[group.ranks.index(rank) for group in mine],
        size=[len(group.ranks) for group in mine],
        name=[group.name for group in mine],
    )


def _steps(rank: int, trace: _Trace) -> Table:
    number, start, end = _windows(trace)
    phases = {f"{name}_ns": _in_steps(trace, name, number) for name in ("input", "h2d")}
    phases |= _on_gpu(trace, len(number))
    return table(
        "steps",
        rank=np.full(len(number), rank),
        step=number,
        kind=PROFILED,
        start_ns=trace.nanoseconds(start),
        duration_ns=np.rint((end - start) * 1000),
        **phases,
    )


def _in_steps(trace: _Trace, phase: str, number: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """ns of a phase in each step by its spans' starts; -1 where the trace does not mark it."""
    spans = sorted(trace.spans.get(phase, []))
    if not spans:
        return np.full(len(number), UNMEASURED)
    step = _step_of(trace, np.array([start for start, _ in spans]))
    took = np.array([took for _, took in spans])
    return np.array([np.rint(took[step == one].sum() * 1000) for one in number])


def _on_gpu(trace: _Trace, steps: int) -> dict[str, np.ndarray[Any, Any]]:
    """GPU ns of forward, optimizer and what lies between them, where each step has one of each, in their order."""
    forward, optimizer = (np.array(sorted(trace.spans.get(name, []))) for name in ("forward", "optimizer"))
    if len(forward) != steps or len(optimizer) != steps or not steps:
        return {}
    between = optimizer[:, 0] - forward.sum(axis=1)
    columns = {"gpu_forward_ns": forward[:, 1], "gpu_optimizer_ns": optimizer[:, 1]}
    if (between >= 0).all():
        columns["gpu_backward_ns"] = between
    return {name: np.rint(values * 1000) for name, values in columns.items()}
