"""From a wire batch to growing tables, one a job: packed columns move whole, never sample by sample."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hindmost_collector.columns import Builder, Malformed, Words, bounded
from hindmost_collector.model import GPU_TIME, PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hindmost_proto import telemetry_pb2 as wire

    from hindmost_collector.clock import NodeClock
    from hindmost_collector.definitions import Definitions, RankRef

Array = np.ndarray[Any, Any]

#: No job has more ranks; a number above it is garbage that would cost memory.
RANK_LIMIT = 1 << 20
#: Names of operations and intervals that are kept apart; a job that makes them up as it goes gets ``other``.
WORD_LIMIT = 1 << 16
TICK_NS = 10_000_000  # of /proc/PID/stat: USER_HZ is 100 on every Linux

_I64, _I32, _U64, _F64 = np.int64, np.int32, np.uint64, np.float64
_UNKNOWN = (_I64, -1)
#: What a name sent by others may not bring into a path.
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")
_PHASE_COLUMNS = {name: f"{name}_ns" for name in PHASES}


@dataclass
class MetricRows:
    """Samples of one schema of one node: ``times`` (T,) job clock ns, ``values`` (T, S)."""

    node: str
    schema: int
    times: Array
    values: Array


@dataclass
class JobRows:
    """What arrived for one job since it was last taken."""

    steps: Builder = field(
        default_factory=lambda: Builder(
            {"rank": _I32, "kind": _I32, "offset": _I64},
            {
                "step": _UNKNOWN,
                "start_ns": _UNKNOWN,
                "duration_ns": _UNKNOWN,
                "work": _UNKNOWN,
                **{f"{phase}_ns": _UNKNOWN for phase in PHASES},
            },
        )
    )
    collectives: Builder = field(
        default_factory=lambda: Builder(
            {"rank": _I32, "offset": _I64},
            {
                "op": (_I32, 0),
                "comm": (_U64, 0),
                "seq": _UNKNOWN,
                "step": _UNKNOWN,
                "start_ns": _UNKNOWN,
                "duration_ns": _UNKNOWN,
                "bytes": _UNKNOWN,
                "flags": (_I64, 0),  # unsigned on the wire
                "peer": (_I32, -1),
                "self_ns": _UNKNOWN,
                "cpu_ns": _UNKNOWN,
                "runqueue_ns": _UNKNOWN,
            },
        )
    )
    intervals: Builder = field(
        default_factory=lambda: Builder(
            {"rank": _I32, "offset": _I64},
            {"name": (_I32, 0), "start_ns": _UNKNOWN, "duration_ns": _UNKNOWN, "value": (_F64, float("nan"))},
        )
    )
    in_flight: list[tuple[int, str, str, int, int, int, int]] = field(default_factory=list)
    rank_states: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    ranks: list[tuple[Any, ...]] = field(default_factory=list)
    communicators: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    clocks: list[tuple[str, str, int, int, int, int, int]] = field(default_factory=list)
    metrics: list[MetricRows] = field(default_factory=list)
    stacks: list[tuple[int, int, str]] = field(default_factory=list)
    attachments: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows of the three large tables."""
        return self.steps.rows + self.collectives.rows + self.intervals.rows


def references(batch: wire.Batch) -> Iterator[int]:
    """Every definition that a batch refers to."""
    for metric in batch.metrics:
        yield metric.schema
    for blocks in (batch.steps, batch.collectives, batch.intervals, batch.rank_states, batch.attachments):
        for block in blocks:
            yield block.rank


