"""Kineto / PyTorch profiler Chrome traces, one a rank, plain or gzip: NCCL kernels, profiled steps, copies.

Collectives are the NCCL kernels; a kernel belongs to the step in which the host launched it (the launch has the same
``correlation``). The profiler keeps host and GPU times on one clock. Kernels still run asynchronously: their
durations show how long a GPU waited, and the marks of a host's step do not show when its GPU was in it.

A loop that no DataLoader of PyTorch feeds fetches its batch between two steps, and nothing of that is in the trace; the
first that a step gives its GPU is the copy of that batch. Where it launches a kernel before, or meets others, the time
is not only the batch's, and unknown; where it waits for its GPU, that is no part of it.
"""

from __future__ import annotations

import contextlib
import lzma
import re
import zlib
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hindmost.errors import UsageError
from hindmost_judge.model import GPU_TIME, PROFILED, UNMEASURED, Job, Run, Table
from hindmost_judge.types import Array

from hindmost_collector.recordings import one_job
from hindmost_collector.recordings.rank_mapping import ITEM_BYTES, ProcessGroup, counted, memberships, rank_in_name
from hindmost_collector.recordings.tables import MOST_RANKS, concatenate, operation, table
from hindmost_collector.recordings.trace_files import (
    SAMPLE_BYTES,
    Sample,
    events,
    microseconds,
    open_bytes,
    read_undamaged,
)

NAME = "PyTorch profiler (Kineto) Chrome traces"
PRECEDENCE = 20

#: NCCL kernels, and launches, kept of one rank.
MAX_EVENTS = 2_000_000
#: NCCL's kernels: before 2.19, since then, and those on symmetric memory of 2.27 and later.
_KERNEL = re.compile(r"^nccl(?:Symk?)?(?:Dev)?Kernel_(?P<op>[A-Za-z]+)")
#: Collectives on the CPU, from when a rank had its part ready to the end: the profiler knows them by these names.
_ON_CPU = re.compile(r"^(?:gloo|mpi):(?P<op>\w{1,40})$")
_STEP = re.compile(r"^ProfilerStep#(\d{1,15})$")
_NO_STEP = np.iinfo(np.int64).min
_LONGEST_NAME = 64
_Thread = int | str | None


#: What of an object's other values is kept.
_WANTED = ("distributedInfo", "baseTimeNanoseconds")
#: Categories that only this profiler gives its events, those of before PyTorch 1.12 too.
_CATEGORY = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|user_annotation|python_function|cuda_runtime|cuda_driver|kernel|gpu_memcpy|gpu_memset'
    rb'|gpu_user_annotation|ac2g|fwdbwd|cpu_instant_event|Operator|Runtime|Kernel|Memcpy|Memset|async_gpu)"'
)
#: The same categories as they are called since.
_CATEGORIES = {"Operator": "cpu_op", "Runtime": "cuda_runtime", "Kernel": "kernel", "Memcpy": "gpu_memcpy"}
#: So much of an object is looked through for its events where what comes before them is long.
_LOOKED_THROUGH = 512 << 10
_KEYS = (b'"deviceProperties"', b'"traceEvents"', b'"distributedInfo"')
_BLANK = b"\xef\xbb\xbf \t\r\n"


def recognises(sample: Sample) -> bool:
    """Whether it begins as the PyTorch profiler's export does, whatever the order of its keys.

    The profiler writes ``schemaVersion`` first; what has read and written a trace may put the events first, or its own
    metadata. Events tell by their categories, where they are in an array of their own too.
    """
    if _begins_as_trace(sample.head):
        return True
    if len(sample.head) < SAMPLE_BYTES or sample.head.lstrip(_BLANK)[:1] != b"{":
        return False
    with (
        contextlib.suppress(OSError, EOFError, UsageError, zlib.error, lzma.LZMAError),
        open_bytes(sample.path) as file,
    ):
        return _begins_as_trace(file.read(_LOOKED_THROUGH))
    return False


def _begins_as_trace(head: bytes) -> bool:
    begin = head.lstrip(_BLANK)[:1]
    if begin == b"[":
        return _CATEGORY.search(head) is not None
    if begin != b"{":
        return False
    if b'"schemaVersion"' in head and any(key in head for key in _KEYS):
        return True
    at = head.find(b'"traceEvents"')
    return at >= 0 and _CATEGORY.search(head, at) is not None


