"""From readings and rows to one ``Batch`` on the wire, with the definitions that it refers to."""

from __future__ import annotations

from hashlib import blake2b
from itertools import chain
from math import isnan
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from hindmost_proto import telemetry_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hindmost.ring import Communicator

    from hindmost_agent.jobs.event_rows import CollectiveRow, IntervalRow, StepRow
    from hindmost_agent.jobs.ranks import RankProcess
    from hindmost_agent.sampler import Reading, Series

UNMEASURED = -1


class Packed(NamedTuple):
    """A finished batch: how many samples it holds, its bytes without the sequence, and each reference's definition.

    Each definition is a serialized ``AgentMessage`` of its own, ready to be sent.
    """

    samples: int
    payload: bytes
    definitions: dict[int, bytes]


_Row = TypeVar("_Row")


class Gathered(Generic[_Row]):
    """Rows of several ranks, rank after rank: what shares one block."""

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.ranks: list[int] = []
        self.counts: list[int] = []

    def add(self, rank: int, rows: Sequence[_Row]) -> None:
        """Append rows of one rank."""
        if rows:
            self.rows += rows
            self.ranks.append(rank)
            self.counts.append(len(rows))


class Builder:
    """Collects what one batch will hold. A sample is a value that was measured, a row, a state or an attachment."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._ranks: dict[int, tuple[RankProcess, bytes]] = {}
        #: By rank: how many communicators it had registered (they are never taken back), and their definitions.
        self._communicators: dict[int, tuple[int, dict[int, bytes]]] = {}
        #: By sampler: its series when last seen, their reference and definition.
        self._schemas: dict[str, tuple[tuple[Series, ...], int, bytes]] = {}
        self._start()

    def _start(self) -> None:
        self._batch = wire.Batch()
        self._readings: list[Reading] = []
        self._steps: dict[str, Gathered[StepRow]] = {}
        self._collectives: Gathered[CollectiveRow] = Gathered()
        self._intervals: Gathered[IntervalRow] = Gathered()
        self._definitions: dict[int, bytes] = {}
        self._samples = 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self._samples and not self._readings

    def reading(self, reading: Reading) -> None:
        """Add what one sampler read."""
        self._readings.append(reading)

    def rank(self, process: RankProcess) -> int:
        """Define a rank; returns its reference."""
        ref = process.ref(self.node)
        if self._ranks.get(ref, (None, b""))[0] != process:
            self._ranks[ref] = process, self._rank(ref, process)
        self._definitions[ref] = self._ranks[ref][1]
        return ref

    def _rank(self, ref: int, process: RankProcess) -> bytes:
        rank = wire.Rank(
            ref=ref,
            job_id=process.job_id,
            rank=process.rank,
            world_size=process.world_size,
            local_rank=process.local_rank,
            node=self.node,
            pid=process.pid,
            process_start_ticks=process.start_ticks,
            gpu_uuid=process.gpu_uuid,
            framework=process.framework,
            command=process.command,
        )
        return _definition(wire.Definitions(ranks=[rank]))

    def forget(self, ref: int) -> None:
        """A rank has ended: its definitions are not kept."""
        self._ranks.pop(ref, None)
        self._communicators.pop(ref, None)

    def communicators(self, rank: int, communicators: Sequence[Communicator]) -> None:
        """Define the communicators that a rank says it is in."""
        known = self._communicators.get(rank)
        if known is None or known[0] != len(communicators):
            made = dict(_communicator(rank, item) for item in communicators)
            known = self._communicators[rank] = len(communicators), made
        self._definitions.update(known[1])

    def steps(self, rank: int, rows: Sequence[StepRow]) -> None:
        """Add steps of one rank; all ranks share a block for each kind of step."""
        for kind in dict.fromkeys(row.kind for row in rows):
            self._steps.setdefault(kind, Gathered()).add(rank, [row for row in rows if row.kind == kind])
        self._samples += len(rows)

    def collectives(self, rank: int, rows: Sequence[CollectiveRow]) -> None:
        """Add collectives and point-to-point calls of one rank; all ranks share a block."""
        self._collectives.add(rank, rows)
        self._samples += len(rows)

    def intervals(self, rank: int, rows: Sequence[IntervalRow]) -> None:
        """Add intervals of one rank; all ranks share a block."""
        self._intervals.add(rank, rows)
        self._samples += len(rows)

    def state(self, state: wire.RankState) -> None:
        """Add a rank's state."""
        self._batch.rank_states.append(state)
        self._samples += 1

    def attach(self, attachment: wire.Attachment) -> None:
        """Add a stack dump or a note."""
        self._batch.attachments.append(attachment)
        self._samples += 1

    def pack(self) -> Packed:
        """The batch as bytes; start the next one. Put ``sequenced`` bytes in front to number it."""
        self._pack_readings()
        for kind, steps in self._steps.items():
            _pack_steps(self._batch, kind, steps)
        _pack_collectives(self._batch, self._collectives)
        _pack_intervals(self._batch, self._intervals)
        packed = Packed(self._samples, self._batch.SerializeToString(), self._definitions)
        self._start()
        return packed

    def discard(self) -> None:
        """Start anew: there is no collector to send it to."""
        self._start()

    def _pack_readings(self) -> None:
        """Readings of one schema share a block."""
        blocks: dict[int, tuple[list[int], list[float]]] = {}
        for reading in self._readings:
            times, all_values = blocks.setdefault(self._schema(reading), ([], []))
            times.append(reading.time_ns)
            all_values += reading.values
        for ref, (times, all_values) in blocks.items():
            self._batch.metrics.add(schema=ref, time_ns=times, values=all_values)
            self._samples += measured(all_values)

    def _schema(self, reading: Reading) -> int:
        """The reference of a reading's series: those its sampler had before are recognised by identity, at no cost.

        Older ones are not kept: jobs come and go, and one of many ranks has thousands of series.
        """
        known = self._schemas.get(reading.sampler)
        if known is None or known[0] is not reading.series:
            known = self._schemas[reading.sampler] = (reading.series, *schema(reading.series))
        _, ref, definition = known
        self._definitions[ref] = definition
        return ref


