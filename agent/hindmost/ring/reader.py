"""The reading end of a ring, in the agent. Standard library only."""

from __future__ import annotations

import os
import stat
import time
from array import array
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hindmost.ring import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: ``Event._make`` without a Python frame around it: there are thousands of events a second.
_event: Callable[[tuple[Any, ...]], layout.Event] = partial(tuple.__new__, layout.Event)
_LOOKAHEAD = 8  # slots read beyond head: between two threads' claims head may fall back for an instant
_STALL_S = 1.0


#: Lower halves of stamps, in order.
_HALVES = array("H", range(1 << 16))


def _consecutive(stamps: bytes, first: int) -> int:
    """How many stamps count on from the first, by pieces with one upper half each: no number is made of any stamp."""
    halves, good = array("H", stamps), 0
    lower, upper = halves[::2], halves[1::2]
    while good < len(lower):
        low, high = first + good & 0xFFFF, first + good >> 16 & 0xFFFF
        piece = slice(good, good + len(_HALVES) - low)
        found, count = lower[piece], len(lower[piece])
        if found != _HALVES[low : low + count] or upper[piece].tobytes() != high.to_bytes(2, "little") * count:
            break
        good += count
    return good


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")


def _each(event: layout.Event, partners: bytes, slot: int) -> list[layout.Event]:
    """An operation that waits for several peers, once for each."""
    count, more, sends, receives, *peers = layout.WITH.unpack_from(partners, slot * layout.WITH.size)
    found = [
        event._replace(peer=layout.ANY if peer == layout.ANY16 else peer, flags=event.flags | flag)
        for place, peer in enumerate(peers[:count])
        for flag, ways in ((0, receives), (layout.SENDS, sends))
        if ways >> place & 1
    ]
    return [*found, event._replace(peer=-1)] if more or not found else found


class _Entries(dict[int, Any]):
    """Entries of an append-only table by index, read when one is met that is not yet known."""

    def __init__(self, none: Any, load: Callable[[], list[Any]]) -> None:
        super().__init__({layout.NONE16: none})
        self._none = none
        self.load = load

    def __missing__(self, index: int) -> Any:
        self.update(enumerate(self.load()))
        return self.setdefault(index, self._none)  # an index is registered before it is used: this one is damaged