@dataclass
class _Trace:
    """What is kept of one rank's trace. Times are us of the trace."""

    path: Path
    rest: dict[str, Any] = field(default_factory=dict)
    kernels: list[tuple[float, float, str, int, int, int]] = field(default_factory=list)
    on_cpu: list[tuple[float, float, str, int, int, int]] = field(default_factory=list)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    spans: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    launched_id: array[int] = field(default_factory=lambda: array("q"))
    launched_at: array[float] = field(default_factory=lambda: array("d"))
    copy_calls: dict[int, tuple[float, _Thread]] = field(default_factory=dict)
    waits: list[tuple[float, float, _Thread]] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)
    threads: dict[int, _Thread] = field(default_factory=dict)
    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    cut: bool = False

    @property
    def distributed(self) -> dict[str, Any]:
        """What its header says of the job; nothing where it has none."""
        info = self.rest.get("distributedInfo")
        return info if isinstance(info, dict) else {}

    def rank(self) -> int:
        rank = self.distributed.get("rank")
        if isinstance(rank, int) and 0 <= rank < MOST_RANKS:
            return rank
        named = rank_in_name(self.path)
        if named is None:
            raise UsageError(f"{self.path}: whose trace is this? it has no distributedInfo; name it trace.RANK.json.gz")
        return named

    def nameless(self) -> bool:
        """Whether nothing says whose trace it is, and nothing in it that there were other ranks."""
        alone = "distributedInfo" not in self.rest and not self.kernels and not self.on_cpu
        return alone and rank_in_name(self.path) is None

    def nanoseconds(self, microseconds: Array) -> Array:
        base = self.rest.get("baseTimeNanoseconds")
        since: Array = np.rint(microseconds * 1000).astype(np.int64)
        since += base if isinstance(base, int) and abs(base) < 1 << 62 else 0
        return since


def load(files: Sequence[Path]) -> Run:
    """All ranks' profiled steps and collectives; what lies outside the profiled steps is left out."""
    read, left_out = read_undamaged(files, _read)
    where = f"{files[0].parent}: {NAME}"
    if len(read) == 1 and read[0].nameless():
        read[0].rest["distributedInfo"] = {"rank": 0, "world_size": 1}  # one process, which has no process group
    ordered = sorted(((trace.rank(), trace) for trace in read), key=lambda one: (one[0], min(one[1].steps, default=0)))
    _refuse_contradictions(where, ordered)
    size = max(ordered[-1][0] + 1, *(_world_size(trace) for trace in read))
    ranks = sorted({rank for rank, _ in ordered})
    return Run(
        job=Job(id="", world_size=size, source=NAME),
        ranks=table("ranks", rank=ranks, world_size=size, framework="torch"),
        steps=concatenate("steps", [_steps(rank, trace) for rank, trace in ordered]),
        collectives=concatenate("collectives", [_collectives(rank, trace) for rank, trace in ordered]),
        communicators=_communicators(ordered),
        notes=(*left_out, *_notes(read)),
    )


def _refuse_contradictions(where: str, traces: Sequence[tuple[int, _Trace]]) -> None:
    """A rank may have several files, one a cycle of its profiler's schedule: of other steps then."""
    number, times = defaultdict[str, list[Any]](list), defaultdict[str, list[Any]](list)
    for rank, trace in traces:
        steps, start, _ = _windows(trace)
        known = np.concatenate([*number[f"rank {rank}"], np.empty(0, np.int64)])
        if number[f"rank {rank}"] and (not len(steps) or not len(known) or np.isin(steps, known).any()):
            raise UsageError(f"{where}: two traces of one rank ({rank}) and not of other steps; {one_job.REMEDY}")
        number[f"rank {rank}"].append(steps)
        times[f"rank {rank}"].append(trace.nanoseconds(start))
    begun = {name: np.concatenate(parts) for name, parts in times.items()}
    one_job.refuse_twins(where, begun)
    one_job.refuse_other_steps(where, {name: np.concatenate(parts) for name, parts in number.items()})
    sizes = sorted({_world_size(trace) for _, trace in traces} - {0})
    if len(sizes) > 1:
        both_sizes = " and ".join(map(str, sizes[:2]))
        raise UsageError(f"{where}: of jobs of {both_sizes} ranks; name the folder of one job")


def _notes(traces: Sequence[_Trace]) -> tuple[str, ...]:
    notes = []
    if not any(trace.steps for trace in traces):
        notes = ["The traces mark no steps (call profiler.step() in the loop): operations are matched by their order."]
    if any(trace.on_cpu and not trace.kernels and not _one_group(trace) for trace in traces):
        notes.append("Collectives on the CPU do not name their process group, of which there are several: left out.")
    notes += [f"{trace.path.name}: cut off, read up to there." for trace in traces if "torn" in trace.rest]
    torn = {trace.path.name: trace.rest["skipped"] for trace in traces if "skipped" in trace.rest}
    notes += [f"{name}: {count} incomplete event{'s' * (count > 1)} left out." for name, count in torn.items()]
    notes += [f"{trace.path.name}: only the first {MAX_EVENTS:,} operations." for trace in traces if trace.cut]
    return tuple(notes)


