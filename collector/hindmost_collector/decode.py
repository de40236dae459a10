"""From a wire batch to growing tables, one a job: packed columns move whole, never sample by sample."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost_proto import telemetry_pb2 as wire

from hindmost_collector.columns import Builder, Malformed, Words, bounded
from hindmost_collector.model import GPU_TIME, PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hindmost_collector.clock import NodeClock
    from hindmost_collector.definitions import Definitions, RankRef

Array = np.ndarray[Any, Any]

#: No job has more ranks; a number above it is garbage that would cost memory.
RANK_LIMIT = 1 << 20
#: Names of operations and intervals that are kept apart; a job that makes them up as it goes gets ``other``.
WORD_LIMIT = 1 << 16
#: Characters of a name, and of a stack as the judge quotes it: what is longer is cut. A ring's names have 63.
NAME_LIMIT, STACK_LIMIT = 128, 256 << 10
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


def _steps_table() -> Builder:
    return Builder(
        wire.StepBlock,
        {"kind": _I32, "offset": _I64},
        {name: (name, *_UNKNOWN) for name in ("step", "start_ns", "duration_ns", "work")},
        dict.fromkeys(_PHASE_COLUMNS.values(), _UNKNOWN),
    )


def _collectives_table() -> Builder:
    unknown = ("seq", "start_ns", "duration_ns", "bytes", "self_ns", "cpu_ns", "runqueue_ns")
    return Builder(
        wire.CollectiveBlock,
        {"offset": _I64},
        {
            "comm": ("comm", _U64, 0),
            "flags": ("flags", _I64, 0),  # unsigned on the wire
            "peer": ("peer", _I32, -1),
            **{name: (name, *_UNKNOWN) for name in unknown},
        },
        {"step": _UNKNOWN},
        coded=("op", "op"),
    )


def _intervals_table() -> Builder:
    return Builder(
        wire.IntervalBlock,
        {"offset": _I64},
        {
            "start_ns": ("start_ns", *_UNKNOWN),
            "duration_ns": ("duration_ns", *_UNKNOWN),
            "value": ("value", _F64, float("nan")),
        },
        coded=("name", "name"),
    )


@dataclass
class JobRows:
    """What arrived for one job since it was last taken."""

    steps: Builder = field(default_factory=_steps_table)
    collectives: Builder = field(default_factory=_collectives_table)
    intervals: Builder = field(default_factory=_intervals_table)
    in_flight: list[tuple[int, str, str, int, int, int, int]] = field(default_factory=list)
    rank_states: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    ranks: list[tuple[Any, ...]] = field(default_factory=list)
    communicators: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    clocks: list[tuple[str, str, int, int, int, int, int]] = field(default_factory=list)
    metrics: list[MetricRows] = field(default_factory=list)
    stacks: list[tuple[int, int, str]] = field(default_factory=list)
    attachments: list[tuple[str, bytes]] = field(default_factory=list)


def references(batch: wire.Batch) -> list[int]:
    """Every definition that a batch refers to."""
    found = [metric.schema for metric in batch.metrics]
    blocks: list[Any] = [*batch.steps, *batch.collectives, *batch.intervals]
    for block in blocks:
        if block.ranks:
            found += block.ranks
        else:
            found.append(block.rank)
    found += [one.rank for one in batch.rank_states]
    found += [one.rank for one in batch.attachments]
    return found


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
        try:
            return self._definitions.ranks[ref]
        except KeyError:
            raise Malformed(f"rank {ref:#x} was never defined") from None

    def _owned(self, block: Any, count: int) -> Iterator[tuple[Any, int, str, Sequence[int], Sequence[int]]]:
        """``(block, rows, job, rows by rank, ranks)``: the block, or a part each where its ranks are of several jobs.

        Raises Malformed when the rows do not add up, or a rank was never defined.
        """
        if not block.ranks:
            rank = self._rank(block.rank)
            yield block, count, rank.job, (count,), (rank.rank,)
            return
        counts = block.rows[:]
        if len(counts) != len(block.ranks) or sum(counts) != count:
            raise Malformed(f"{sum(counts)} rows of {len(counts)} ranks in a block of {count} rows, {len(block.ranks)}")
        owners = [self._rank(ref) for ref in block.ranks]
        if len({one.job for one in owners}) == 1:
            yield block, count, owners[0].job, counts, [one.rank for one in owners]
            return
        first = 0
        for owner, rows in zip(owners, counts, strict=True):
            yield cut(block, first, rows, count), rows, owner.job, (rows,), (owner.rank,)
            first += rows

    def _steps(self, block: wire.StepBlock, clock: NodeClock) -> None:
        count = len(block.step)
        if not count:
            return
        kind = self.words.code(block.kind[:NAME_LIMIT] or "train")
        offset = clock.offset(block.start_ns[0]) if block.start_ns else 0
        for part, rows, job, counts, ranks in self._owned(block, count):
            table = self.job(job)
            phases, others = _phases(part, rows)
            table.steps.add(part, rows, counts, ranks, (kind, offset), extras=phases)
            for phase in others:  # a phase of the user's own naming: an interval that starts with its step
                named = wire.IntervalBlock(name=[0] * rows, start_ns=part.start_ns, duration_ns=phase.ns)
                named.value.extend(part.step)
                code = self.words.code(phase.name[:NAME_LIMIT])
                table.intervals.add(named, rows, counts, ranks, (offset,), (code,))

    def _collectives(self, block: wire.CollectiveBlock, clock: NodeClock) -> None:
        count = len(block.seq)
        if not count:
            return
        codes = self._codes(block.op_names, block.op, count, "op")
        offset = _host_offset(block, clock)
        for part, rows, job, counts, ranks in self._owned(block, count):
            self.job(job).collectives.add(part, rows, counts, ranks, (offset,), codes)

    def _intervals(self, block: wire.IntervalBlock, clock: NodeClock) -> None:
        count = len(block.start_ns)
        if not count:
            return
        codes = self._codes(block.names, block.name, count, "name")
        offset = clock.offset(block.start_ns[0])
        for part, rows, job, counts, ranks in self._owned(block, count):
            self.job(job).intervals.add(part, rows, counts, ranks, (offset,), codes)

    def _codes(self, names: Any, indices: Any, count: int, column: str) -> tuple[int, ...]:
        """The codes of ``names``. Raises Malformed for an index without a name."""
        if len(indices) != count:
            raise Malformed(f"column {column} has {len(indices)} values in a block of {count}")
        if max(indices[:]) >= len(names):
            raise Malformed(f"column {column} has an index beyond its {len(names)} names")
        return tuple(self.words.code(name[:NAME_LIMIT]) for name in names)

    def _state(self, state: wire.RankState, clock: NodeClock) -> None:
        rank = self._rank(state.rank)
        rows, offset = self.job(rank.job), clock.offset(state.time_ns)
        observed = bounded(state.time_ns + offset)
        totals = bounded(state.events_total), bounded(state.events_lost_total)
        rows.rank_states.append((rank.rank, observed, state.life, *totals))
        rows.in_flight.extend(
            (
                rank.rank,
                one.kind[:NAME_LIMIT],
                one.name[:NAME_LIMIT],
                one.comm,
                one.seq,
                bounded(one.start_ns + offset),
                observed,
            )
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
            rows.stacks.append((rank.rank, time_ns, attachment.content[:STACK_LIMIT].decode("utf-8", "replace")))
        kept = f"stacks/{rank.rank}.txt" if name == "stack.txt" else f"stacks/{rank.rank}-{name}"
        rows.attachments.append((kept, attachment.content))


def _phases(block: wire.StepBlock, count: int) -> tuple[dict[str, wire.PhaseColumn], list[wire.PhaseColumn]]:
    """``(known phases by column, others)``. Raises Malformed for one that comes twice."""
    known: dict[str, wire.PhaseColumn] = {}
    others = []
    for phase in block.phases:
        column = _PHASE_COLUMNS.get(phase.name)
        if column is None:
            if len(phase.ns) == count:
                others.append(phase)
        elif column in known:
            raise Malformed(f"phase {phase.name} comes twice in one block")
        else:
            known[column] = phase
    return known, others


def cut(block: Any, first: int, rows: int, count: int) -> Any:
    """``rows`` rows of a block of ``count`` as a block of their own; columns of another length stay as they are."""
    part = type(block)()
    for field_, value in block.ListFields():
        if field_.name in {"ranks", "rows"}:
            continue
        if field_.name == "phases":
            for phase in value:
                part.phases.add(name=phase.name, ns=phase.ns[first : first + rows])
        elif not field_.is_repeated:
            setattr(part, field_.name, value)
        elif len(value) == count and field_.name not in {"op_names", "names"}:
            getattr(part, field_.name).extend(value[first : first + rows])
        else:
            getattr(part, field_.name).extend(value)
    return part


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
