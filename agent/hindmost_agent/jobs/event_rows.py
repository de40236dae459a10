"""From the records of one ring to rows: steps with exclusive phases, calls with the gap before them, intervals.

Pure: no files, no clocks. Durations are integer ns; -1 means not measured. Records of calls become columns as the wire
has them; records of other kinds become events, one by one.

A node has 10,000 calls a second and more, and the agent has no numpy. So the numbers of a record move as bytes, many
records at a time. Where they must be computed with, a whole column is one long integer: a word of it is a value.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import compress
from operator import mul
from typing import Any, NamedTuple

from hindmost import ring
from hindmost.ring import Event, Reader, layout
from hindmost_proto import varint

#: A value that was not measured: -1.
MISSING = b"\xff" * 8
#: Of a record's flags, those that its row keeps.
FLAGS = ring.GPU_TIME | ring.NONBLOCKING | ring.ERROR
#: Launches whose operations have not come: with more, something was lost.
LAUNCHES_LIMIT = 64
#: No clock shows a later time (146 years): ends of calls fit in a signed word, too.
LATEST_NS = 1 << 62

SIZE = layout.RECORD_BYTES
#: Where a record has what: bytes, words, and in these halves of two bytes.
KIND, _FLAGS = 4, 5
_WHAT, _START, _DURATION, _WHERE, _VALUE = 0, 1, 2, 3, 4
_NAME, _PEER, _COMM = 3, 2, 3

#: The columns of a row, but its operation.
COLUMNS = (
    "comm",
    "seq",
    "start_ns",
    "duration_ns",
    "bytes",
    "flags",
    "peer",
    "self_ns",
    "cpu_ns",
    "runqueue_ns",
    "enqueue_ns",
)


def mask(*numbers: int) -> bytes:
    """What ``bytes.translate`` takes to make 1 of these and 0 of all others."""
    return bytes(number in numbers for number in range(256))


def _flagged(flag: int) -> bytes:
    return mask(*(flags for flags in range(256) if flags & flag))


_CALLS = mask(ring.P2P, ring.COLLECTIVE)
_GAPS, _ONES, _ZEROS = mask(ring.SELF), mask(1), mask(0)
_OPERATIONS = mask(ring.P2P, ring.COLLECTIVE, ring.LAUNCH)
#: Without these a block's kinds tell which calls have a measured gap before them.
_OTHERS = bytes(set(range(256)) - {ring.P2P, ring.COLLECTIVE, ring.SELF})
_GAP = bytes([ring.SELF])
#: A gap that another one follows before any call does.
_SUPERSEDED = re.compile(b"%b(?=[^%b]*%b)" % (_GAP, bytes([ring.P2P, ring.COLLECTIVE, ring.SELF]), _GAP), re.DOTALL)
_ONE, _RUN, _NEGATIVE = re.compile(rb"\x01"), re.compile(rb"\x01+"), re.compile(rb"[\x80-\xff]")
_KEPT_FLAGS = bytes(flags & FLAGS for flags in range(256))
_CPU, _QUEUE, _GPU = _flagged(ring.CPU_KNOWN), _flagged(ring.RUNQUEUE_KNOWN), _flagged(ring.GPU_TIME)


class Calls:
    """Rows of collective and point-to-point calls, by column, each in pieces that are joined once.

    A column has eight bytes a value; ``flags`` has one, and ``peer`` varints as of the wire.
    """

    def __init__(self) -> None:
        self.columns: dict[str, list[bytes]] = {name: [] for name in COLUMNS}
        self._operations: list[tuple[Mapping[int, str], bytes]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, names: Mapping[int, str], operations: bytes, columns: Iterable[bytes]) -> None:
        """Append rows; their ``operations`` are two bytes each, places among ``names``."""
        self._operations.append((names, operations))
        self._count += len(operations) // 2
        for pieces, column in zip(self.columns.values(), columns, strict=True):
            pieces.append(column)

    def extend(self, other: Calls) -> None:
        """Append the rows of others."""
        self._operations += other._operations
        self._count += other._count
        for name, pieces in other.columns.items():
            self.columns[name] += pieces

    def operations(self) -> tuple[list[str], bytes]:
        """Each name once, and for each row the place of its name among them, as varints."""
        places: dict[str, int] = {}
        found = []
        for names, halves in self._operations:
            table = {one: varint(places.setdefault(names[one], len(places))) for one in _distinct(halves)}
            found.append(_looked_up(halves, table))
        return list(places), b"".join(found)


class CallBuilder:
    """Makes rows of one ring's calls, in the order they were written, across any number of reads."""

    def __init__(self) -> None:
        self.rows = Calls()
        #: Self, CPU and run-queue time before the next call, where they came already.
        self._gap: Sequence[bytes] | None = None
        self._left_ns: int | None = None  # when the last call of the host was
        self._launched: dict[tuple[int, int], int] = {}  # when each was, by operation

    def broke(self) -> None:
        """Events were lost here: what was pending may lack its other half."""
        self._gap = None
        self._left_ns = None
        self._launched.clear()

    def feed(self, block: bytes, kinds: bytes, of: Reader) -> None:
        """Take in the calls among whole records. ``kinds`` has each one's kind, 0 where it is to be left out."""
        words = array("Q", block)
        measured, (own, cpu, queued) = self._gaps(block, words, kinds)
        calls = _Records.of(block, words, kinds.translate(_CALLS))
        flags, enqueued = calls.byte(_FLAGS), b""
        of_gpu = flags.translate(_GPU)
        if 1 in of_gpu or ring.LAUNCH in kinds:
            enqueued = self._enqueued(_Records.of(block, words, kinds.translate(_OPERATIONS)))
        if not measured:
            return
        starts, durations = calls.word(_START), calls.word(_DURATION)
        if 0 in measured:
            own = _put(self._since_last(calls, of_gpu), measured, own)
        last = 8 * of_gpu.rfind(0)
        if last >= 0:
            self._left_ns = _number(starts[last : last + 8]) + _number(durations[last : last + 8])
        where, missing = calls.word(_WHERE), MISSING * len(measured)
        comms, peers = _half(where, _COMM), _half(where, _PEER)
        columns = (
            _looked_up(comms, {comm: of.comm_ids[comm].to_bytes(8, "little") for comm in _distinct(comms)}),
            _seq(where),
            starts,
            durations,
            calls.word(_VALUE),
            flags.translate(_KEPT_FLAGS),
            _looked_up(peers, {peer: _signed(peer) for peer in _distinct(peers)}),
            own,
            _put(missing, measured, cpu) if cpu.strip(b"\xff") else missing,
            _put(missing, measured, queued) if queued.strip(b"\xff") else missing,
            enqueued or missing,
        )
        self.rows.append(of.names, _half(calls.word(_WHAT), _NAME), columns)

    def _gaps(self, block: bytes, words: array[int], kinds: bytes) -> tuple[bytes, Sequence[bytes]]:
        """``(of each call, 1 where the gap before it was measured, these gaps' self, CPU and run-queue times)``."""
        order = kinds.translate(None, _OTHERS)
        if _GAP * 2 in order:
            kinds = _SUPERSEDED.sub(b"\0", kinds)
            order = kinds.translate(None, _OTHERS)
        gaps: Sequence[bytes] = _gap_columns(_Records.of(block, words, kinds.translate(_GAPS)))
        if self._gap is not None and order:
            if order[:1] != _GAP:
                order, gaps = _GAP + order, [first + rest for first, rest in zip(self._gap, gaps, strict=True)]
            self._gap = None
        if order[-1:] == _GAP:
            self._gap = [column[-8:] for column in gaps]
            order, gaps = order[:-1], [column[:-8] for column in gaps]
        for kind in (ring.COLLECTIVE, ring.P2P):
            order = order.replace(_GAP + bytes([kind]), b"\1")
        return order.translate(_ONES), gaps

    def _since_last(self, calls: _Records, of_gpu: bytes) -> bytes:
        """Of each call of the host, the time since it left the one before; calls may overlap, where threads make
        them."""
        on_host = of_gpu.translate(_ZEROS)
        host = calls.where(on_host)
        starts = host.word(_START)
        size = len(starts)
        if not size:
            return MISSING * len(of_gpu)
        number = _number(starts)
        ends = number + _number(host.word(_DURATION))
        left = _number(starts[:8]) if self._left_ns is None else self._left_ns
        before = (ends << 64 | left) & (1 << 8 * size) - 1
        # With its highest bit set a value's difference never borrows from the next one's; it stays set where >= 0.
        highest = _number((b"\0" * 7 + b"\x80") * (size // 8))
        since = bytearray((number + highest - before ^ highest).to_bytes(size, "little"))
        if not since[7::8].isascii():
            for negative in _NEGATIVE.finditer(since[7::8]):
                since[8 * negative.start() : 8 * negative.end()] = bytes(8)
        if self._left_ns is None:
            since[:8] = MISSING
        return _put(MISSING * len(of_gpu), on_host, bytes(since))

    def _enqueued(self, operations: _Records) -> bytes:
        """Of each call among calls and launches: when the host enqueued it, where it is one of the GPU."""
        found, launched = [], self._launched
        kinds, flags = operations.byte(KIND), operations.byte(_FLAGS)
        names = memoryview(_half(operations.word(_WHAT), _NAME)).cast("H")
        wheres, starts = (memoryview(operations.word(place)).cast("Q") for place in (_WHERE, _START))
        for kind, flag, name, where, start in zip(kinds, flags, names, wheres, starts, strict=True):
            if kind == ring.LAUNCH:
                if len(launched) >= LAUNCHES_LIMIT:
                    launched.clear()
                launched[name, where] = start
            else:
                enqueued = launched.pop((name, where), None) if flag & ring.GPU_TIME else None
                found.append(MISSING if enqueued is None else enqueued.to_bytes(8, "little"))
        return b"".join(found)


class _Records(NamedTuple):
    """Some records of a block, which is in ``words`` too: from the ``first`` one on each ``step``-th. A column of them
    is bytes."""

    block: bytes
    words: array[int]
    first: int = 0
    step: int = 1

    @classmethod
    def of(cls, block: bytes, words: array[int], chosen: bytes) -> _Records:
        """Those where ``chosen`` is 1, not 0. All, none and every other one need no copy."""
        if 1 not in chosen:
            return cls(b"", array("Q"))
        if 0 not in chosen:
            return cls(block, words)
        for first in (0, 1):
            if 0 not in chosen[first::2] and 1 not in chosen[1 - first :: 2]:
                return cls(block, words, first, 2)
        chosen_block = b"".join([block[run.start() * SIZE : run.end() * SIZE] for run in _RUN.finditer(chosen)])
        return cls(chosen_block, array("Q", chosen_block))

    def where(self, chosen: bytes) -> _Records:
        """Those of them where ``chosen`` is 1."""
        if 0 not in chosen or self.step == 1:
            return self if 0 not in chosen else self.of(self.block, self.words, chosen)
        block = b"".join(self.block[at : at + SIZE] for at in range(self.first * SIZE, len(self.block), 2 * SIZE))
        return self.of(block, array("Q", block), chosen)

    def byte(self, place: int) -> bytes:
        return self.block[self.first * SIZE + place :: self.step * SIZE]

    def word(self, place: int) -> bytes:
        words = SIZE // 8
        return self.words[self.first * words + place :: self.step * words].tobytes()


def _half(words: bytes, place: int) -> bytes:
    """Two bytes of each word."""
    return array("H", words)[place::4].tobytes()


def _seq(where: bytes) -> bytes:
    """As words."""
    found = array("I", where)
    found[1::2] = array("I", bytes(len(found) * 2))
    return found.tobytes()


def _number(column: bytes) -> int:
    return int.from_bytes(column, "little")


def _gap_columns(gaps: _Records) -> list[bytes]:
    """Self, CPU and run-queue times of SELF records, which have the last, in us, for a sequence."""
    flags, us = gaps.byte(_FLAGS), _seq(gaps.word(_WHERE))
    queued = (1000 * _number(us)).to_bytes(len(us), "little")  # of four bytes each: nothing carries
    return [
        gaps.word(_DURATION),
        _masked(gaps.word(_VALUE), flags.translate(_CPU)),
        _masked(queued, flags.translate(_QUEUE)),
    ]


def _masked(column: bytes, known: bytes) -> bytes:
    """A column, with nothing measured where ``known`` is 0."""
    if 0 not in known:
        return column
    missing = MISSING * len(known)
    if 1 not in known:
        return missing
    values = array("Q", compress(memoryview(column).cast("Q"), known))
    return _put(missing, known, values.tobytes())


def _put(column: bytes, places: bytes, values: bytes) -> bytes:
    """A column with its values replaced by others, one after the other, where ``places`` is 1."""
    if 0 not in places:
        return values
    if 1 not in places:
        return column
    found = bytearray(column)
    numbers = memoryview(found).cast("Q")
    for place, value in zip(_ONE.finditer(places), memoryview(values).cast("Q"), strict=True):
        numbers[place.start()] = value
    return bytes(found)


def _distinct(halves: bytes) -> Iterable[int]:
    """The different numbers of two bytes in a column, in the order in which they come; often there is one."""
    numbers = memoryview(halves).cast("H")
    return numbers[:1] if halves == halves[:2] * len(numbers) else dict.fromkeys(numbers)


def _looked_up(halves: bytes, table: Mapping[int, bytes]) -> bytes:
    """For each number in a column what the table, which has no others, says."""
    if len(table) == 1:
        (found,) = table.values()
        return found * (len(halves) // 2)
    low = {number & 0xFF: found for number, found in table.items()}
    if len(low) == len(table) and all(len(found) == 1 for found in table.values()):
        return halves[::2].translate(bytes.maketrans(bytes(low), b"".join(low.values())))
    return b"".join(map(table.__getitem__, memoryview(halves).cast("H")))


def _signed(peer: int) -> bytes:
    """A peer as the wire has it: a varint whose lowest bit is the sign."""
    return b"\1" if peer == layout.NONE16 else varint(2 * peer)


UNMEASURED = -1
#: Phases that wait for their step; a loop that never marks a step must not grow without bound.
PENDING_LIMIT = 8192
#: Phases that are amounts within a step (CPU time, GPU time, the part of a wait), not intervals of the host: nothing
#: nests in them, and they nest in nothing.
AMOUNTS = frozenset({"cpu", "runqueue", "negotiation"})
#: GPU times come when the GPU has got there, steps later, with the step's number: so long a step waits for them.
GPU_LATE_STEPS = 16
GPU_LATE_NS = 2_000_000_000


#: A longer time (13 days) is damage, not a measurement: columns are signed 64-bit, and sums must fit in them too.
LONGEST_NS = 1 << 50
#: What a signed 64-bit column holds.
MOST = (1 << 63) - 1
#: Kinds that become rows of calls, and slots that were claimed in vain.
NO_EVENTS = mask(layout.VOID, ring.P2P, ring.COLLECTIVE, ring.SELF, ring.LAUNCH)


#: The highest bytes of start, duration and value in a record, and below what they are nothing is damaged.
_HIGHEST = {15: LATEST_NS >> 56, 22: LONGEST_NS >> 48, 23: 1, 39: MOST + 1 >> 56}


class StepRow(NamedTuple):
    """One step of one rank; ``phases`` are exclusive of what nests in them."""

    kind: str
    step: int
    start_ns: int
    duration_ns: int
    work: int
    phases: dict[str, int]


class IntervalRow(NamedTuple):
    """What belongs to no step: a phase between steps, a mark, file I/O."""

    name: str
    start_ns: int
    duration_ns: int
    value: float


class Rows(NamedTuple):
    """What was finished since last asked."""

    steps: list[StepRow]
    collectives: Calls
    intervals: list[IntervalRow]


#: Rows without a Python frame around them, as ``_make`` has: there are hundreds a second.
_step_row: Callable[[tuple[Any, ...]], StepRow] = partial(tuple.__new__, StepRow)

#: A host phase: start and duration; with its name and the time that is its own alone. Plain tuples, for there are
#: thousands.
_Span = tuple[int, int]
_Phase = tuple[int, int, str, int]


@lru_cache(maxsize=1024)
def is_amount(name: str) -> bool:
    """Whether a phase of this name is a quantity of its step rather than an interval of the host's time."""
    return name in AMOUNTS or name.startswith("gpu_")


class RowBuilder:
    """Folds one ring's events, in the order they were written, across any number of reads."""

    def __init__(self) -> None:
        self.steps: list[StepRow] = []
        self.intervals: list[IntervalRow] = []
        self.last_step = UNMEASURED
        self._calls = CallBuilder()
        self._phases: list[_Phase] = []
        self._outermost: list[_Span] = []
        self._seen: dict[str, None] = {}
        #: By the word of a record that holds kind, flags and name: the name, of those that are phases of the host.
        self._host_phases: dict[int, str] = {}
        self._held: list[StepRow] = []
        self._gpu_step = UNMEASURED
        #: Events left out because their times or values are damaged: they would not fit their columns.
        self.damaged = 0

    @property
    def collectives(self) -> Calls:
        """Finished rows of calls."""
        return self._calls.rows

    def feed(self, block: bytes, of: Reader) -> None:
        """Take in whole records of a ring. Finished rows are added to ``steps``, ``collectives``, ``intervals``."""
        kinds = self._undamaged(block)
        self._calls.feed(block, kinds, of)
        left = kinds.translate(NO_EVENTS)
        if 0 in left:
            words = layout.WORDS.iter_unpack(block)
            self._events(words if 1 not in left else compress(words, left.translate(mask(0))), of.event)
            self._bound()

    def _undamaged(self, block: bytes) -> bytes:
        """The kind of each record; 0 for those whose times or values would not fit their columns."""
        kinds = block[KIND::SIZE]
        zeros = bytes(len(kinds))  # mostly they are, and comparing is quickest
        if all(
            (found := block[at::SIZE]) == zeros or not found.translate(None, bytes(most))
            for at, most in _HIGHEST.items()
        ):
            return kinds
        fits = bytes(
            start < LATEST_NS and duration <= LONGEST_NS and value <= MOST
            for _, start, duration, _, value in layout.WORDS.iter_unpack(block)
        )
        left = bytes(map(mul, kinds, fits))
        self.damaged += left.count(0) - kinds.count(0)
        return left

    def _events(self, records: Iterable[tuple[int, ...]], event: Callable[[tuple[int, ...]], Event | None]) -> None:
        """Take records as words, which ``event`` makes events of: phases of the host, mostly all, need none."""
        known, phases, outermost = self._host_phases, self._phases, self._outermost
        for record in records:
            what, start, duration, _, _ = record
            name = known.get(what)
            if name is None:
                found = event(record)
                if found is None or (name := self._other(found)) is None:
                    phases, outermost = self._phases, self._outermost
                    continue
                known[what] = name
            exclusive = duration
            # Inner phases end, and are written, before the one around them.
            while outermost and outermost[-1][0] >= start:
                exclusive -= outermost.pop()[1]
            outermost.append((start, duration))
            phases.append((start, duration, name, exclusive if exclusive > 0 else 0))

    def broke(self) -> None:
        """Events were lost here: what was pending may lack its other half."""
        self._calls.broke()
        self._outermost.clear()

    def age(self, now_ns: int) -> None:
        """Let go of steps whose GPU times should have come by now."""
        self._let_go(lambda step: now_ns - step.start_ns - step.duration_ns > GPU_LATE_NS)

    def finish(self) -> None:
        """Nothing more comes: steps wait no longer, phases that no step took become intervals."""
        self._let_go(lambda _: True)
        self._release(self._phases)
        self._phases = []

    @property
    def pending(self) -> tuple[int, int]:
        """How many steps wait for their GPU times, and phases for their step; always the latest ones read."""
        return len(self._held), len(self._phases)

    def resume(self, steps: int, phases: int) -> None:
        """Forget what an earlier agent has made rows of: of what was fed, all but that many pending ones."""
        self.take()
        del self._held[: max(len(self._held) - steps, 0)]
        del self._phases[: max(len(self._phases) - phases, 0)]

    def take(self) -> Rows:
        """Hand over the finished rows and forget them."""
        rows = Rows(self.steps, self.collectives, self.intervals)
        self.steps, self._calls.rows, self.intervals = [], Calls(), []
        return rows

    def _other(self, event: Event) -> str | None:
        """Take an event, unless it is a phase of the host: then its name."""
        kind, flags, name, start, duration, seq, _, _, value = event
        if kind == ring.STEP:
            self._step(event)
        elif kind != ring.PHASE:
            self.intervals.append(IntervalRow(name, start, duration, float(value)))
        elif not flags & ring.GPU_TIME and (name in self._seen or not is_amount(name)):
            self._seen[name] = None
            return name
        elif seq:
            self._gpu_time(event)
        else:
            self._phases.append((start, duration, name, duration))
        return None

    def _bound(self) -> None:
        """Keep only the latest phases of a loop that marks no step."""
        phases = self._phases
        if len(phases) > PENDING_LIMIT:
            self._release(phases[: -PENDING_LIMIT // 2])
            del phases[: -PENDING_LIMIT // 2]
            del self._outermost[: -PENDING_LIMIT // 2]

    def _step(self, event: Event) -> None:
        """A step takes the phases that start in it. Steps may be written late, when their GPU times have come."""
        _, _, kind, start, duration, seq, _, _, value = event
        end = start + duration
        # A phase that has been seen in this loop and did not happen in this step took no time: measured, not missing.
        phases = dict.fromkeys(self._seen, 0)
        others = []
        for phase in self._phases:
            began, _, name, exclusive = phase
            if start <= began < end:
                phases[name] = phases.get(name, 0) + exclusive
            else:
                others.append(phase)
        if others:
            self._release([phase for phase in others if phase[0] < start])
            others = [phase for phase in others if phase[0] >= start]
        self._phases = others
        if self._outermost:
            self._outermost = [span for span in self._outermost if span[0] >= end]
        self.last_step = seq
        self._held.append(_step_row((kind, seq, start, duration, value or UNMEASURED, phases)))
        if self._gpu_step == UNMEASURED:
            self.steps += self._held
            self._held = []
        elif len(self._held) > GPU_LATE_STEPS:
            self.steps.append(self._held.pop(0))

    def _gpu_time(self, event: Event) -> None:
        """A GPU time of an earlier train step; steps before that one have all of theirs."""
        for step in self._held:
            if step.step == event.seq and step.kind != "eval":
                step.phases[event.name] = step.phases.get(event.name, 0) + event.duration_ns
        self._gpu_step = max(self._gpu_step, event.seq)
        self._let_go(lambda step: step.step < self._gpu_step or step.kind == "eval")

    def _let_go(self, ready: Callable[[StepRow], bool]) -> None:
        while self._held and ready(self._held[0]):
            self.steps.append(self._held.pop(0))

    def _release(self, phases: Iterable[_Phase]) -> None:
        nan = float("nan")
        self.intervals += (IntervalRow(name, start, duration, nan) for start, duration, name, _ in phases)