def _world_size(trace: _Trace) -> int:
    size = trace.distributed.get("world_size")
    return size if isinstance(size, int) and 0 < size < MOST_RANKS else 0


def _read(path: Path) -> _Trace:
    trace = _Trace(path)
    for event in events(path, trace.rest, _WANTED):
        if event.get("ph") != "X":
            continue
        start, took = microseconds(event.get("ts")), microseconds(event.get("dur"))
        if start is not None and took is not None and took >= 0:
            _take(trace, event, start, took)
    _name_groups_as_header(trace)
    return trace


def _name_groups_as_header(trace: _Trace) -> None:
    """Kernels' groups as the header has them: of large groups a kernel lists the first ranks alone.

    The header may come after the events, so this is done when all is read.
    """
    known = {name: group for name, group in _of_header(trace).items() if name in trace.groups}
    comms = {trace.groups[name].comm: group.comm for name, group in known.items()}
    if any(old != new for old, new in comms.items()):
        trace.kernels = [(*kernel[:5], comms.get(kernel[5], kernel[5])) for kernel in trace.kernels]
    trace.groups |= known


def _take(trace: _Trace, event: dict[str, Any], start: float, took: float) -> None:
    category, name = event.get("cat"), str(event.get("name", ""))
    kind = _CATEGORIES.get(category, category) if isinstance(category, str) else None
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    if kind == "kernel" and (found := _KERNEL.match(name)):
        _take_kernel(trace, found["op"], args, start, took)
    elif kind in ("user_annotation", "cpu_op") and (found := _ON_CPU.match(name)):
        if len(trace.on_cpu) < MAX_EVENTS:
            trace.on_cpu.append((start, took, operation(found["op"]), -1, UNMEASURED, 0))
    elif kind in ("cuda_runtime", "cuda_driver"):
        _take_call(trace, name, args.get("correlation"), _thread(event), start, took)
    elif kind in ("user_annotation", "cpu_op") and (step := _STEP.match(name)):
        trace.steps[int(step[1])] = (start, start + took)
        trace.threads[int(step[1])] = _thread(event)
    elif kind == "user_annotation" and name.startswith("enumerate(DataLoader)"):
        trace.spans.setdefault("input", []).append((start, took))
    elif kind == "gpu_user_annotation" or (kind == "gpu_memcpy" and "HtoD" in name):
        phase = _phase(name)
        if phase and len(trace.spans.setdefault(phase, [])) < MAX_EVENTS:
            trace.spans[phase].append((start, took))
            if phase == "h2d" and isinstance(args.get("correlation"), int):
                trace.copied.append(args["correlation"])


def _thread(event: dict[str, Any]) -> _Thread:
    tid = event.get("tid")
    return tid if isinstance(tid, int | str) else None


def _take_call(trace: _Trace, name: str, correlation: Any, thread: _Thread, start: float, took: float) -> None:
    """A host's call of CUDA: a launch, a copy, or a wait for the GPU."""
    known = isinstance(correlation, int) and abs(correlation) < 1 << 62
    if "LaunchKernel" in name or "GraphLaunch" in name:
        if known and len(trace.launched_id) < MAX_EVENTS:
            trace.launched_id.append(correlation)
            trace.launched_at.append(start)
    elif "Memcpy" in name:
        if known and len(trace.copy_calls) < MAX_EVENTS:
            trace.copy_calls[correlation] = (start, thread)
    elif "Synchronize" in name and len(trace.waits) < MAX_EVENTS:
        trace.waits.append((start, took, thread))


def _phase(name: str) -> str:
    if "HtoD" in name:
        return "h2d"
    return "forward" if name.endswith(".forward") else "optimizer" if name.startswith("Optimizer.step") else ""


def _take_kernel(trace: _Trace, op: str, args: dict[str, Any], start: float, took: float) -> None:
    if len(trace.kernels) >= MAX_EVENTS:
        trace.cut = True
        return
    named = args.get("Collective name")
    if op == "Generic" and isinstance(named, str):  # RCCL has one kernel for all of them, NCCL one for its rarer ones
        op = named[:_LONGEST_NAME]
    correlation = args.get("correlation")
    elements, item = args.get("In msg nelems"), ITEM_BYTES.get(str(args.get("dtype")), 0)
    size = elements * item if isinstance(elements, int) and item and abs(elements) < 1 << 56 else UNMEASURED
    group = args.get("Process Group Name")
    identity = 0
    if isinstance(group, str):
        identity = _group(trace, group, args.get("Process Group Ranks")).comm
    known_id = correlation if isinstance(correlation, int) and abs(correlation) < 1 << 62 else -1
    trace.kernels.append((start, took, operation(op), known_id, size, identity))


