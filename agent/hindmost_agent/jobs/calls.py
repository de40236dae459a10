"""From one ring's records of calls to columns, as the wire has them.

A node has 10,000 calls a second and more, and the agent has no numpy. So the numbers of a record move as bytes, many
records at a time. Where they must be computed with, a whole column is one long integer: a word of it is a value.
"""

from __future__ import annotations

import re
from itertools import compress
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from hindmost import ring
from hindmost.ring import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: A value that was not measured: -1.
MISSING = b"\xff" * 8
#: Of a record's flags, those that its row keeps.
FLAGS = ring.GPU_TIME | ring.NONBLOCKING | ring.ERROR
#: Launches whose operations have not come: with more, something was lost.
LAUNCHES_LIMIT = 64
#: No clock shows a later time (146 years): ends of calls fit in a signed word, too.
LATEST_NS = 1 << 62

SIZE = layout.RECORD_BYTES
#: Where a record has what: bytes, halves (of two bytes), its sequence (of four), words.
KIND, _FLAGS = 4, 5
_NAME, _PEER, _COMM = 3, 14, 15
_SEQ = 6
_START, _DURATION, _WHERE, _VALUE = 1, 2, 3, 4

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


class Tables(Protocol):
    """What the places in a record stand for."""

    @property
    def names(self) -> Mapping[int, str]: ...

    @property
    def comm_ids(self) -> Mapping[int, int]: ...


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

    def feed(self, block: bytes, kinds: bytes, tables: Tables) -> None:
        """Take in the calls among whole records. ``kinds`` has each one's kind, 0 where it is to be left out."""
        measured, (own, cpu, queued) = self._gaps(block, kinds)
        calls = _Records.of(block, kinds.translate(_CALLS))
        flags, enqueued = calls.byte(_FLAGS), b""
        of_gpu = flags.translate(_GPU)
        if 1 in of_gpu or ring.LAUNCH in kinds:
            enqueued = self._enqueued(_Records.of(block, kinds.translate(_OPERATIONS)))
        if not measured:
            return
        since_last = self._since_last(calls, of_gpu)
        comms, peers, missing = calls.half(_COMM), calls.half(_PEER), MISSING * len(measured)
        columns = (
            _looked_up(comms, {comm: tables.comm_ids[comm].to_bytes(8, "little") for comm in _distinct(comms)}),
            calls.seq(),
            calls.word(_START),
            calls.word(_DURATION),
            calls.word(_VALUE),
            flags.translate(_KEPT_FLAGS),
            _looked_up(peers, {peer: _signed(peer) for peer in _distinct(peers)}),
            _put(since_last, measured, own),
            _put(missing, measured, cpu) if cpu.strip(b"\xff") else missing,
            _put(missing, measured, queued) if queued.strip(b"\xff") else missing,
            enqueued or missing,
        )
        self.rows.append(tables.names, calls.half(_NAME), columns)

    def _gaps(self, block: bytes, kinds: bytes) -> tuple[bytes, Sequence[bytes]]:
        """``(of each call, 1 where the gap before it was measured, these gaps' self, CPU and run-queue times)``."""
        order = kinds.translate(None, _OTHERS)
        if _GAP * 2 in order:
            kinds = _SUPERSEDED.sub(b"\0", kinds)
            order = kinds.translate(None, _OTHERS)
        gaps: Sequence[bytes] = _gap_columns(_Records.of(block, kinds.translate(_GAPS)))
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
        host = _Records.of(calls.packed(), on_host) if 1 in of_gpu else calls
        starts = host.word(_START)
        size = len(starts)
        if not size:
            return MISSING * len(of_gpu)
        number = _number(starts)
        ends = number + _number(host.word(_DURATION))
        known, left = self._left_ns is not None, _number(starts[:8]) if self._left_ns is None else self._left_ns
        self._left_ns = ends >> 8 * size - 64
        before = (ends << 64 | left) ^ self._left_ns << 8 * size
        # With its highest bit set a value's difference never borrows from the next one's; it stays set where >= 0.
        highest = _number((b"\0" * 7 + b"\x80") * (size // 8))
        since = bytearray((number + highest - before ^ highest).to_bytes(size, "little"))
        if not since[7::8].isascii():
            for negative in _NEGATIVE.finditer(since[7::8]):
                since[8 * negative.start() : 8 * negative.end()] = bytes(8)
        if not known:
            since[:8] = MISSING
        return _put(MISSING * len(of_gpu), on_host, bytes(since))

    def _enqueued(self, operations: _Records) -> bytes:
        """Of each call among calls and launches: when the host enqueued it, where it is one of the GPU."""
        found, launched = [], self._launched
        kinds, flags = operations.byte(KIND), operations.byte(_FLAGS)
        names = memoryview(operations.half(_NAME)).cast("H")
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
    """Some records of a block: from the ``first`` one on each ``step``-th. A column of them is bytes."""

    block: bytes
    first: int = 0
    step: int = 1

    @classmethod
    def of(cls, block: bytes, chosen: bytes) -> _Records:
        """Those where ``chosen`` is 1, not 0. All, none and every other one need no copy."""
        if 0 not in chosen or 1 not in chosen:
            return cls(block if 1 in chosen else b"")
        for first in (0, 1):
            if 0 not in chosen[first::2] and 1 not in chosen[1 - first :: 2]:
                return cls(block, first, 2)
        return cls(b"".join([block[run.start() * SIZE : run.end() * SIZE] for run in _RUN.finditer(chosen)]))

    def packed(self) -> bytes:
        """As a block of their own."""
        if self.step == 1:
            return self.block
        return b"".join(self.block[at : at + SIZE] for at in range(self.first * SIZE, len(self.block), 2 * SIZE))

    def byte(self, place: int) -> bytes:
        return self.block[self.first * SIZE + place :: self.step * SIZE]

    def half(self, place: int) -> bytes:
        return self._view("H", 2, place).tobytes()

    def word(self, place: int) -> bytes:
        return self._view("Q", 8, place).tobytes()

    def seq(self) -> bytes:
        """As words."""
        numbers = self._view("I", 4, _SEQ)
        found = bytearray(8 * len(numbers))
        memoryview(found).cast("I")[::2] = numbers
        return bytes(found)

    def _view(self, code: Literal["H", "I", "Q"], width: int, place: int) -> memoryview:
        return memoryview(self.block).cast(code)[self.first * SIZE // width + place :: self.step * SIZE // width]


def _number(column: bytes) -> int:
    return int.from_bytes(column, "little")


def _gap_columns(gaps: _Records) -> list[bytes]:
    """Self, CPU and run-queue times of SELF records, which have the last, in us, for a sequence."""
    flags, us = gaps.byte(_FLAGS), gaps.seq()
    queued = (1000 * _number(us)).to_bytes(len(us), "little")  # of four bytes each: nothing carries
    return [
        gaps.word(_DURATION),
        _known(gaps.word(_VALUE), flags.translate(_CPU)),
        _known(queued, flags.translate(_QUEUE)),
    ]


def _known(column: bytes, known: bytes) -> bytes:
    """A column, with nothing measured where ``known`` is 0."""
    if 0 not in known:
        return column
    values = compress((column[at : at + 8] for at in range(0, len(column), 8)), known)
    return _put(MISSING * len(known), known, b"".join(values))


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


def varint(number: int) -> bytes:
    """As protobuf writes it."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
