"""From a wire batch to growing tables, one a job: packed columns move whole, never sample by sample.

Batches wait before that: in an :class:`Inbox` until several are decoded together, in :class:`Parking` until the
definitions that they refer to have arrived.
"""

import itertools
import logging
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from hindmost_judge.model import ANY_PEER, GPU_TIME
from hindmost_proto import telemetry_pb2 as wire
from hindmost_proto import varint

from hindmost_collector.ingest.clock import NodeClock
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.packed_fields import (
    AgentMessage,
    IntervalBlock,
    cut,
    eights,
    first,
    varint_count,
    varints,
    widen,
)
from hindmost_collector.ingest.row_builder import (
    NAME_LIMIT,
    PHASE_COLUMNS,
    JobRows,
    Malformed,
    MetricRows,
    Origin,
    Owners,
    Words,
    bounded,
    origin,
)
from hindmost_collector.ingest.session import AgentSession, Outbox

log = logging.getLogger(__name__)

#: So many batches wait at most, for some milliseconds' work, and so many bytes of messages.
MANY, BYTES = 64, 4 << 20


class Inbox:
    """Holds batches until they are many, or until their content is needed.

    Args:
        take: decodes a batch: of an agent, on a stream with this outbox, arrived then.
    """

    def __init__(self, take: Callable[[AgentSession, Outbox, wire.Batch, int], None]) -> None:
        self._take = take
        self._waiting: list[tuple[AgentSession, Outbox, wire.Batch, int]] = []
        self._bytes = 0
        self._in_turn: set[int] = set()
        #: Whether in this turn an agent has sent a second batch, which is news, or more has come than may wait.
        self.out_of_turn = False

    @property
    def waits(self) -> bool:
        """Whether a batch does."""
        return bool(self._waiting)

    def parsed(self, raw: bytes) -> Any:
        """A message; its bytes count until the inbox is emptied."""
        self._bytes += len(raw)
        return AgentMessage.FromString(raw)

    def add(self, agent: AgentSession, outbox: Outbox, batch: wire.Batch, now_ns: int) -> None:
        self._waiting.append((agent, outbox, batch, now_ns))
        full = len(self._waiting) >= MANY or self._bytes > BYTES
        self.out_of_turn |= full or id(agent) in self._in_turn
        self._in_turn.add(id(agent))
        if full:
            self.empty()

    def next_turn(self) -> None:
        """From now on each agent may send one batch more."""
        self._in_turn.clear()
        self.out_of_turn = False

    def empty(self) -> None:
        """Take all that wait, in order, but those whose stream is being ended: they come again."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        for agent, outbox, batch, now_ns in waiting:
            if outbox.closed:
                continue
            try:
                self._take(agent, outbox, batch, now_ns)
            except Exception:  # whatever is wrong with one batch, the others' agents have no part in it
                log.exception(
                    "a batch of agent %s on %s could not be taken; its stream ends", agent.identity, agent.node
                )
                outbox.close("a batch could not be taken: the collector's log says why")


#: How long, and how many of one agent.
PARK_NS = 5_000_000_000
PARK_BATCHES = 64


class Parking:
    """Per agent, in the order of arrival. None of them is acknowledged, so they may go with their stream.

    Args:
        limit: bytes on the wire of all that wait.
    """

    def __init__(self, limit: int = 64 << 20) -> None:
        self._limit = limit
        self._waiting: dict[str, deque[tuple[int, int, wire.Batch]]] = {}
        self.bytes = 0

    def add(self, identity: str, batch: wire.Batch, now_ns: int) -> bool:
        """Have a batch wait; False where there is no room."""
        size = batch.ByteSize()
        if self.bytes + size > self._limit:
            return False
        self._waiting.setdefault(identity, deque()).append((now_ns, size, batch))
        self.bytes += size
        return True

    def overdue(self, identity: str, now_ns: int) -> bool:
        """Whether an agent's have waited for long enough, and are to be taken without what is unknown."""
        waiting = self._waiting.get(identity)
        return waiting is not None and (len(waiting) > PARK_BATCHES or now_ns - waiting[0][0] > PARK_NS)

    def first(self, identity: str) -> wire.Batch | None:
        """The batch of an agent that has waited longest."""
        waiting = self._waiting.get(identity)
        return waiting[0][2] if waiting else None

    def release(self, identity: str) -> None:
        """Let go of that batch."""
        waiting = self._waiting[identity]
        self.bytes -= waiting.popleft()[1]
        if not waiting:
            del self._waiting[identity]

    def clear(self, identity: str) -> None:
        """Let go of all of an agent: it sends them again on its next stream."""
        self.bytes -= sum(size for _, size, _ in self._waiting.pop(identity, ()))