class Reader:
    """Reads one ring, through a file descriptor: a ring that is cut short or removed can not kill the reader.

    ``start`` is the index of the first record to return (0: the oldest); ``position`` is that of the next one.
    ``clock`` (s) decides when a slot that was claimed and never written is given up, a second after it was first met.
    """

    def __init__(
        self, path: str | os.PathLike[str], start: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = Path(path)
        self._clock = clock
        try:
            # Anybody may put a FIFO here, whose opening would wait for a writer.
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise layout.RingError(f"{self.path}: cannot be opened as a ring: {error.strerror}") from error
        try:
            self.header = self._read_header()
        except layout.RingError:
            os.close(self._fd)
            raise
        self.position = start or 0
        #: Records that were passed over: overwritten before they were read, or never finished.
        self.skipped = 0
        self._stalled: tuple[int, float] | None = None
        self._names = _Entries("", self._load_names)
        self._comms = _Entries(0, lambda: [c.id for c in self.communicators()])

    def _read(self, size: int, offset: int) -> bytes:
        try:
            data = os.pread(self._fd, size, offset)
        except OSError as error:
            raise layout.RingError(f"{self.path}: cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise layout.RingError(
                f"{self.path}: is truncated: {offset + len(data)} bytes where {offset + size} were expected"
            )
        return data

    def _word(self, offset: int) -> int:
        return int.from_bytes(self._read(8, offset), "little")

    def _read_header(self) -> layout.Header:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise layout.RingError(f"{self.path}: is not a ring: not a regular file")
        magic, version, record_bytes, records, producer, *rest = layout.HEADER.unpack(self._read(layout.HEADER.size, 0))
        names = {number: name for name, number in layout.PRODUCERS.items()}
        if magic != layout.MAGIC:
            raise layout.RingError(f"{self.path}: is not a ring (or not one yet): no magic at its start")
        if (version, record_bytes) != (layout.LAYOUT, layout.RECORD_BYTES):
            raise layout.RingError(
                f"{self.path}: has ring layout {version}, this hindmost reads {layout.LAYOUT}: use one version"
            )
        if not layout.is_capacity(records) or producer not in names:
            raise layout.RingError(f"{self.path}: has a damaged header: capacity {records}, producer {producer}")
        size = layout.RECORDS_OFFSET + records * layout.RECORD_BYTES
        if os.fstat(self._fd).st_size != size:
            raise layout.RingError(
                f"{self.path}: is truncated: {os.fstat(self._fd).st_size} bytes where {size} were expected"
            )
        pid, rank, world, local, monotonic, realtime, ticks, _refused, _life, _pad, *texts = rest
        identity = (pid, rank, world, local, monotonic, realtime, ticks)
        header: layout.Header = layout.Header(records, names[producer], *identity, *map(_text, texts))
        return header

    @property
    def written(self) -> int:
        """Events ever claimed."""
        return self._word(layout.HEAD_OFFSET)

    @property
    def lost(self) -> int:
        """Events that no ``poll`` can return: overwritten before they were read, never finished, or refused."""
        return self.skipped + self._word(layout.REFUSED_OFFSET)

    @property
    def closed(self) -> bool:
        """Whether the writer ended in order."""
        return self._word(layout.LIFE_OFFSET) & 0xFFFFFFFF == layout.CLOSED

    @property
    def gpu_uuid(self) -> str:
        """The GPU as known by now (the header's may be older)."""
        return _text(self._read(64, layout.GPU_OFFSET))

    @property
    def framework(self) -> str:
        """What trains in the process, as known by now: its ring may be older than the import of its framework."""
        return _text(self._read(32, layout.FRAMEWORK_OFFSET))

    def poll(self, limit: int | None = None) -> list[layout.Event]:
        """What was written since the last call, oldest first, at most ``limit`` events. Raises RingError when torn."""
        return self._decode(self.read(limit))

    @property
    def names(self) -> Mapping[int, str]:
        """The table of names; one that is not known yet is read when it is asked for."""
        return self._names

    @property
    def comm_ids(self) -> Mapping[int, int]:
        """The table of communicators, likewise."""
        return self._comms

    def event(self, words: tuple[int, ...]) -> layout.Event | None:
        """A record of ``layout.WORDS`` as an event; ``None`` for a slot that was claimed in vain."""
        what, start, took, which, value = words
        kind, peer = what & 0xFF, which >> 32 & 0xFFFF
        if not kind:  # layout.VOID
            return None
        name, comm = self._names[what >> 16], self._comms[which >> 48]
        if peer == 0xFFFF:  # layout.NONE16
            peer = -1
        return _event((kind, what >> 8 & 0xFF, name, start, took, which & 0xFFFFFFFF, peer, comm, value))

    def read(self, limit: int | None = None) -> bytes:
        """The same as whole records of ``layout.RECORD``, whose names and communicators are places in tables."""
        records = self.header.capacity
        head = self.written
        self._skip_to(head - records)
        first = self.position
        sure = max(head - first, 0)
        block = self._block(first, min(sure + _LOOKAHEAD, records, records if limit is None else limit))
        self._skip_to(self.written - records)  # overwritten while it was being copied
        block = block[(self.position - first) * layout.RECORD_BYTES :]
        good = self._finished(block, sure)
        self.position += good
        if self.position < head and good * layout.RECORD_BYTES < len(block):
            self._give_up_on(self.position)
        return block[: good * layout.RECORD_BYTES]

    def _skip_to(self, index: int) -> None:
        if index > self.position:
            self.skipped += index - self.position
            self.position = index

    def _block(self, first: int, count: int) -> bytes:
        """``count`` records from index ``first``, in order, in at most two reads."""
        slot = first & (self.header.capacity - 1)
        before_end = min(count, self.header.capacity - slot)
        block = self._read(before_end * layout.RECORD_BYTES, layout.RECORDS_OFFSET + slot * layout.RECORD_BYTES)
        if before_end < count:
            block += self._read((count - before_end) * layout.RECORD_BYTES, layout.RECORDS_OFFSET)
        return block

    def _finished(self, block: bytes, sure: int) -> int:
        """How many records from the start carry the stamp that their index asks for; ``sure`` are most likely to."""
        stamps = memoryview(block).cast("I")[:: layout.RECORD_BYTES // 4]
        low, count = self.position + 1, len(stamps)
        good = _consecutive(stamps[:sure].tobytes(), low)
        while good < count and stamps[good] == low + good & 0xFFFFFFFF:  # a stamp has 32 bits
            good += 1
        return good

    def _give_up_on(self, index: int) -> None:
        """Count a slot as lost once it has stood unwritten for a second: its writer died in the middle."""
        if self._stalled is None or self._stalled[0] != index:
            self._stalled = (index, self._clock())
        elif self._clock() - self._stalled[1] >= _STALL_S:
            self._stalled = None
            self._skip_to(index + 1)

    def _decode(self, block: bytes) -> list[layout.Event]:
        return [event for record in layout.RECORD.iter_unpack(block) if (event := self.decoded(record)) is not None]

    def decoded(self, record: tuple[int, ...]) -> layout.Event | None:
        """A record of ``layout.RECORD`` as an event; ``None`` for a slot that was claimed in vain."""
        _, kind, flags, name, start, took, seq, peer, comm, value = record
        if not kind:  # layout.VOID
            return None
        peer = -1 if peer == layout.NONE16 else peer
        return _event((kind, flags, self._names[name], start, took, seq, peer, self._comms[comm], value))

    def open_records(self) -> list[layout.Event]:
        """What has been entered and not left, an event for each peer that it waits for; ``peer`` -1: for one unknown.

        ``duration_ns`` is 0; with ``POLLS``, how often was tested in vain.
        """
        table = self._read(layout.OPEN_SLOTS * layout.RECORD_BYTES, layout.OPEN_OFFSET)
        if not any(memoryview(table).cast("I")[:: layout.RECORD_BYTES // 4]):
            return []
        partners = self._read(layout.OPEN_SLOTS * layout.WITH.size, layout.PARTNERS_OFFSET)
        again = self._read(layout.OPEN_SLOTS * layout.RECORD_BYTES, layout.OPEN_OFFSET)
        found = []
        for slot, i in enumerate(range(0, len(table), layout.RECORD_BYTES)):
            record = table[i : i + layout.RECORD_BYTES]
            if record[:4] == bytes(4) or record[:16] != again[i : i + 16]:
                continue
            for event in self._decode(record):  # none of a slot that says nothing
                known = event._replace(
                    flags=event.flags & ~layout.SEVERAL,
                    duration_ns=event.duration_ns if event.flags & layout.POLLS else 0,
                    peer=layout.ANY if event.peer == layout.ANY16 else event.peer,
                )
                found += _each(known, partners, slot) if event.flags & layout.SEVERAL else [known]
        return found

    def _load_names(self) -> list[str]:
        count = min(self._word(layout.NAMES_COUNT_OFFSET), layout.NAMES)
        table = self._read(count * layout.NAME_BYTES, layout.NAMES_OFFSET)
        return [_text(table[i : i + layout.NAME_BYTES]) for i in range(0, len(table), layout.NAME_BYTES)]

    @property
    def text(self) -> str:
        """The text that its writer has kept; empty where there is none."""
        return "".join(name[3:] for name in self._load_names() if name.startswith(layout.TEXT_PIECE))

    @property
    def communicator_count(self) -> int:
        """How many communicators are registered so far; they are never taken back."""
        return min(self._word(layout.COMMS_COUNT_OFFSET), layout.COMMS)

    def communicators(self) -> list[layout.Communicator]:
        """Every communicator registered so far, in order of first use."""
        count = self.communicator_count
        table = self._read(count * layout.COMM_BYTES, layout.COMMS_OFFSET)
        return [
            layout.Communicator(i, rank, size, _text(name)) for i, rank, size, name in layout.COMM.iter_unpack(table)
        ]

    def close(self) -> None:
        """Close the descriptor. Safe to repeat."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._names.load = self._comms.load = list  # it need not wait for the garbage collector
