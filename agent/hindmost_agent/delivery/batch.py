"""From readings and rows to one ``Batch`` on the wire, with the definitions that it refers to."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import isnan
from operator import itemgetter
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from hindmost.ring import Communicator
from hindmost_proto import telemetry_pb2 as wire
from hindmost_proto import varint

from hindmost_agent.jobs.discovery import pod_of
from hindmost_agent.jobs.event_rows import Calls, IntervalRow, StepRow
from hindmost_agent.jobs.ranks import RankProcess, reference, user_of
from hindmost_agent.sampler import Reading, Series

UNMEASURED = -1
#: Columns of calls that may be short, as telemetry.proto has it, and the fewest rows for that.
SHORT_COLUMNS, SHORT_ROWS = frozenset({"comm", "duration_ns", "bytes", "self_ns", "cpu_ns", "runqueue_ns"}), 64
_FIELDS = wire.CollectiveBlock.DESCRIPTOR.fields_by_name


class Packed(NamedTuple):
    """A finished batch: how many samples it holds, its bytes in parts, and each reference's definition.

    Each definition is a serialized ``AgentMessage`` of its own, ready to be sent.
    """

    samples: int
    parts: Sequence[bytes]
    definitions: dict[int, bytes]


_Rows = TypeVar("_Rows", "list[StepRow]", "list[IntervalRow]", Calls)


class Gathered(Generic[_Rows]):
    """Rows of several ranks, rank after rank: what shares one block."""

    def __init__(self, rows: _Rows) -> None:
        self.rows: _Rows = rows
        self.ranks: list[int] = []
        self.counts: list[int] = []

    def add(self, rank: int, rows: _Rows) -> None:
        if rows:
            self.rows.extend(rows)
            self.ranks.append(rank)
            self.counts.append(len(rows))


class Builder:
    """Collects what one batch will hold. A sample is a value that was measured, a row, a state or an attachment."""

    def __init__(self, node: str, proc: Path = Path("/proc")) -> None:
        self.node, self._proc = node, proc
        self._ranks: dict[int, tuple[RankProcess, bytes]] = {}
        #: By rank: how many communicators it had registered (they are never taken back), and their definitions.
        self._communicators: dict[int, tuple[int, dict[int, bytes]]] = {}
        #: By sampler: its series when last seen, their reference and definition.
        self._schemas: dict[str, tuple[tuple[Series, ...], int, bytes]] = {}
        self.start()

    def start(self) -> None:
        """Start a batch, and forget what was to be in the one before."""
        #: What stands in a batch before the calls, and what behind.
        self._batch, self._rest = wire.Batch(), wire.Batch()
        self._readings: list[Reading] = []
        self._steps: dict[str, Gathered[list[StepRow]]] = {}
        self._collectives = Gathered(Calls())
        self._intervals: Gathered[list[IntervalRow]] = Gathered([])
        self._definitions: dict[int, bytes] = {}
        self._samples = 0

    @property
    def empty(self) -> bool:
        return not self._samples and not self._readings

    def reading(self, reading: Reading) -> None:
        """Add what one sampler read."""
        self._readings.append(reading)

    def rank(self, process: RankProcess) -> int:
        """Define a rank; returns its reference."""
        ref = process.ref(self.node)
        if self._ranks.get(ref, (None, b""))[0] != process:
            user, pod = user_of(self._proc, process.pid), pod_of(self._proc, process.pid)
            known: dict[str, Any] = {**process._asdict(), "node": self.node, "user": user, "pod": pod}
            rank = wire.Rank(ref=ref, process_start_ticks=known.pop("start_ticks"), **known)
            self._ranks[ref] = process, _definition(wire.Definitions(ranks=[rank]))
        self._definitions[ref] = self._ranks[ref][1]
        return ref

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
            self._steps.setdefault(kind, Gathered([])).add(rank, [row for row in rows if row.kind == kind])
        self._samples += len(rows)

    def collectives(self, rank: int, rows: Calls) -> None:
        """Add collectives and point-to-point calls of one rank; all ranks share a block."""
        self._collectives.add(rank, rows)
        self._samples += len(rows)

    def intervals(self, rank: int, rows: list[IntervalRow]) -> None:
        """Add intervals of one rank; all ranks share a block."""
        self._intervals.add(rank, rows)
        self._samples += len(rows)

    def state(self, state: wire.RankState) -> None:
        self._rest.rank_states.append(state)
        self._samples += 1

    def attach(self, attachment: wire.Attachment) -> None:
        """Add a stack dump or a note."""
        self._rest.attachments.append(attachment)
        self._samples += 1

    def pack(self, *, short_columns: bool = False) -> Packed:
        """The batch, for ``message`` to number it; start the next one. ``short_columns``: the collector reads them."""
        self._pack_readings()
        for kind, steps in self._steps.items():
            _pack_steps(self._batch, kind, steps)
        _pack_intervals(self._rest, self._intervals)
        calls = _pack_collectives(self._collectives, short_columns=short_columns)
        parts = (self._batch.SerializeToString(), *calls, self._rest.SerializeToString())
        packed = Packed(self._samples, parts, self._definitions)
        self.start()
        return packed

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


def _pack_steps(batch: wire.Batch, kind: str, steps: Gathered[list[StepRow]]) -> None:
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


def _pack_collectives(collectives: Gathered[Calls], *, short_columns: bool) -> Sequence[bytes]:
    """The block as a field of its batch, in parts; its columns are the wire's already."""
    rows = collectives.rows
    if not rows:
        return ()
    names, operations = rows.operations()
    content = [(_FIELDS["op_names"].number, [name.encode()]) for name in names]
    content += [
        (_FIELDS["op"].number, [operations]),
        (_FIELDS["ranks"].number, [rank.to_bytes(8, "little") for rank in collectives.ranks]),
        (_FIELDS["rows"].number, list(map(varint, collectives.counts))),
    ]
    # A column that says of no row more than its absence does costs both sides as much as any.
    shortened = SHORT_COLUMNS if short_columns and len(rows) >= SHORT_ROWS else ()
    content += [
        (_FIELDS[name].number, _short(pieces) if name in shortened else pieces)
        for name, pieces in rows.columns.items()
        if name not in _ABSENT or any(piece != _ABSENT[name] * len(piece) for piece in pieces)
    ]
    block = [part for number, pieces in sorted(content, key=itemgetter(0)) for part in (_head(number, pieces), *pieces)]
    return _head(wire.Batch.COLLECTIVES_FIELD_NUMBER, block), *block


