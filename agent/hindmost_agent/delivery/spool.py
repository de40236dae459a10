"""What has been produced and is not yet known to be durable at the collector: bounded, and alive after kill -9.

Every batch is written here before it is sent (to the page cache: it outlives the agent, not a crash of the node), so
sending is nothing but reading on from a cursor, whether the collector was away for a millisecond or an hour.

What is left undelivered when an agent leaves stays for the next agent, a job's for a week at most.

Spool segments: append-only runs of records, in a file or, when the disk refuses, in memory.

    ┌ magic "HMSPOOL1" │ agent id, 32 hex digits ┐
    ├ record ┬ header, 24 bytes ┬ u32 length of what follows the header
    │        │                  ├ u32 CRC-32 of what follows the header
    │        │                  ├ u64 sequence of a batch, reference of a definition
    │        │                  ├ u32 samples in a batch
    │        │                  ├ u16 length of the marks
    │        │                  └ u16 kind: 1 definition, 2 batch
    │        ├ marks: how far each ring had been read when this batch was made (JSON), never sent
    │        └ message: an ``AgentMessage``, serialized
    ├ record …

A segment is self-contained: it holds every definition that its batches refer to, before them.
"""

import contextlib
import fcntl
import json
import logging
import os
import struct
import uuid
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hindmost.credentials import private_directory
from hindmost.errors import UsageError

from hindmost_agent.settings import Settings

log = logging.getLogger(__name__)

#: Why samples are given up. spool_full: the spool is at its limit. memory_full: the disk cannot be written, and memory
#: is at its limit. memory_lost: the agent ended meanwhile. damaged: files of the spool were damaged, or taken away.
REASONS = ("spool_full", "memory_full", "memory_lost", "damaged")
#: Reasons for which any batch may be lost; for the others the oldest are.
ANYWHERE = ("memory_lost", "damaged")
#: ``sent`` is saved as higher by this, so that so many batches need one save.
AHEAD = 64
#: Made once: ``json.dumps`` makes a new encoder for each call with separators.
COMPACT = json.JSONEncoder(separators=(",", ":")).encode

MAGIC = b"HMSPOOL1"
START = len(MAGIC) + 32
HEADER = struct.Struct("<IIQIHH")
DEFINITION, BATCH = 1, 2


class Record(NamedTuple):
    """A record's header and where it lies."""

    offset: int
    length: int
    crc: int
    number: int
    samples: int
    marks: int
    kind: int

    @property
    def end(self) -> int:
        """Where the next record starts."""
        return self.offset + HEADER.size + self.length


def encode(kind: int, number: int, samples: int, message: bytes, marks: bytes = b"") -> bytes:
    """One record as bytes. ``number`` is a batch's sequence or a definition's reference."""
    length, crc = len(marks) + len(message), zlib.crc32(message, zlib.crc32(marks))
    return b"".join((HEADER.pack(length, crc, number, samples, len(marks), kind), marks, message))


class Segment(ABC):
    """A run of records. ``first`` and ``last`` are batch sequences, 0 while there is none."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        #: Its place among a spool's segments.
        self.number = 0
        self.size = START
        self.first = 0
        self.last = 0

    def append(self, record: bytes, sequence: int = 0) -> None:
        """Add an encoded record (``sequence``: of a batch). Raises ``OSError``; the segment is then as before."""
        self._write(record)
        self.size += len(record)
        if sequence:
            self.first = self.first or sequence
            self.last = sequence

    def record(self, offset: int) -> Record | None:
        """The header of the record at ``offset``; ``None`` at the end."""
        if offset + HEADER.size > self.size:
            return None
        return Record(offset, *HEADER.unpack(self.read(HEADER.size, offset)))

    def records(self, offset: int = START) -> Iterator[Record]:
        while (record := self.record(offset)) is not None:
            yield record
            offset = record.end

    def message(self, record: Record) -> bytes:
        return self.read(record.length - record.marks, record.offset + HEADER.size + record.marks)

    def marks(self, record: Record) -> bytes:
        """How far rings had been read when this record's batch was made."""
        return self.read(record.marks, record.offset + HEADER.size)

    @abstractmethod
    def read(self, size: int, offset: int) -> bytes:
        """Bytes of the segment."""

    @abstractmethod
    def remove(self) -> None:
        """Give its space back."""

    @abstractmethod
    def _write(self, data: bytes) -> None: ...


