"""One ring file as the agent reads it: how far, and what has been folded from it. A torn one is no error."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hindmost import ring

from hindmost_agent.jobs.fold import Fold

if TYPE_CHECKING:
    from pathlib import Path


class Mark(NamedTuple):
    """How far a ring had been read when a batch was made, and what its fold then still held back.

    ``created_ns`` tells the ring from an earlier one of the same name.
    """

    created_ns: int
    position: int
    skipped: int
    steps: int
    phases: int


class OpenRing:
    """One ring file and what has been folded from it so far; ``mark``: by an earlier agent, which was killed."""

    def __init__(self, path: Path, reader: ring.Reader, mark: Mark | None = None) -> None:
        self.path = path
        self.name = str(path)
        self.reader = reader
        self.fold = Fold()
        if mark is not None and mark.created_ns == reader.header.monotonic_ns and mark.position <= reader.written:
            self._resume(mark)
        #: Events that were lost, when it was last read.
        self.lost = reader.lost
        self._communicators: list[ring.Communicator] = []
        #: Python's rings hold phases, mostly; MPI's and NCCL's none.
        self._phases = reader.header.producer == "py"
        #: MPI's may fill within a second.
        self.bursts = reader.header.producer == "mpi"
        self._written = self.reader.position

    @property
    def mark(self) -> Mark:
        """Where to go on from once everything that was taken from the fold is in the spool."""
        reader = self.reader
        return Mark(reader.header.monotonic_ns, reader.position, reader.skipped, *self.fold.pending)

    def _resume(self, mark: Mark) -> None:
        """Fold once more what the ring still holds of the past, only for what was pending; read on at the mark."""
        reader = self.reader
        reader.position = max(reader.written - reader.header.capacity, 0)
        while reader.position < mark.position:
            before = reader.position
            events = reader.poll(mark.position - before)
            # Where the writer overwrote the oldest meanwhile, as many more were read beyond the mark.
            self.fold.feed(events[: len(events) - max(reader.position - mark.position, 0)])
            if reader.position == before:  # a slot that was never written, which the earlier agent gave up
                reader.position += 1
                self.fold.broke()
        self.fold.resume(mark.steps, mark.phases)
        reader.position, reader.skipped = mark.position, mark.skipped

    def grown(self) -> int:
        """How many events were written since this was last asked; those of a torn ring do not count."""
        before, self._written = self._written, self.written
        return self._written - before

    @property
    def written(self) -> int:
        """How many events were ever written; of a torn ring, as far as is known."""
        try:
            return self.reader.written
        except ring.RingError:
            return self._written

    @property
    def closed(self) -> bool:
        """Whether the writer ended in order, which a torn ring does not say."""
        try:
            return self.reader.closed
        except ring.RingError:
            return False

    @property
    def gpu_uuid(self) -> str:
        """The GPU as the probe knows it by now, which a torn ring does not say."""
        try:
            return self.reader.gpu_uuid
        except ring.RingError:
            return ""

    @property
    def full(self) -> float:
        """How much of the ring was waiting to be read when ``grown`` was last asked, from 0 to 1."""
        return (self._written - self.reader.position) / self.reader.header.capacity

    def read(self) -> int:
        """Fold what is new; return how many events that were. A torn ring is lost from here on, not an error."""
        reader, fold = self.reader, self.fold
        before = reader.position - reader.skipped
        try:
            new = reader.words() if self._phases else reader.records()
            if (lost := reader.lost) != self.lost:
                self.lost = lost
                fold.broke()
            if self._phases:
                fold.feed_words(new, reader.event)
            else:
                fold.feed_calls(new, reader.names, reader.comm_ids, reader.decoded)
        except ring.RingError:
            return 0
        return reader.position - reader.skipped - before

    def communicators(self) -> list[ring.Communicator]:
        """What this ring's probe has registered."""
        try:
            if self.reader.communicator_count != len(self._communicators):
                self._communicators = self.reader.communicators()
        except ring.RingError:
            return []
        return self._communicators