Array = np.ndarray[Any, Any]

#: Names of operations and intervals that are kept apart; a job that makes them up as it goes gets ``other``.
WORD_LIMIT = 1 << 16
#: Characters of a stack as the judge quotes it: what is longer is cut.
STACK_LIMIT = 256 << 10
#: Characters of what a rank said at its end.
LAST_WORDS_LIMIT = 600

#: What a name sent by others may not bring into a path.
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")
#: Indices that are one byte as varints.
_SMALL = bytes(range(128))


#: A block of samples: schema, times, values. Looking into a message costs more than what is then done with them.
Samples = tuple[int, bytes, bytes]
_SAMPLES = attrgetter("schema", "time_ns", "values")


def samples(batch: Any) -> list[Samples]:
    return list(map(_SAMPLES, batch.metrics))


def references(batch: Any, blocks: Iterable[Samples], definitions: Definitions) -> list[int]:
    """What a batch, of which these are the samples, refers to, without groups of ranks that there were before."""
    found = [block[0] for block in blocks]
    for block in (*batch.steps, *batch.collectives, *batch.intervals):
        ranks = block.ranks
        if not ranks:
            found.append(block.rank)
        elif not definitions.is_known(ranks):
            found += eights(ranks[: len(ranks) // 8 * 8], np.uint64).tolist()
    found += [state.rank for state in batch.rank_states]
    found += [attachment.rank for attachment in batch.attachments]
    return found


class Decoder:
    """Takes batches, as :mod:`hindmost_collector.ingest.packed_fields` has them, apart into rows by job.

    ``words`` holds the operation, step-kind and interval names behind the codes in the rows.
    """

    def __init__(self, definitions: Definitions, words: Words | None = None) -> None:
        self._definitions = definitions
        self.words = words or Words(WORD_LIMIT)
        self._jobs: dict[str, JobRows] = {}
        self._origins: dict[str, dict[int, Origin]] = defaultdict(dict)
        self._newest: dict[str, int] = {}  # job time of each node's newest sample
        #: When each process was last said to run: a clock that is known better since does not put its end before that.
        self._observed: dict[int, int] = {}
        self.malformed = 0
        self.samples = 0

    def job(self, job: str) -> JobRows:
        rows = self._jobs.get(job)
        if rows is None:
            rows = self._jobs[job] = JobRows()
        return rows

    def take(self) -> dict[str, JobRows]:
        """All rows so far, by job; the decoder starts anew."""
        taken, self._jobs = self._jobs, {}
        return taken

    def add(
        self, batch: Any, node: str, job: str, clock: NodeClock, blocks: Sequence[Samples] | None = None
    ) -> list[str]:
        """Take one batch of ``node`` apart; ``job`` owns its metrics, of which ``blocks``, where given, are taken.

        A sentence for each malformed block.
        """
        complaints: list[str] = []
        for block in batch.steps:
            complaints += _complaint(self._steps, block, clock)
        for block in batch.collectives:
            complaints += _complaint(self._collectives, block, clock)
        for block in batch.intervals:
            complaints += _complaint(self._intervals, block, clock)
        for state in batch.rank_states:
            complaints += _complaint(self._state, state, clock)
        if found := samples(batch) if blocks is None else blocks:
            complaints += self._metrics(found, node, job, clock)
        for attachment in batch.attachments:
            self._attach(attachment, clock)
        self.malformed += len(complaints)
        return complaints

    def _owned(self, block: Any, count: int) -> Iterable[tuple[Any, int, str, Owners]]:
        """``(block, rows, job, whose they are)``: the block, or a part each where its ranks are of several jobs.

        Raises Malformed when the rows do not add up, or a rank was never defined.
        """
        if not block.ranks:
            group = self._definitions.group(block.rank.to_bytes(8, "little"))
            return ((block, count, group.owners[0].job, Owners(varint(count), group.ranks)),)
        group, rows = self._definitions.group(block.ranks), block.rows
        row_count = varint_count(rows)
        counts = rows if rows.isascii() else varints(rows).tolist()
        ranks = len(group.owners)
        if row_count != ranks or sum(counts) != count:
            raise Malformed(f"{sum(counts)} rows of {row_count} ranks in a block of {count} rows, {ranks} ranks")
        if group.job is not None:
            return ((block, count, group.job, Owners(rows, group.ranks)),)
        ends = itertools.accumulate(counts)
        return [
            (cut(block, end - own, own, count), own, owner.job, Owners.of([own], [owner.rank]))
            for owner, own, end in zip(group.owners, counts, ends, strict=True)
        ]

    def _steps(self, block: Any, clock: NodeClock) -> None:
        count = len(block.step) // 8
        if not count:
            return
        kind = self.words.code(block.kind[:NAME_LIMIT] or "train")
        offset = clock.offset(first(block.start_ns)) if block.start_ns else 0
        for part, rows, job, owners in self._owned(block, count):
            table = self.job(job)
            phases, others = _phases(part, rows)
            table.steps.add(part, rows, owners, (kind, offset), extras=phases)
            for phase in others:  # a phase of the user's own naming: an interval that starts with its step
                steps = eights(part.step).astype(np.float64).tobytes()
                named = IntervalBlock(name=bytes(rows), start_ns=part.start_ns, duration_ns=phase.ns, value=steps)
                code = self.words.code(phase.name[:NAME_LIMIT])
                table.intervals.add(named, rows, owners, (offset,), (code,))

    def _collectives(self, block: Any, clock: NodeClock) -> None:
        count = len(block.seq) // 8
        if not count:
            return
        codes = self._codes(block.op_names, block.op, count, "op")
        widen(block, count)
        offset = _host_offset(block, clock)
        for part, rows, job, owners in self._owned(block, count):
            self.job(job).collectives.add(part, rows, owners, (offset,), codes)

    def _intervals(self, block: Any, clock: NodeClock) -> None:
        count = len(block.start_ns) // 8
        if not count:
            return
        codes = self._codes(block.names, block.name, count, "name")
        offset = clock.offset(first(block.start_ns))
        for part, rows, job, owners in self._owned(block, count):
            self.job(job).intervals.add(part, rows, owners, (offset,), codes)

    def _codes(self, names: Any, indices: bytes, count: int, column: str) -> tuple[int, ...]:
        """The codes of ``names``. Raises Malformed for an index without a name."""
        index_count = varint_count(indices)
        if index_count != count:
            raise Malformed(f"column {column} has {index_count} values in a block of {count}")
        known = len(names)
        if indices.translate(None, _SMALL[:known]) if known <= len(_SMALL) else max(varints(indices)) >= known:
            raise Malformed(f"column {column} has an index beyond its {known} names")
        return tuple([self.words.code(name[:NAME_LIMIT]) for name in names])

    def _state(self, state: Any, clock: NodeClock) -> None:
        rank = self._definitions.rank(state.rank)
        rows, offset = self.job(rank.job), clock.offset(state.time_ns)
        observed = max(bounded(state.time_ns + offset), self._observed.get(state.rank, 0))
        if state.life:
            self._observed.pop(state.rank, None)
        else:
            self._observed[state.rank] = observed
        totals = bounded(state.events_total), bounded(state.events_lost_total)
        ended = bounded(state.ended_ns + offset) if state.ended_ns else -1
        status = state.exit_status if state.HasField("exit_status") else -1
        rows.rank_states.append(
            (rank.rank, observed, state.life, *totals, ended, status, state.last_words[:LAST_WORDS_LIMIT])
        )
        for one in state.in_flight:
            kind, name, start = one.kind[:NAME_LIMIT], one.name[:NAME_LIMIT], bounded(one.start_ns + offset)
            peer = ANY_PEER if one.peer < 0 else one.peer - 1
            rows.in_flight.append((rank.rank, kind, name, one.comm, one.seq, peer, one.flags & 0xFF, start, observed))

    def _metrics(self, blocks: Sequence[Samples], node: str, job: str, clock: NodeClock) -> list[str]:
        """Keep the samples of a batch; a sentence for each malformed block. Most blocks end at the same tick."""
        complaints, rows, known = [], self.job(job), self._definitions.schemas
        metric_blocks, origins = rows.metrics, self._origins[node]
        tick, ticks, offset, last, taken = b"", b"", 0, 0, 0
        newest, before, backwards = 0, self._newest.get(node, 0), False
        for ref, times, values in blocks:
            schema = known.get(ref)
            if schema is None:
                complaints.append(f"schema {ref:#x} was never defined")
            elif len(times) % 8 or len(values) != len(times) * schema.width:
                mismatch = f"{len(values) / 8:g} values for {len(times) / 8:g} ticks of {schema.width} series"
                complaints.append(mismatch)
            elif times:
                if times != ticks:
                    ticks = times  # which blocks that have the same then share
                    if times[-8:] != tick:
                        tick = times[-8:]
                        offset = clock.offset(first(tick))
                        last = first(tick) + offset
                        backwards = backwards or last < newest
                        newest = max(newest, last)
                        if last < before:
                            rows.in_order = False
                metric_blocks.append(
                    MetricRows(origins.get(ref) or self._origin(node, ref), ticks, offset, values, last)
                )
                taken += len(values)
                rows.metric_bytes += len(ticks) + len(values)
        if backwards and len({ref for ref, _, _ in blocks}) < len(blocks):
            rows.in_order = False  # of a schema that is there twice the later block may be the older
        self.samples += taken // 8
        if taken:
            self._newest[node] = max(newest, before)
            rows.heard[node] = max(rows.heard.get(node, newest), newest)
        return complaints

    def _origin(self, node: str, ref: int) -> Origin:
        found = self._origins[node][ref] = origin(node, ref)
        return found

    def prune(self) -> None:
        """Forget whose samples came, of schemas that are no longer known."""
        known = self._definitions.schemas
        for node, origins in list(self._origins.items()):
            for ref in set(origins).difference(known):  # a difference of views would look at all that is known
                del origins[ref]
            if not origins:
                del self._origins[node]
                self._newest.pop(node, None)

    def _attach(self, attachment: Any, clock: NodeClock) -> None:
        rank = self._definitions.ranks.get(attachment.rank)
        if rank is None:
            self.malformed += 1
            return
        name = _UNFIT.sub("_", attachment.name[:80]).lstrip(".") or "stack.txt"
        rows = self.job(rank.job)
        if name.startswith("stack"):
            time_ns = bounded(attachment.time_ns + clock.offset(attachment.time_ns))
            rows.stacks.append((rank.rank, time_ns, attachment.content[:STACK_LIMIT].decode("utf-8", "replace")))
        path = f"stacks/{rank.rank}.txt" if name == "stack.txt" else f"stacks/{rank.rank}-{name}"
        parts = rows.attachments.setdefault(path, [])
        if name != "stack.txt":  # of stacks that come together all are kept
            parts.clear()
        parts.append(attachment.content)


def _phases(block: Any, count: int) -> tuple[dict[str, bytes], list[Any]]:
    """``(known phases by column, others)``. Raises Malformed for one that comes twice."""
    known: dict[str, bytes] = {}
    others = []
    for phase in block.phases:
        column = PHASE_COLUMNS.get(phase.name)
        if column is None:
            if len(phase.ns) == count * 8:
                others.append(phase)
        elif column in known:
            raise Malformed(f"phase {phase.name} comes twice in one block")
        else:
            known[column] = phase.ns
    return known, others


def _complaint(take: Callable[..., None], *arguments: Any) -> list[str]:
    """Call ``take``; what was wrong with the block, if anything."""
    try:
        take(*arguments)
    except (Malformed, IndexError, OverflowError) as error:
        return [str(error)]
    return []


def _host_offset(block: Any, clock: NodeClock) -> int:
    """The offset for the rows that are of the host's clock; 0 where none is."""
    starts, flags = block.start_ns, block.flags
    if not starts:
        return 0
    place = 0
    if flags and flags[0] & GPU_TIME:
        of_the_gpu = varints(flags) & GPU_TIME
        place = int(np.argmin(of_the_gpu))
        if of_the_gpu[place]:
            launched = eights(block.enqueue_ns, np.int64)
            known = launched[launched != -1]
            return clock.offset(int(known[0])) if len(known) else 0
    return clock.offset(first(starts[place * 8 :])) if place * 8 < len(starts) else 0