class Decoder:
    """Takes batches apart into rows by job.

    ``words`` holds the operation, step-kind and interval names behind the codes in the rows.
    """

    def __init__(self, definitions: Definitions, words: Words | None = None) -> None:
        self._definitions = definitions
        self.words = words or Words(WORD_LIMIT)
        self._jobs: dict[str, JobRows] = {}
        self.malformed = 0
        self.samples = 0

    def job(self, job: str) -> JobRows:
        """The rows of a job that are not taken yet."""
        rows = self._jobs.get(job)
        if rows is None:
            rows = self._jobs[job] = JobRows()
        return rows

    def take(self) -> dict[str, JobRows]:
        """All rows so far, by job; the decoder starts anew."""
        taken, self._jobs = self._jobs, {}
        return taken

    def add(self, batch: wire.Batch, node: str, job: str, clock: NodeClock, *, metrics: bool = True) -> list[str]:
        """Take one batch of ``node`` apart; ``job`` owns its metrics. A sentence for each malformed block."""
        complaints: list[str] = []
        work: list[tuple[Any, Any]] = [(self._steps, batch.steps), (self._collectives, batch.collectives)]
        work += [(self._intervals, batch.intervals), (self._state, batch.rank_states)]
        for take, blocks in work:
            for block in blocks:
                complaints += _complaint(take, block, clock)
        for block in batch.metrics if metrics else ():
            complaints += _complaint(self._metrics, block, node, job, clock)
        for attachment in batch.attachments:
            self._attach(attachment, clock)
        self.malformed += len(complaints)
        return complaints

    def _rank(self, ref: int) -> RankRef:
        rank = self._definitions.ranks.get(ref)
        if rank is None:
            raise Malformed(f"rank {ref:#x} was never defined")
        return rank

    def _steps(self, block: wire.StepBlock, clock: NodeClock) -> None:
        rank, count = self._rank(block.rank), len(block.step)
        if not count:
            return
        offset = clock.offset(block.start_ns[0]) if block.start_ns else 0
        columns: list[tuple[str, Any]] = [
            ("step", block.step),
            ("start_ns", block.start_ns),
            ("duration_ns", block.duration_ns),
            ("work", block.work),
        ]
        others, named = [], set[str]()
        for phase in block.phases:
            name = _PHASE_COLUMNS.get(phase.name)
            if name in named:
                raise Malformed(f"phase {phase.name} twice in one block")
            if name:
                named.add(name)
                columns.append((name, phase.ns))
            elif len(phase.ns) == count:
                others.append(phase)
        rows = self.job(rank.job)
        rows.steps.add(count, (rank.rank, self.words.code(block.kind or "train"), offset), columns)
        for phase in others:  # a phase of the user's own naming: an interval that starts with its step
            interval: list[tuple[str, Any]] = [
                ("name", [self.words.code(phase.name)] * count),
                ("start_ns", block.start_ns),
                ("duration_ns", phase.ns),
                ("value", block.step),
            ]
            rows.intervals.add(count, (rank.rank, offset), interval)

    def _codes(self, names: Any, indices: Any) -> list[int]:
        """The codes of ``names[i]`` for each of ``indices``. Raises IndexError for an index without a name."""
        codes = [self.words.code(name) for name in names]
        if len(codes) == 1 and not any(indices):
            return codes * len(indices)
        return [codes[index] for index in indices]

    def _collectives(self, block: wire.CollectiveBlock, clock: NodeClock) -> None:
        rank, count = self._rank(block.rank), len(block.seq)
        if not count:
            return
        if len(block.op) != count:
            raise Malformed(f"column op has {len(block.op)} values in a block of {count}")
        offset = _host_offset(block, clock)
        columns: list[tuple[str, Any]] = [
            ("op", self._codes(block.op_names, block.op)),
            ("comm", block.comm),
            ("seq", block.seq),
            ("start_ns", block.start_ns),
            ("duration_ns", block.duration_ns),
            ("bytes", block.bytes),
            ("flags", block.flags),
            ("peer", block.peer),
            ("self_ns", block.self_ns),
            ("cpu_ns", block.cpu_ns),
            ("runqueue_ns", block.runqueue_ns),
        ]
        self.job(rank.job).collectives.add(count, (rank.rank, offset), columns)

    def _intervals(self, block: wire.IntervalBlock, clock: NodeClock) -> None:
        rank, count = self._rank(block.rank), len(block.start_ns)
        if not count:
            return
        if len(block.name) != count:
            raise Malformed(f"column name has {len(block.name)} values in a block of {count}")
        columns: list[tuple[str, Any]] = [
            ("name", self._codes(block.names, block.name)),
            ("start_ns", block.start_ns),
            ("duration_ns", block.duration_ns),
            ("value", block.value),
        ]
        self.job(rank.job).intervals.add(count, (rank.rank, clock.offset(block.start_ns[0])), columns)

    def _state(self, state: wire.RankState, clock: NodeClock) -> None:
        rank = self._rank(state.rank)
        rows, offset = self.job(rank.job), clock.offset(state.time_ns)
        observed = bounded(state.time_ns + offset)
        totals = bounded(state.events_total), bounded(state.events_lost_total)
        rows.rank_states.append((rank.rank, observed, state.life, *totals))
        rows.in_flight.extend(
            (rank.rank, one.kind, one.name, one.comm, one.seq, bounded(one.start_ns + offset), observed)
            for one in state.in_flight
        )

    def _metrics(self, block: wire.MetricBlock, node: str, job: str, clock: NodeClock) -> None:
        schema = self._definitions.schemas.get(block.schema)
        if schema is None:
            raise Malformed(f"schema {block.schema:#x} was never defined")
        ticks, width = len(block.time_ns), len(schema.series)
        if len(block.values) != ticks * width:
            raise Malformed(f"{len(block.values)} values for {ticks} ticks of {width} series")
        if not ticks:
            return
        times = np.array(block.time_ns, dtype=_I64)
        times += clock.offset(block.time_ns[-1])
        values = np.array(block.values, dtype=_F64).reshape(ticks, width)
        self.samples += ticks * width
        self.job(job).metrics.append(MetricRows(node, block.schema, times, values))

    def _attach(self, attachment: wire.Attachment, clock: NodeClock) -> None:
        rank = self._definitions.ranks.get(attachment.rank)
        if rank is None:
            self.malformed += 1
            return
        name = _UNFIT.sub("_", attachment.name[:80]).lstrip(".") or "stack.txt"
        rows = self.job(rank.job)
        if name.startswith("stack"):
            time_ns = bounded(attachment.time_ns + clock.offset(attachment.time_ns))
            rows.stacks.append((rank.rank, time_ns, attachment.content.decode("utf-8", "replace")))
        kept = f"stacks/{rank.rank}.txt" if name == "stack.txt" else f"stacks/{rank.rank}-{name}"
        rows.attachments.append((kept, attachment.content))


def _complaint(take: Callable[..., None], *given: Any) -> list[str]:
    """Call ``take``; what was wrong with the block, if anything."""
    try:
        take(*given)
    except (Malformed, IndexError, OverflowError) as error:
        return [str(error)]
    return []


def _host_offset(block: wire.CollectiveBlock, clock: NodeClock) -> int:
    """The offset for the rows that are of the host's clock; 0 where none is."""
    starts, flags = block.start_ns, block.flags
    if not starts:
        return 0
    first = 0
    if flags and flags[0] & GPU_TIME:
        first = int(np.argmin(np.asarray(flags) & GPU_TIME))
    if first < len(flags) and flags[first] & GPU_TIME:
        return 0
    return clock.offset(starts[first]) if first < len(starts) else 0