def _short(pieces: list[bytes]) -> list[bytes]:
    """A column as one value, where all are alike, or in 32 bits a value, where that is enough."""
    first = pieces[0][:8]
    if all(piece[-8:] == first and piece == first * (len(piece) // 8) for piece in pieces):
        return [first]
    halves = [array("I", piece) for piece in pieces]
    if any(half[1::2].tobytes() != bytes(2 * len(half)) for half in halves):
        return pieces
    return [*(half[::2].tobytes() for half in halves), bytes(sum(map(len, halves)) // 2 % 2 * 4)]


def _pack_intervals(batch: wire.Batch, intervals: Gathered[list[IntervalRow]]) -> None:
    if not intervals.rows:
        return
    labels, start, duration, value = zip(*intervals.rows, strict=True)
    places = {name: place for place, name in enumerate(dict.fromkeys(labels))}
    batch.intervals.add(
        ranks=intervals.ranks,
        rows=intervals.counts,
        names=list(places),
        name=[places[name] for name in labels],
        start_ns=start,
        duration_ns=duration,
        value=value,
    )


#: Of a column that may be missing, the byte of which each of its values consists that says no more.
_ABSENT = {"flags": b"\0", "peer": b"\1", **dict.fromkeys(("cpu_ns", "runqueue_ns", "enqueue_ns"), b"\xff")}


def schema(series: tuple[Series, ...]) -> tuple[int, bytes]:
    """Reference and serialized definition of a tuple of series; help is given once for each metric."""
    found = wire.Schema()
    explained = set()
    for metric, values in series:
        labels: Mapping[str, str] = dict(zip(metric.labels, values, strict=True))
        text = "" if metric.name in explained else metric.help
        explained.add(metric.name)
        found.series.add(name=metric.name, kind=wire.Series.Kind.ValueType(int(metric.kind)), help=text, labels=labels)
    found.ref = reference(found.SerializeToString(deterministic=True))
    return found.ref, _definition(wire.Definitions(schemas=[found]))


def _communicator(rank: int, item: Communicator) -> tuple[int, bytes]:
    ref = reference(f"{rank}\0{item.id}\0{item.size}\0{item.rank}\0{item.name}".encode())
    definition = wire.Communicator(ref=ref, rank=rank, id=item.id, size=item.size, rank_in=item.rank, name=item.name)
    return ref, _definition(wire.Definitions(communicators=[definition]))


def message(sequence: int, parts: Sequence[bytes]) -> bytes:
    """A batch in parts with its number, as the serialized ``AgentMessage`` that carries it."""
    batch = wire.Batch(sequence=sequence).SerializeToString(), *parts
    return b"".join((_head(wire.AgentMessage.BATCH_FIELD_NUMBER, batch), *batch))


def _definition(definitions: wire.Definitions) -> bytes:
    return wire.AgentMessage(definitions=definitions).SerializeToString(deterministic=True)


def _head(number: int, pieces: Iterable[bytes]) -> bytes:
    """What stands before the content of a length-delimited protobuf field: key and length."""
    return varint(number << 3 | 2) + varint(sum(map(len, pieces)))
