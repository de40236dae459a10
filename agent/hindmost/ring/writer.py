"""The writing end of a ring, in a training process. Standard library only."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import struct
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from hindmost.ring import layout
from hindmost.ring.native import WriteEvent, has_gil, open_ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The fields of a record that says nothing.
_NOTHING = (layout.VOID, 0, layout.NONE16, 0, 0, 0, layout.NONE16, layout.NONE16, 0)


class IdentityLike(Protocol):
    """What a ring's header takes from ``hindmost.identity.Identity``."""

    @property
    def job_id(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def framework(self) -> str: ...
    @property
    def command(self) -> str: ...


def _claims(records: int) -> Iterator[tuple[int, int, int]]:
    """Of one event after the other: its index + 1, its slot, and the slot's offset, all taken as one.

    No thread comes between the three where there is a GIL. Where there is none, or as many numbers as there are slots
    would be much to keep, all follow from the first.
    """
    offsets = range(layout.RECORDS_OFFSET, layout.RECORDS_OFFSET + records * layout.RECORD_BYTES, layout.RECORD_BYTES)
    if has_gil() and records <= layout.DEFAULT_CAPACITY:
        return zip(itertools.count(1), itertools.cycle(range(records)), itertools.cycle(offsets))

    def claim(index: int) -> tuple[int, int, int]:
        slot = index - 1 & records - 1
        return index, slot, offsets[slot]

    return map(claim, itertools.count(1))


def _start_ticks() -> int:
    """Field 22 of /proc/self/stat: with the pid, it names this process for good. The command may hold blanks."""
    with open("/proc/self/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def _fixed(text: str, size: int) -> bytes:
    """UTF-8 of text, cut to size - 1 bytes between characters, so that a NUL always follows."""
    return text.encode(errors="replace")[: size - 1].decode(errors="ignore").encode()


class Writer:
    """The only writer of one ring file. Any thread may call it; no method waits, and none but ``create`` raises.

    In a forked child every method does nothing: the ring belongs to the parent.
    """

    #: ``event(kind, name, start_ns, duration_ns, seq=0, comm=NONE16, peer=NONE16, value=0, flags=0)``: append one
    #: record; ``name`` and ``comm`` are what ``name()`` and ``communicator()`` returned. The oldest is overwritten.
    event: WriteEvent

    def __init__(self, path: str, memory: mmap.mmap, records: int) -> None:
        self.path = path
        self._memory = memory
        self._views: list[memoryview] = []
        self._lock = threading.Lock()
        self._names: dict[str, int] = {}
        self._comms: dict[int, int] = {}
        self._words = self._view(0, layout.RECORDS_OFFSET, "Q")
        #: The C writer of this ring, where there is one.
        self.native = open_ring(memory, records)
        self.event = self.native.event if self.native else self._python_event(records)
        _writers.add(self)

    @classmethod
    def create(
        cls,
        directory: str | os.PathLike[str],
        identity: IdentityLike,
        producer: str,
        capacity: int = layout.DEFAULT_CAPACITY,
    ) -> Writer:
        """Make ``directory/RANK.PRODUCER.PID.ring``, allocated in full. ``producer`` is one of ``PRODUCERS``.

        Raises OSError when it cannot be made (no space, no permission, a directory of another user), and
        ValueError for a capacity that is no power of two or too large.
        """
        if not layout.is_capacity(capacity):
            raise ValueError(f"ring capacity {capacity}: a power of two up to {layout.MAX_CAPACITY} is needed")
        path = os.path.join(directory, f"{identity.rank}.{producer}.{os.getpid()}.ring")
        memory = _allocate(path, layout.RECORDS_OFFSET + capacity * layout.RECORD_BYTES)
        # The magic comes last: a reader that sees it sees a whole header.
        memory[8 : layout.HEADER.size] = _pack_header(identity, layout.PRODUCERS[producer], capacity)[8:]
        memory[0:8] = layout.MAGIC.to_bytes(8, "little")
        return cls(path, memory, capacity)

    def _view(self, start: int, end: int, code: str) -> memoryview[Any]:
        view = memoryview(self._memory)[start:end].cast(code)  # type: ignore[call-overload]
        self._views.append(view)
        return view  # type: ignore[no-any-return]

    def _python_event(self, records: int) -> WriteEvent:
        """The hot path: whatever it touches is a default argument, the cheapest of a function's variables."""
        end = layout.RECORDS_OFFSET + records * layout.RECORD_BYTES
        stamps = self._view(layout.RECORDS_OFFSET, end, "I")[:: layout.RECORD_BYTES // 4]
        self._views.append(stamps)
        head = self._view(layout.HEAD_OFFSET, layout.HEAD_OFFSET + 8, "Q")
        pack = layout.UNSTAMPED.pack_into

        def rescue(index: int, slot: int, offset: int, fields: tuple[int, ...]) -> None:
            """Stamp the slot all the same, so that no reader waits for it; an event that does not fit is refused."""
            with contextlib.suppress(ValueError, TypeError):  # closed: there is no reader
                try:
                    pack(self._memory, offset, *fields)
                except struct.error:
                    self._refuse()
                    pack(self._memory, offset, *_NOTHING)
                stamps[slot] = index & 0xFFFFFFFF

        def event(
            kind: int,
            name: int,
            start_ns: int,
            duration_ns: int,
            seq: int = 0,
            comm: int = layout.NONE16,
            peer: int = layout.NONE16,
            value: int = 0,
            flags: int = 0,
            _claims: Iterator[tuple[int, int, int]] = _claims(records),  # noqa: B008 - one for all calls
            _head: memoryview[int] = head,
            _pack: Callable[..., None] = pack,
            _memory: mmap.mmap = self._memory,
            _stamps: memoryview[int] = stamps,
        ) -> None:
            for index, slot, offset in _claims:  # noqa: B007 - the first: cheaper than a call of next()
                break
            try:
                _head[0] = index
                _pack(_memory, offset, kind, flags, name, start_ns, duration_ns, seq, peer, comm, value)
                _stamps[slot] = index
            except (
                struct.error,
                ValueError,
                TypeError,
            ):  # does not fit, or the ring was closed, or index needs cutting
                rescue(index, slot, offset, (kind, flags, name, start_ns, duration_ns, seq, peer, comm, value))

        return event

    def _refuse(self) -> None:
        """Count an event that could not be written. Nothing is counted once the ring is closed."""
        with contextlib.suppress(ValueError):
            self._words[layout.REFUSED_OFFSET // 8] += 1

    def name(self, text: str) -> int:
        """The index of a name, registered at its first use; NONE16 when the table is full."""
        index = self._names.get(text)
        return self._register_name(text) if index is None else index

    def _register_name(self, text: str) -> int:
        with self._lock:
            if text not in self._names:
                entry = _fixed(text, layout.NAME_BYTES).ljust(layout.NAME_BYTES, b"\0")
                if not self._append(layout.NAMES_OFFSET, layout.NAMES_COUNT_OFFSET, layout.NAMES, entry):
                    return layout.NONE16
                self._names[text] = len(self._names)
            return self._names[text]

    def keep_text(self, text: str) -> None:
        """Keep a text that is longer than a name, once: in pieces, as far as the table of names has room for 99."""
        for number in range(100):
            piece = _fixed(text, layout.NAME_BYTES - 3).decode()
            if not piece or self.name(f"{layout.TEXT_PIECE}{number:02}{piece}") == layout.NONE16:
                return
            text = text[len(piece) :]

    def communicator(self, id: int, rank: int, size: int, name: str) -> int:  # noqa: A002 - the contract's word
        """The index of a communicator, registered at its first use; NONE16 when the table is full."""
        index = self._comms.get(id)
        if index is not None:
            return index
        with self._lock:
            if id not in self._comms:
                entry = layout.COMM.pack(id & 0xFFFFFFFFFFFFFFFF, rank, size, _fixed(name, 48))
                if not self._append(layout.COMMS_OFFSET, layout.COMMS_COUNT_OFFSET, layout.COMMS, entry):
                    return layout.NONE16
                self._comms[id] = len(self._comms)
            return self._comms[id]

    def _append(self, table: int, count: int, most: int, entry: bytes) -> bool:
        """Write one entry of a table, then its count, in this order. False: the table is full or the ring closed."""
        try:
            index = self._words[count // 8]
            if index >= most:
                self._refuse()
                return False
            self._memory[table + index * len(entry) : table + (index + 1) * len(entry)] = entry
            self._words[count // 8] = index + 1
        except ValueError:
            return False
        return True

    def enter(
        self,
        slot: int,
        kind: int,
        name: int,
        start_ns: int,
        seq: int = 0,
        comm: int = layout.NONE16,
        peer: int = layout.NONE16,
        flags: int = 0,
    ) -> None:
        """Say that an operation has begun: it stands in the open table until ``leave(slot)``. 0 <= slot < 32."""
        word = (layout.OPEN_OFFSET + slot * layout.RECORD_BYTES) // 8
        try:
            self._words[word] = 0
            self._words[word + 1] = start_ns
            self._words[word + 3] = seq & 0xFFFFFFFF | peer << 32 | comm << 48
            self._words[word] = 1 | kind << 32 | flags << 40 | name << 48
        except (ValueError, TypeError):
            self._refuse()

    def leave(self, slot: int) -> None:
        """Say that what was entered in this slot has ended."""
        try:
            self._words[(layout.OPEN_OFFSET + slot * layout.RECORD_BYTES) // 8] = 0
        except ValueError:
            return  # closed

    def set_gpu(self, uuid: str) -> None:
        """Name the GPU of this process, once it is known."""
        self._set_text(layout.GPU_OFFSET, uuid, 64)

    def set_framework(self, text: str) -> None:
        """Name what trains in this process, once it is known."""
        self._set_text(layout.FRAMEWORK_OFFSET, text, 32)

    def _set_text(self, offset: int, text: str, size: int) -> None:
        try:
            self._memory[offset : offset + size] = _fixed(text, size).ljust(size, b"\0")
        except ValueError:
            return  # closed

    def close(self) -> None:
        """Mark the ring as ended in order and unmap it; the agent removes the file. Safe to repeat."""
        try:
            self._words[layout.LIFE_OFFSET // 8] = layout.CLOSED
        except ValueError:
            return
        self._unmap()

    def _unmap(self) -> None:
        """Release every view: a caller that still holds ``event`` writes nowhere."""
        with contextlib.suppress(BufferError):  # a thread is inside a view: the mapping goes with the last of them
            if self.native:
                self.native.release()
            for view in reversed(self._views):
                view.release()
            self._memory.close()


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


def _disown() -> None:
    """In a forked child: the rings are the parent's."""
    for writer in list(_writers):
        writer._lock = threading.Lock()  # whichever thread held it is not in this process
        writer._unmap()
    _writers.clear()


os.register_at_fork(after_in_child=_disown)


def _allocate(path: str, size: int) -> mmap.mmap:
    """A new zeroed file of this size, every byte of it backed, mapped. OSError leaves nothing behind."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"{folder}: belongs to another user")
    with contextlib.suppress(FileNotFoundError):  # of a process that had this pid before
        os.unlink(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def _pack_header(identity: IdentityLike, producer: int, records: int) -> bytes:
    return layout.HEADER.pack(
        layout.MAGIC,
        layout.LAYOUT,
        layout.RECORD_BYTES,
        records,
        producer,
        os.getpid(),
        identity.rank,
        identity.world_size,
        identity.local_rank,
        time.monotonic_ns(),
        time.time_ns(),
        _start_ticks(),
        0,
        layout.LIVE,
        0,
        _fixed(identity.job_id, 64),
        b"",
        _fixed(identity.framework, 32),
        _fixed(identity.command, 240),
    )