class MemorySegment(Segment):
    """Holds records while the disk takes none."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(agent_id)
        self._data = bytearray(START)

    def read(self, size: int, offset: int) -> bytes:
        return bytes(self._data[offset : offset + size])

    def remove(self) -> None:
        self._data = bytearray()

    def _write(self, data: bytes) -> None:
        self._data += data


class FileSegment(Segment):
    """A segment file. What a killed agent left half written at its end is cut off when it is opened again."""

    def __init__(self, path: Path, agent_id: str = "") -> None:
        super().__init__(agent_id)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if agent_id:
                os.pwrite(self._fd, MAGIC + agent_id.encode(), 0)
            else:
                self._recover()
        except (OSError, ValueError):
            if agent_id:  # of a full disk nothing must be left, at each try, but its error
                self.remove()
            self.close()
            raise

    def read(self, size: int, offset: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    @property
    def there(self) -> bool:
        """Whether its file still has a name: it may have been removed while it was written."""
        return os.fstat(self._fd).st_nlink > 0

    def close(self) -> None:
        """Close the descriptor and leave the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes) -> None:
        try:
            written = 0
            while written < len(data):  # a full disk takes a part before it says so
                written += os.pwrite(self._fd, data[written:], self.size + written)
        except OSError:
            os.ftruncate(self._fd, self.size)
            raise

    def _recover(self) -> None:
        """Find the end of what is whole. Raises ``ValueError`` when this is no segment."""
        length = os.fstat(self._fd).st_size
        start = self.read(START, 0)
        if len(start) < START or not start.startswith(MAGIC):
            raise ValueError(f"{self.path}: not a spool segment")
        self.agent_id = start[len(MAGIC) :].decode("ascii", "replace")
        self.size, end = length, START
        for record in self.records():
            if record.end > length or record.marks > record.length:  # damaged: not read, as it may say gigabytes
                break
            if zlib.crc32(self.read(record.length, record.offset + HEADER.size)) != record.crc:
                break
            end = record.end
            if record.kind == BATCH:
                self.first = self.first or record.number
                self.last = record.number
        self.size = end
        os.ftruncate(self._fd, end)


