"""Horovod timelines: a Chrome-trace array written by rank 0, one row of it a tensor.

``NEGOTIATE_…`` phases hold a mark a rank, named by it, at which that rank had the tensor ready; they end when the last
one had. Times are us from the start of the timeline; the operations that follow are rank 0's.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hindmost.errors import UsageError
from hindmost_judge.model import GPU_TIME, Job, Run, Table

from hindmost_collector.recordings.tables import operation, table
from hindmost_collector.recordings.trace_files import Sample, events, microseconds

NAME = "Horovod timelines"
PRECEDENCE = 50

MAX_OPERATIONS = 2_000_000
_NEGOTIATE = "NEGOTIATE_"


def recognises(sample: Sample) -> bool:
    """Whether it is an array of trace events with Horovod's phases near its begin, or the cycles that come before."""
    phases = (b"NEGOTIATE_ALL", b"NEGOTIATE_BROADCAST", b"NEGOTIATE_REDUCESCATTER", b"HOROVOD")
    words = (*phases, b"CYCLE_START", b"start_time_since_epoch_in_micros")
    return sample.head.lstrip()[:1] == b"[" and any(word in sample.head for word in words)


@dataclass
class _Tensor:
    """One tensor's open negotiation: its operation, when it began, and when each rank was ready."""

    op: str = ""
    since: float = 0.0
    ready: dict[int, float] = field(default_factory=dict)
    depth: int = 0
    times: int = 0
    #: Place in the timeline's spans of what was negotiated last.
    span: int = -1


@dataclass
class _Timeline:
    tensors: dict[Any, _Tensor] = field(default_factory=dict)
    #: rank, op, start us, end us, number of this operation, which time for its tensor
    rows: list[tuple[int, str, float, float, int, int]] = field(default_factory=list)
    operations: int = 0
    #: For each negotiation when the first rank was ready, and when the operation had ended.
    spans: list[list[float]] = field(default_factory=list)

    @property
    def negotiated(self) -> int:
        """How many operations show who was ready when."""
        return len(self.spans)


def load(files: Sequence[Path]) -> Run:
    """The time at which each rank was ready, in every negotiation of the timeline."""
    if len(files) > 1:
        raise UsageError(f"{files[0].parent}: {len(files)} {NAME}; name the file of one job")
    timeline, rest = _Timeline(), dict[str, Any]()
    for event in events(files[0], rest):
        at = microseconds(event.get("ts"))
        if at is not None and len(timeline.rows) < MAX_OPERATIONS:
            _take(timeline, event, at)
    strays = _leave_strays_out(timeline)
    if not timeline.rows:
        raise UsageError(f"{files[0]}: a Horovod timeline without negotiations: ranks cannot be distinguished")
    size = max(row[0] for row in timeline.rows) + 1
    comm = int.from_bytes(hashlib.blake2b(b"horovod", digest_size=8).digest(), "little")
    return Run(
        job=Job(id="", world_size=size, source=NAME),
        ranks=table("ranks", rank=np.arange(size), world_size=size, framework="horovod"),
        collectives=_collectives(timeline, comm),
        communicators=table("communicators", comm=comm, rank=np.arange(size), rank_in=np.arange(size), size=size),
        notes=_notes(timeline, "torn" in rest, rest.get("skipped", 0) + strays),
    )


def _take(timeline: _Timeline, event: dict[str, Any], at: float) -> None:
    tensor = timeline.tensors.setdefault(event.get("pid"), _Tensor())
    kind, name = event.get("ph"), str(event.get("name", ""))
    if kind == "B":
        tensor.depth += 1
        if tensor.depth == 1:
            tensor.op, tensor.since, tensor.ready = name, at, {}
            timeline.operations += not name.startswith(_NEGOTIATE)
    elif kind in ("X", "i", "I") and name.isdecimal() and len(name) < 8:
        tensor.ready.setdefault(int(name), at)
    elif kind == "E" and tensor.depth:
        tensor.depth -= 1
        if tensor.depth == 0 and tensor.op.startswith(_NEGOTIATE) and tensor.ready:
            _negotiated(timeline, tensor, at)
        elif tensor.depth == 0 and tensor.span >= 0:
            timeline.spans[tensor.span][1] = at


#: Ranks are numbered without gaps, and a negotiation has a mark of each: numbers so many times as high as there are
#: ranks are none.
_STRAY = 16


def _leave_strays_out(timeline: _Timeline) -> int:
    """Drop the marks of ranks that cannot be; how many those were."""
    ranks = sorted({row[0] for row in timeline.rows})
    while ranks and ranks[-1] >= _STRAY * len(ranks):
        ranks.pop()
    own = [row for row in timeline.rows if ranks and row[0] <= ranks[-1]]
    strays, timeline.rows = len(timeline.rows) - len(own), own
    return strays


def _negotiated(timeline: _Timeline, tensor: _Tensor, at: float) -> None:
    """The negotiation ended when the last rank was ready: until then the others waited."""
    op = operation(tensor.op.removeprefix(_NEGOTIATE))
    rows = [(rank, op, ready, at, timeline.negotiated, tensor.times) for rank, ready in tensor.ready.items()]
    timeline.rows += sorted(rows)
    tensor.span = timeline.negotiated
    timeline.spans.append([min(tensor.ready.values()), at])
    tensor.times += 1


#: Operations that ranks wait for one by one never begin before the last has ended. Of those begun while backward goes
#: on at least this share does.
_OVERLAPPING = 0.05


def _overlaps_computing(timeline: _Timeline) -> bool:
    """Whether ranks go on while their operations run: how late one is for a step shows in each of them, and is once."""
    spans = np.array(sorted(timeline.spans))
    begun, ended = spans[1:, 0], np.maximum.accumulate(spans[:, 1])[:-1]
    return bool(len(begun) and np.mean(begun < ended) >= _OVERLAPPING)


def _collectives(timeline: _Timeline, comm: int) -> Table:
    rank, op, start, end, seq, time = (np.array(column) for column in zip(*timeline.rows, strict=True))
    return table(
        "collectives",
        rank=rank,
        comm=np.full(len(rank), comm, dtype=np.uint64),
        seq=seq,
        op=op,
        start_ns=np.rint(start * 1000),
        duration_ns=np.rint(np.maximum(end - start, 0) * 1000),
        step=time,
        flags=GPU_TIME if _overlaps_computing(timeline) else 0,  # as for kernels that overlap with computing
    )


def _notes(timeline: _Timeline, torn: bool, skipped: int) -> tuple[str, ...]:
    notes = ["A Horovod timeline is of rank 0: of other ranks it only has when each was ready."]
    if timeline.negotiated < timeline.operations:
        shown = f"{timeline.negotiated} of {timeline.operations}"
        notes.append(f"Only {shown} operations show who was ready when; HOROVOD_CACHE_CAPACITY=0 shows all.")
    if skipped:
        notes.append(f"{skipped} incomplete event{'s' * (skipped > 1)} of the timeline left out.")
    if torn:
        notes.append("The timeline was cut off, read up to there.")
    if len(timeline.rows) >= MAX_OPERATIONS:
        notes.append(f"Only the first {MAX_OPERATIONS:,} rows were read.")
    return tuple(notes)