def measured(values: Sequence[float]) -> int:
    """How many values there are; what is missing has a place in its row and is no sample."""
    return len(values) - sum(map(isnan, values)) if isnan(sum(values)) else len(values)


def _pack_steps(batch: wire.Batch, kind: str, steps: Gathered[StepRow]) -> None:
    _, step, start, duration, work, phases = zip(*steps.rows, strict=True)
    block = batch.steps.add(
        kind=kind, ranks=steps.ranks, rows=steps.counts, step=step, start_ns=start, duration_ns=duration
    )
    if work.count(UNMEASURED) < len(work):
        block.work.extend(work)
    for name, ns in _columns(phases):
        block.phases.add(name=name, ns=ns)


def _columns(rows: Sequence[dict[str, int]]) -> Iterable[tuple[str, Sequence[int]]]:
    """A column for each key of any row; mostly all rows have the same."""
    names = list(rows[0])
    if len(names) > 1 and all(len(row) == len(names) for row in rows):
        try:
            return list(zip(names, zip(*map(itemgetter(*names), rows), strict=True), strict=True))
        except KeyError:
            pass
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    return [(name, [row.get(name, UNMEASURED) for row in rows]) for name in names]


def _coded(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Each text once, and for each row the place of its text among them."""
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return list(places), [places[text] for text in texts]


def _pack_collectives(batch: wire.Batch, collectives: Gathered[CollectiveRow]) -> None:
    if not collectives.rows:
        return
    columns = zip(*collectives.rows, strict=True)
    ops, comm, seq, start, duration, size, flags, peer, own, cpu, runqueue, enqueue = columns
    names, codes = _coded(ops)
    block = batch.collectives.add(
        ranks=collectives.ranks,
        rows=collectives.counts,
        op_names=names,
        op=codes,
        comm=comm,
        seq=seq,
        start_ns=start,
        duration_ns=duration,
        bytes=size,
        self_ns=own,
    )
    # A column that says of no row more than its absence does costs both sides as much as any.
    for column, values, nothing in (
        (block.flags, flags, 0),
        (block.peer, peer, UNMEASURED),
        (block.cpu_ns, cpu, UNMEASURED),
        (block.runqueue_ns, runqueue, UNMEASURED),
        (block.enqueue_ns, enqueue, UNMEASURED),
    ):
        if values.count(nothing) < len(values):
            column.extend(values)


def _pack_intervals(batch: wire.Batch, intervals: Gathered[IntervalRow]) -> None:
    if not intervals.rows:
        return
    labels, start, duration, value = zip(*intervals.rows, strict=True)
    names, codes = _coded(labels)
    batch.intervals.add(
        ranks=intervals.ranks,
        rows=intervals.counts,
        names=names,
        name=codes,
        start_ns=start,
        duration_ns=duration,
        value=value,
    )


def schema(series: tuple[Series, ...]) -> tuple[int, bytes]:
    """Reference and serialized definition of a tuple of series; help is given once for each metric."""
    found = wire.Schema()
    explained = set()
    for metric, values in series:
        labels: Mapping[str, str] = dict(zip(metric.labels, values, strict=True))
        text = "" if metric.name in explained else metric.help
        explained.add(metric.name)
        found.series.add(name=metric.name, kind=wire.Series.Kind.ValueType(int(metric.kind)), help=text, labels=labels)
    found.ref = int.from_bytes(blake2b(found.SerializeToString(deterministic=True), digest_size=8).digest(), "little")
    return found.ref, _definition(wire.Definitions(schemas=[found]))


def _communicator(rank: int, item: Communicator) -> tuple[int, bytes]:
    ref = _hash(f"{rank}\0{item.id}\0{item.size}\0{item.rank}\0{item.name}")
    definition = wire.Communicator(ref=ref, rank=rank, id=item.id, size=item.size, rank_in=item.rank, name=item.name)
    return ref, _definition(wire.Definitions(communicators=[definition]))


def sequenced(sequence: int, payload: bytes) -> bytes:
    """A ``Batch`` with its number: serialized messages of one type are merged by joining their bytes."""
    return wire.Batch(sequence=sequence).SerializeToString() + payload


def message(batch: bytes) -> bytes:
    """A serialized ``Batch`` as the ``AgentMessage`` that carries it, without decoding it again."""
    return _field(wire.AgentMessage.BATCH_FIELD_NUMBER, batch)


def _definition(definitions: wire.Definitions) -> bytes:
    return wire.AgentMessage(definitions=definitions).SerializeToString(deterministic=True)


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field: key, varint length, bytes."""
    head = bytearray([number << 3 | 2])
    length = len(content)
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + content


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