class Ledger:
    """The account of samples that survives a restart: produced = delivered + dropped + pending, always.

    Counts of samples, and sequences up to which batches were made, sent and acknowledged.

    ``doubt`` holds (sequence, samples, reason) of batches that were dropped after they had been sent: the collector
    may have them, and says so when it next acknowledges or welcomes.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._length = 0
        self.agent_id = uuid.uuid4().hex
        self.sequence = 0
        self.sent = 0
        #: The last sequence that was sent: exact in the agent that sends, after a restart an upper bound.
        self._last_sent = 0
        self.acked = 0
        self.dropped_through = 0
        self.produced = 0
        self.delivered = 0
        self.dropped: Counter[str] = Counter()
        self.doubt: list[tuple[int, int, str]] = []
        #: Samples that memory alone held since the disk last failed, at most: a killed agent takes them with it.
        self.in_memory = 0
        self.fresh = not self._load()

    @property
    def pending(self) -> int:
        """Samples that are neither delivered nor dropped yet."""
        return self.produced - self.delivered - self.dropped.total()

    def made(self, sequence: int, samples: int) -> None:
        """A batch was appended. Not saved: the segment itself says so after a restart."""
        self.sequence = sequence
        self.produced += samples

    def sending(self, sequence: int) -> None:
        """A batch is about to be sent."""
        self._last_sent = max(self._last_sent, sequence)
        if sequence > self.sent:
            self.sent = sequence + AHEAD
            self.save()

    def drop(self, sequence: int, samples: int, reason: str) -> None:
        """A batch was given up; if it may have arrived, that is left open. ``save`` before its bytes are removed.

        Of all that is held the oldest is given up first; what was lost may have come after what is kept.
        """
        if self.acked < sequence <= self._last_sent:
            self.doubt.append((sequence, samples, reason))
        else:
            self.dropped[reason] += samples
        if reason not in ANYWHERE:
            self.dropped_through = max(self.dropped_through, sequence)

    def reconcile(self, samples: int) -> int:
        """So many are held by the spool that was found; returns how many were damaged or taken away.

        What else an earlier agent had pending went with its memory first. What an earlier one could not read, and this
        one can, is pending again.
        """
        lost = self.pending - sum(samples for _, samples, _ in self.doubt) - samples
        with_memory = min(max(lost, 0), self.in_memory)
        damaged = max(lost - with_memory, -self.dropped["damaged"])
        self.dropped += Counter(memory_lost=with_memory)
        self.dropped["damaged"] += damaged
        self.dropped = +self.dropped
        self.in_memory = 0
        return damaged

    def resolve(self, durable: int, received: int | None = None) -> None:
        """Everything up to ``durable`` is safe at the collector; of what is in doubt nothing after ``received`` is."""
        still = []
        for sequence, samples, reason in self.doubt:
            if sequence <= durable:
                self.delivered += samples
            elif received is not None and sequence > received:
                self.dropped[reason] += samples
            else:
                still.append((sequence, samples, reason))
        self.doubt = still

    def save(self) -> None:
        """Write the account. One write in place: whole or not at all, also when the agent is killed in it."""
        if self._path is None:
            return
        state = {name: value for name, value in vars(self).items() if not name.startswith("_") and name != "fresh"}
        data = COMPACT(state).encode().ljust(self._length)
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:  # a full or read-only disk: the account goes on in memory
            return
        try:
            os.pwrite(fd, data, 0)
            self._length = len(data)
        except OSError:
            return
        finally:
            os.close(fd)

    def _load(self) -> bool:
        if self._path is None:
            return False
        try:
            data = self._path.read_bytes()
            state: dict[str, Any] = json.loads(data)
            self.dropped = Counter({str(reason): int(count) for reason, count in state["dropped"].items()})
            self.doubt = [(int(sequence), int(samples), str(reason)) for sequence, samples, reason in state["doubt"]]
            self.agent_id = str(state["agent_id"])
            for name in ("sequence", "sent", "acked", "dropped_through", "produced", "delivered"):
                setattr(self, name, int(state[name]))
            self.in_memory = int(state.get("in_memory", 0))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
        self._length, self._last_sent = len(data), self.sent
        return True


#: Kept in memory at most while the disk takes nothing.
MEMORY_LIMIT = 8 << 20
SEGMENTS = 16
LARGEST_SEGMENT = 8 << 20
#: Definitions of which is remembered that this stream, or this segment, has them; beyond it all are forgotten, and sent
#: or written once more where they are met. Jobs come and go, and a stream may last for years.
MOST_DEFINITIONS = 4096
#: Segments in memory are tried to be replaced by files this often (in batches).
RETRY_DISK = 30


class Outgoing(NamedTuple):
    """A message to send: a definition (``sequence`` 0) or a batch."""

    sequence: int
    message: bytes


class Spool:
    """The spool in ``folder``; ``None`` keeps everything in memory. ``limit`` is in bytes.

    Raises ``UsageError`` when the folder belongs to another agent or cannot be made.
    """

    def __init__(self, folder: Path | None, limit: int) -> None:
        self.limit = limit
        self._folder = folder
        self._lock = _locked(folder) if folder else -1
        self.ledger = Ledger(folder / "ledger.json" if folder else None)
        self._segments: list[Segment] = []
        self._number = 0
        self._since_disk = 0
        #: By reference the checksum of each definition that the last segment, and this stream, has.
        self._in_segment: dict[int, int] = {}
        self._on_stream: dict[int, int] = {}
        self._disk_failed = False
        self._resume_after = 0
        self._sent = 0
        self._cursor: tuple[Segment, int] | None = None
        self._ack: tuple[Segment, int] | None = None
        #: How far each ring had been read when the last batch was made, by an agent that then ended.
        self.marks: dict[str, list[int]] = {}
        self._recover()

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(segment.size for segment in self._segments)

    def append(
        self,
        samples: int,
        message: bytes,
        definitions: Mapping[int, bytes],
        marks: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Take a batch (``message`` holds ``next_sequence``) and the definitions that it refers to."""
        sequence = self.next_sequence
        noted = COMPACT(marks).encode() if marks else b""
        batch = encode(BATCH, sequence, samples, message, noted if len(noted) < 1 << 16 else b"")
        try:
            self._store(sequence, batch, definitions)
        except OSError as error:
            self._say(error)
            self._start_segment(MemorySegment(self.ledger.agent_id))
            self._store(sequence, batch, definitions)
        if self._disk_failed and isinstance(self._segments[-1], FileSegment):
            self._say(None)
        self.ledger.made(sequence, samples)
        if isinstance(self._segments[-1], MemorySegment):
            self.ledger.in_memory += samples
        self._shrink()

    @property
    def next_sequence(self) -> int:
        """The number of the batch to be appended next."""
        return self.ledger.sequence + 1

    def connected(self, durable: int, received: int = 0) -> None:
        """A new stream: the collector has everything up to ``durable``; go on from there.

        What it has ``received`` beyond that, on a stream before, may still become durable; nothing else will.

        What an earlier collector acknowledged is not sent to another: it was delivered, once.
        """
        self.ledger.sequence = max(self.ledger.sequence, durable)  # numbers it knows are used up
        self.ledger.resolve(durable, received)
        self.acknowledge(durable)
        self._on_stream.clear()
        self._resume_after = self._sent = self.ledger.acked
        self._cursor = (self._segments[0], START) if self._segments else None

    def on_the_way(self) -> int:
        """Batches sent on this stream and not acknowledged, at most (dropped ones leave gaps in the sequence)."""
        return max(self._sent - self.ledger.acked, 0)

    def next(self) -> Outgoing | None:
        """What to send next on this stream, or ``None`` when all is sent."""
        while (found := self._record(self._cursor)) is not None:
            segment, record = found
            self._cursor = segment, record.end
            if record.kind == DEFINITION and _is_new(self._on_stream, record.number, record.crc):
                return Outgoing(0, segment.message(record))
            if record.kind == BATCH and record.number > self._resume_after:
                self.ledger.sending(record.number)
                self._sent = record.number
                return Outgoing(record.number, segment.message(record))
        return None

    def acknowledge(self, durable: int) -> None:
        """Everything up to ``durable`` is safe at the collector: count it as delivered and give its space back."""
        ledger = self.ledger
        if durable <= ledger.acked:
            return
        ledger.resolve(durable)
        while (found := self._record(self._ack)) is not None:
            segment, record = found
            if record.kind == BATCH:
                if record.number > durable:
                    break
                if record.number > ledger.acked:
                    ledger.delivered += record.samples
            self._ack = segment, record.end
        ledger.acked = durable
        ledger.save()
        while len(self._segments) > 1 and self._segments[0].last <= durable:
            self._remove_oldest()

    def definition(self, ref: int) -> bytes | None:
        """The message that defines a reference, or ``None`` if it is not held any more."""
        for segment in reversed(self._segments):
            for record in segment.records():
                if record.kind == DEFINITION and record.number == ref:
                    return segment.message(record)
        return None

    def close(self, *, remove: bool = False) -> None:
        """Save the account and leave everything to the next agent; or ``remove`` it all."""
        for segment in self._segments:
            if remove:
                segment.remove()
            elif not isinstance(segment, FileSegment):
                self._save(segment)
            else:
                if not segment.there:
                    self._drop(segment, "damaged")
                segment.close()
        self.ledger.in_memory = 0
        self.ledger.save()
        self._segments = []
        self._cursor = self._ack = None
        if remove and self._folder is not None:
            for name in ("ledger.json", "lock"):
                (self._folder / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it is gone, or contains other files
                self._folder.rmdir()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _save(self, segment: Segment) -> None:
        """Leave to the next agent what was held in memory; where the disk still takes nothing it is given up."""
        try:
            file = FileSegment(self._path(segment.number), self.ledger.agent_id)
            try:
                file.append(segment.read(segment.size - START, START))
            except OSError:
                file.remove()
                raise
            file.close()
        except OSError:
            self._drop(segment, "memory_lost")

    def _say(self, error: OSError | None) -> None:
        """One line when the disk takes no more, one when it does again."""
        if error is not None and not self._disk_failed:
            log.warning("spool %s: %s: keeping data in memory, at most %d MiB", self._folder, error, MEMORY_LIMIT >> 20)
        elif error is None and self._disk_failed:
            log.info("spool %s: writable again", self._folder)
        self._disk_failed = error is not None

    def _path(self, number: int) -> Path:
        """Where a segment belongs. Raises ``OSError`` of a spool that is in memory alone."""
        if self._folder is None:
            raise FileNotFoundError("no folder")
        return self._folder / f"{number:016d}.spool"

    def _store(self, sequence: int, batch: bytes, definitions: Mapping[int, bytes]) -> None:
        segment = self._active(len(batch))
        for ref, message in definitions.items():
            if _is_new(self._in_segment, ref, zlib.crc32(message)):
                segment.append(encode(DEFINITION, ref, 0, message))
        segment.append(batch, sequence)

    def _active(self, coming: int) -> Segment:
        """The segment to append to: the last one, or a new one when that is full or should be on disk again."""
        last = self._segments[-1] if self._segments else None
        full = last is None or last.size + coming > min(max(self.limit // SEGMENTS, 1 << 16), LARGEST_SEGMENT)
        self._since_disk += isinstance(last, MemorySegment)
        if last is None or full or (self._folder and self._since_disk >= RETRY_DISK):
            self._since_disk = 0
            if self._folder is not None:
                try:
                    return self._start_segment(FileSegment(self._path(self._number), self.ledger.agent_id))
                except OSError as error:
                    self._say(error)
            return self._start_segment(MemorySegment(self.ledger.agent_id))
        return last

    def _start_segment(self, segment: Segment) -> Segment:
        segment.number = self._number
        self._number += 1
        self._segments.append(segment)
        self._in_segment = {}
        self._cursor = self._cursor or (segment, START)
        self._ack = self._ack or (segment, START)
        return segment

    def _shrink(self) -> None:
        """Give up the oldest segments while there is too much."""
        while len(self._segments) > 1:
            full = self.size > self.limit
            if not full and self._in_memory() <= min(MEMORY_LIMIT, self.limit):
                break
            self._drop(self._segments[0], "spool_full" if full else "memory_full")
            self.ledger.save()
            self._remove_oldest()

    def _in_memory(self) -> int:
        return sum(segment.size for segment in self._segments if isinstance(segment, MemorySegment))

    def _undelivered(self, segment: Segment) -> Iterator[Record]:
        return (one for one in segment.records() if one.kind == BATCH and one.number > self.ledger.acked)

    def _drop(self, segment: Segment, reason: str) -> None:
        for record in self._undelivered(segment):
            self.ledger.drop(record.number, record.samples, reason)

    def _remove_oldest(self) -> None:
        oldest = self._segments.pop(0)
        following = (self._segments[0], START)
        if self._cursor is not None and self._cursor[0] is oldest:
            self._cursor = following
        if self._ack is not None and self._ack[0] is oldest:
            self._ack = following
        oldest.remove()
        if not self._in_memory():
            self.ledger.in_memory = 0

    def _record(self, place: tuple[Segment, int] | None) -> tuple[Segment, Record] | None:
        """The first record from a place on, with its segment; ``None`` at the end of all."""
        if place is None:
            return None
        first, offset = place
        for segment in self._segments[self._segments.index(first) :]:
            if (record := segment.record(offset)) is not None:
                return segment, record
            offset = START
        return None

    def _recover(self) -> None:
        """Take over what an earlier agent left; what had been acknowledged or dropped is removed."""
        ledger = self.ledger
        paths = sorted(self._folder.glob("*.spool")) if self._folder else []
        for path in paths:
            try:
                self._number = int(path.stem) + 1  # also of one that cannot be read: it is not written over
                segment = FileSegment(path)
            except (OSError, ValueError) as error:
                log.warning("spool: %s; skipped", error)
                continue
            if ledger.fresh:  # the account was lost: the segments say whose they are
                ledger.agent_id = segment.agent_id
            # The last one stays until another follows, delivered or not: it holds the marks.
            over = ledger.dropped_through if path == paths[-1] else max(ledger.acked, ledger.dropped_through)
            if segment.agent_id != ledger.agent_id or segment.last <= over:
                segment.remove()
                continue
            self._start_segment(segment)
            self._take_over(segment)
        # No number up to ``sent`` again: what was sent while the disk took nothing left no other trace.
        ledger.sequence = max(ledger.sequence, ledger.sent)
        found = (record.samples for segment in self._segments for record in self._undelivered(segment))
        damaged = ledger.reconcile(sum(found))
        if damaged > 0:
            log.warning(
                "spool %s: %d samples were in damaged or missing segments: counted as dropped (damaged)",
                self._folder, damaged,
            )  # fmt: skip
        if self._folder is not None:
            ledger.save()

    def _take_over(self, segment: Segment) -> None:
        for record in segment.records():
            if record.kind == BATCH:
                if record.number > self.ledger.sequence:
                    self.ledger.made(record.number, record.samples)
                if record.marks:
                    with contextlib.suppress(ValueError):  # its header was damaged, of which no checksum tells
                        marks = json.loads(segment.marks(record))
                        self.marks = marks if isinstance(marks, dict) else self.marks
            elif segment is self._segments[-1]:
                _is_new(self._in_segment, record.number, record.crc)


def _is_new(known: dict[int, int], ref: int, crc: int) -> bool:
    """Whether a definition has not been noted yet, or was another one; it is from now on."""
    if known.get(ref) == crc:
        return False
    if len(known) >= MOST_DEFINITIONS:
        known.clear()
    known[ref] = crc
    return True


def _locked(folder: Path) -> int:
    """Make the folder and lock it for this process; returns the lock's descriptor."""
    try:
        private_directory(folder)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UsageError(f"--spool {folder}: {error.strerror}; name a folder that can be written") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise UsageError(f"--spool {folder}: another agent uses it; give each its own") from error
    return lock


#: A job's spool that no agent used for this long (s) is removed: temporary folders must not grow forever.
EXPIRY_S = 7 * 86400.0


def closed(spool: Spool, settings: Settings) -> dict[str, Any]:
    """Close the spool, removed when it is empty; returns the account of samples as it stands then.

    ``produced`` is ``delivered`` plus all of ``dropped`` plus ``kept``; where the last is not 0, one line says so. What
    was given up after it had been sent, and may have arrived, is none of what is kept.
    """
    ledger = spool.ledger
    spool.close(remove=not ledger.pending)
    dropped = Counter(ledger.dropped)
    for _, samples, reason in ledger.doubt:
        dropped[reason] += samples
    undelivered = ledger.produced - ledger.delivered - dropped.total()
    account: dict[str, Any] = {
        "produced": ledger.produced,
        "delivered": ledger.delivered,
        "dropped": dict(dropped),
        "kept": undelivered,
    }
    if undelivered:
        command = f"hindmost agent{f' --job-id {settings.job_id}' * bool(settings.job_id)} --spool {settings.spool}"
        log.warning(
            "%d samples were not acknowledged by %s and stay in %s; deliver them with: %s --collector HOST:PORT",
            undelivered, settings.collector, settings.spool, command,
        )  # fmt: skip
    return account


def expire(base: Path, now_s: float) -> int:
    """Remove spools of jobs below ``base`` that did not change for a week; returns how many. ``now_s``: Unix."""
    removed = 0
    for ledger in base.glob("*/ledger.json"):
        try:
            if now_s - ledger.stat().st_mtime < EXPIRY_S:
                continue
            spool = Spool(ledger.parent, 1 << 62)
        except (OSError, UsageError):  # in use, or gone by now
            continue
        log.warning("dropped %d samples that were in %s for a week", spool.ledger.pending, ledger.parent)
        spool.close(remove=True)
        removed += 1
    return removed
