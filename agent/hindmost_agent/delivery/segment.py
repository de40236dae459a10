"""Spool segments: append-only runs of records, in a file or, when the disk refuses, in memory.

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

from __future__ import annotations

import os
import struct
import zlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
        """Headers from ``offset`` on."""
        while (record := self.record(offset)) is not None:
            yield record
            offset = record.end

    def message(self, record: Record) -> bytes:
        """What a record carries."""
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
        self.size = length
        end = START
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