def _windows(trace: _Trace) -> tuple[Array, Array, Array]:
    """The profiled steps in order: number, start, end. A step lasts until the next one starts."""
    steps = sorted((start, end, number) for number, (start, end) in trace.steps.items())
    number = np.array([step[2] for step in steps], dtype=np.int64)
    start = np.array([step[0] for step in steps])
    return number, start, np.append(start[1:], [step[1] for step in steps[-1:]])


def _step_of(trace: _Trace, times: Array) -> Array:
    number, start, end = _windows(trace)
    if not len(number):
        return np.zeros(len(times), dtype=np.int64)
    at = np.searchsorted(start, times, side="right") - 1
    inside = (at >= 0) & (times < end[at])
    return np.where(inside, number[at], _NO_STEP)


def _collectives(rank: int, trace: _Trace) -> Table:
    happened = trace.kernels or (trace.on_cpu if _one_group(trace) else [])
    if not happened:
        return table("collectives", rank=[])
    *columns, identity = zip(*happened, strict=True)
    start, took, op, correlation, size = (np.array(column) for column in columns)
    comm = np.array(identity, np.uint64)  # numpy makes floats of integers on both sides of 2**63
    launched = _launched(trace, correlation, start) if trace.kernels else start
    step = _step_of(trace, launched)
    only = _groups(trace)
    comm[comm == 0] = only[0].comm if len(only) == 1 else 0
    order = np.lexsort((start, launched, step, comm))  # a graph launches all of its kernels at once
    order = order[step[order] != _NO_STEP]
    return table(
        "collectives",
        rank=np.full(len(order), rank),
        comm=comm[order],
        # alike on all ranks though traces begin at different operations: the step, and the place in it
        seq=step[order] * 1_000_000 + counted([comm[order], step[order]]),
        op=op[order],
        start_ns=trace.nanoseconds(start[order]),
        duration_ns=np.rint(took[order] * 1000),
        bytes=size[order],
        flags=GPU_TIME if trace.kernels else 0,
        step=step[order] if trace.steps else UNMEASURED,
        enqueue_ns=_launch_ns(trace, launched[order]),
    )


def _launch_ns(trace: _Trace, launched: Array) -> Array:
    """ns at which these were launched, -1 where that was before the profiler began."""
    seen = np.isfinite(launched)
    return np.where(seen, trace.nanoseconds(np.where(seen, launched, 0.0)), UNMEASURED)


def _one_group(trace: _Trace) -> bool:
    """Whether the members of collectives without a named group are known: there is only one set of ranks."""
    return len({frozenset(group.ranks) for group in _groups(trace) if len(group.ranks) > 1}) < 2


def _launched(trace: _Trace, correlation: Array, start: Array) -> Array:
    """When the host launched each kernel; long ago where that was before the profiler began.

    A trace without any launch (of GPU activity only) gives the kernels' own start.
    """
    ids, at = np.array(trace.launched_id, dtype=np.int64), np.array(trace.launched_at)
    if not len(ids):
        return start
    order = np.argsort(ids, kind="stable")
    place = order[np.minimum(np.searchsorted(ids, correlation, sorter=order), len(ids) - 1)]
    when: Array = np.where(ids[place] == correlation, at[place], -np.inf)
    return when


def _group(trace: _Trace, name: str, ranks: Any) -> ProcessGroup:
    """The group that a kernel names, by what the kernel says of its ranks."""
    if name not in trace.groups:
        trace.groups[name] = ProcessGroup.named(name, None if "..." in str(ranks) else ranks)
    return trace.groups[name]


def _of_header(trace: _Trace) -> dict[str, ProcessGroup]:
    config, known = trace.distributed.get("pg_config"), {}
    for one in (one for one in config if isinstance(one, dict)) if isinstance(config, list) else ():
        world, name = _world_size(trace), str(one.get("pg_name"))
        of_all = not one.get("ranks") and one.get("pg_size", one.get("group_size")) == world
        known[name] = ProcessGroup.named(name, list(range(world)) if of_all else one.get("ranks"))
    return known


def _groups(trace: _Trace) -> list[ProcessGroup]:
    """The process groups of the trace's header, and those that kernels name."""
    return list({**trace.groups, **_of_header(trace)}.values())


