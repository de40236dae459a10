"""Between arrival and disk: what is not durable yet, how much of it there may be, and what a failing disk means."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from hindmost_collector.store.flush import arrow_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hindmost_collector.chunk import Chunk
    from hindmost_collector.columns import Words
    from hindmost_collector.definitions import Definitions
    from hindmost_collector.model import Run

log = logging.getLogger(__name__)


class Store(Protocol):
    """Where flushes go. ``write`` returns when its rows and sequences are durable together."""

    @property
    def sequences(self) -> Mapping[str, int]: ...

    @property
    def clock(self) -> dict[str, Any]: ...

    def write(
        self,
        tables: Mapping[tuple[str, str], Iterable[pa.Table]],
        sequences: Mapping[str, int],
        clock: dict[str, Any] | None = None,
    ) -> tuple[int, int]: ...

    def write_meta(self, job: str, meta: Mapping[str, Any]) -> None: ...

    def append_line(self, job: str, name: str, line: str) -> None: ...

    def write_file(self, job: str, name: str, content: bytes) -> None: ...

    def read(self, job: str) -> Run: ...

    def close(self) -> None: ...


class Recorder:
    """Collects chunks and writes them; one write at a time, off the event loop.

    Args:
        limit: bytes that may wait for the disk. From half of it node metrics are shed, at all of it reading stops.
    """

    def __init__(self, store: Store | None, words: Words, definitions: Definitions, limit: int = 256 << 20) -> None:
        self.store, self._words, self._definitions, self._limit = store, words, definitions, limit
        self._pending: dict[str, list[Chunk]] = defaultdict(list)
        self._sequences: dict[str, int] = {}
        self.pending_bytes = 0
        self.written_bytes = self.written_rows = self.flushes = self.failures = self.shed_bytes = 0
        self.flush_seconds = 0.0
        self.failing: str | None = None
        self.last_flush = time.monotonic()
        self._busy = asyncio.Lock()

    def add(self, chunks: Mapping[str, Chunk], sequences: Mapping[str, int]) -> None:
        """Queue a tick's chunks, and the batch sequences that they complete."""
        for job, chunk in chunks.items():
            self._pending[job].append(chunk)
            self.pending_bytes += chunk.bytes
        self._sequences.update(sequences)

    @property
    def pressure(self) -> float:
        """How full the memory for unwritten rows is; over 1 is over the limit."""
        return self.pending_bytes / self._limit

    async def flush(self, clock: dict[str, Any]) -> Mapping[str, int]:
        """Write what is pending; the sequences that are durable now. A failing disk is remembered, never raised."""
        async with self._busy:
            pending, sequences, held = self._pending, self._sequences, self.pending_bytes
            self._pending, self._sequences = defaultdict(list), {}
            if not pending and not sequences:
                return {}
            began = time.monotonic()
            try:
                rows, written = await asyncio.to_thread(self._write, pending, sequences, clock)
            except OSError as error:
                self._failed(error, pending, sequences)
                return {}
            self.flush_seconds += time.monotonic() - began
            self.last_flush = time.monotonic()
            self.pending_bytes -= held
            self.flushes += 1
            self.written_rows += rows
            self.written_bytes += written
            if self.failing:
                log.warning("recording works again; what agents kept meanwhile is written now")
                self.failing = None
            return sequences

    def _write(
        self, pending: Mapping[str, list[Chunk]], sequences: Mapping[str, int], clock: dict[str, Any]
    ) -> tuple[int, int]:
        if self.store is None:
            return 0, 0
        tables = arrow_tables(pending, self._words, self._definitions)
        for job, chunks in pending.items():
            for chunk in chunks:
                for name, content in chunk.attachments:
                    self.store.write_file(job, name, content)
        done = self.store.write(tables, sequences, clock)
        pa.default_memory_pool().release_unused()
        return done

    def _failed(self, error: OSError, pending: Mapping[str, list[Chunk]], sequences: Mapping[str, int]) -> None:
        """Put everything back, and say once what is wrong."""
        self.failures += 1
        newer, self._pending = self._pending, defaultdict(list, pending)
        for job, chunks in newer.items():
            self._pending[job] = [*self._pending[job], *chunks]
        self._sequences = {**sequences, **self._sequences}
        reason = "the disk is full" if error.errno in {errno.ENOSPC, errno.EDQUOT} else error.strerror or str(error)
        if not self.failing:
            log.error("recording stopped: %s; judging goes on from memory, agents keep what they can", reason)
        self.failing = reason

    def discard(self) -> None:
        """Let go of what cannot be written; the agents still hold what was never acknowledged."""
        self.shed_bytes += self.pending_bytes
        self._pending, self._sequences = defaultdict(list), {}
        self.pending_bytes = 0