def _communicators(traces: Sequence[tuple[int, _Trace]]) -> Table:
    found = ((group, rank) for rank, trace in traces for group in _groups(trace) if rank in group.ranks)
    return memberships([(group, group.ranks.index(rank)) for group, rank in dict.fromkeys(found)])


def _steps(rank: int, trace: _Trace) -> Table:
    number, start, end = _windows(trace)
    phases = {f"{name}_ns": _in_steps(trace, name, number) for name in ("input", "h2d")}
    if "input" not in trace.spans:
        phases["input_ns"] = _without_loader(trace, start, end)
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


def _without_loader(trace: _Trace, start: Array, end: Array) -> Array:
    """ns that each step's batch took its host, where no DataLoader marks that; -1 where it is not known."""
    copies = [trace.copy_calls[one] for one in trace.copied if one in trace.copy_calls]
    threads = set(trace.threads.values()) - {None}
    to_gpu = np.array([at for at, thread in copies if thread in threads])
    aside = set(trace.copied)
    others = [at for one, (at, _) in trace.copy_calls.items() if one not in aside]
    others += [one[0] for one in trace.on_cpu]
    others_at = np.concatenate([np.array(trace.launched_at), np.array(others)])
    waits = [(at, length) for at, length, thread in trace.waits if thread in threads]
    took = before_copies(start, end, to_gpu, others_at, waits)
    return np.where(took < 0, UNMEASURED, np.rint(took * 1000))


def _in_steps(trace: _Trace, phase: str, number: Array) -> Array:
    """ns of a phase in each step by its spans' starts; -1 where the trace does not mark it."""
    spans = sorted(trace.spans.get(phase, []))
    if not spans:
        return np.full(len(number), UNMEASURED)
    step = _step_of(trace, np.array([start for start, _ in spans]))
    took = np.array([took for _, took in spans])
    return np.array([np.rint(took[step == one].sum() * 1000) for one in number])


def _on_gpu(trace: _Trace, steps: int) -> dict[str, Array]:
    """GPU ns of forward, optimizer and what lies between them, where each step has one of each, in their order."""
    forward, optimizer = (np.array(sorted(trace.spans.get(name, []))) for name in ("forward", "optimizer"))
    if len(forward) != steps or len(optimizer) != steps or not steps:
        return {}
    between = optimizer[:, 0] - forward.sum(axis=1)
    columns = {"gpu_forward_ns": forward[:, 1], "gpu_optimizer_ns": optimizer[:, 1]}
    if (between >= 0).all():
        columns["gpu_backward_ns"] = between
    return {name: np.rint(values * 1000) for name, values in columns.items()}


#: What stands for a time that is not known.
_UNKNOWN = -1


def before_copies(
    begin: Array, end: Array, copies: Array, others: Array, waits: Sequence[tuple[float, float]]
) -> Array:
    """[S] us from each step's begin [S] to the launch of its first copy to the GPU, less what the host waited; -1 where
    that is unknown.

    ``copies`` and ``others`` are when its thread launched copies to the GPU, and when anything else was launched or
    collectives began; ``waits`` are start and length of its waits for the GPU, of which one may lie in another: the
    driver's within the runtime's.
    """
    first = _first_in(begin, end, copies)
    known = first < _first_in(begin, end, others)  # without any copy: infinite, as those may be
    ends = np.array([begin, np.where(known, first, begin)])
    worked = np.diff(ends - _waited_before(ends, waits), axis=0)[0]
    return np.asarray(np.where(known, np.maximum(worked, 0.0), _UNKNOWN))


def _waited_before(times: Array, waits: Sequence[tuple[float, float]]) -> Array:
    """How long one waited until each of these times, however many waits there were at once."""
    if not len(waits):
        return np.zeros(times.shape)
    start, length = np.array(waits).T
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate((start + length)[order])
    apart = np.flatnonzero(np.append(True, start[1:] > end[:-1]))
    start, end = start[apart], end[np.append(apart[1:], len(end)) - 1]
    before = np.append(0.0, np.cumsum(end - start))
    at = np.searchsorted(start, times, side="right")  # so many have begun, of which the last may go on
    return np.asarray(before[at] - np.where(at > 0, np.maximum(end[at - 1] - times, 0.0), 0.0))


def _first_in(begin: Array, end: Array, times: Array) -> Array:
    """[S] the first of these times in each step, infinite where there is none."""
    ordered = np.append(np.sort(times), np.inf)
    first = ordered[np.searchsorted(ordered, begin)]
    return np.asarray(np.where(first < end, first, np.inf))
