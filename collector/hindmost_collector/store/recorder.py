"""Between arrival and disk: what is not durable yet, how much of it there may be, and what a failing disk means."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from hindmost_collector.ingest.chunk import Chunk
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.row_builder import Words
from hindmost_collector.store.arrow_tables import arrow_tables
from hindmost_collector.store.parquet.journal import UnsettledError

if TYPE_CHECKING:
    from hindmost_collector.store.clickhouse.store import ClickHouseStore
    from hindmost_collector.store.parquet.store import ParquetStore

#: Where flushes go. ``write`` returns when its rows, files and sequences are durable together.
Store: TypeAlias = "ParquetStore | ClickHouseStore"

log = logging.getLogger(__name__)

#: A write that has not come back for so long hangs: what comes meanwhile is kept no longer than memory lasts.
HANGS_S = 30.0
#: Writing and judging wait for each other for so long: at one time they would need the memory of both.
WAIT_S = 2.0


class StoreRecorder:
    """Collects chunks and writes them; one write at a time, off the event loop.

    While it is ``detached`` only definitions are kept: a failing store or a hanging write has filled the memory. The
    agents, which got no acknowledgement since, hold the rest.

    Args:
        limit: bytes that may wait for the disk. From half of it node metrics are shed, at all of it reading stops.
        now: seconds of a monotonic clock, to detect a hanging write.
    """

    def __init__(
        self,
        store: Store | None,
        words: Words,
        definitions: Definitions,
        limit: int = 256 << 20,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self._words, self._definitions, self.limit, self.now = store, words, definitions, limit, now
        self._pending: dict[str, list[Chunk]] = defaultdict(list)
        self._sequences: dict[str, int] = {}
        self._unsettled: dict[str, int] = {}
        self._meta: dict[str, dict[str, Any]] = {}
        self._waiting_bytes = self._held_bytes = 0  # of rows that no write has taken yet; that one has
        self.writing_since: float | None = None  # when the write in another thread began
        self.written_bytes = self.written_rows = self.flushes = self.failures = self.shed_bytes = 0
        self.flush_seconds = 0.0
        self.failing: str | None = None
        self.detached = False
        self.last_flush = time.monotonic()
        self._busy = asyncio.Lock()

    def add(self, chunks: Mapping[str, Chunk], sequences: Mapping[str, int]) -> None:
        """Queue a tick's chunks, and the batch sequences that they complete."""
        if self.detached:
            self.shed_bytes += sum(chunk.bytes for chunk in chunks.values())
            chunks, sequences = {job: chunk.definitions() for job, chunk in chunks.items()}, {}
        for job, chunk in chunks.items():
            if not chunk.empty:
                self._pending[job].append(chunk)
                self._waiting_bytes += chunk.bytes
        self._sequences.update(sequences)

    def describe(self, job: str, meta: Mapping[str, Any]) -> None:
        """Have facts of a job as a whole written to its ``meta.json`` with the next flush."""
        self._meta.setdefault(job, {}).update(meta)

    @property
    def pending_bytes(self) -> int:
        """Memory held by rows that are not durable, those that are being written included."""
        return self._waiting_bytes + self._held_bytes

    @property
    def writing(self) -> bool:
        """Whether a write is under way; one that takes long is nothing to wait for."""
        return self.writing_since is not None and self.now() - self.writing_since < WAIT_S

    @property
    def trouble(self) -> str | None:
        """Why nothing becomes durable: the store fails, or a write to it hangs; None while all is well."""
        if self.failing or not self.hangs_s:
            return self.failing
        return f"a write has not come back for {self.hangs_s:.0f} s"

    @property
    def hangs_s(self) -> float:
        """For how long a write has not come back, where that is longer than one takes; else 0."""
        taken = 0.0 if self.writing_since is None else self.now() - self.writing_since
        return taken if taken >= HANGS_S else 0.0

    @property
    def pressure(self) -> float:
        """How full the memory for unwritten rows is; over 1 is over the limit."""
        return self.pending_bytes / self.limit

    async def flush(self, clock: dict[str, Any]) -> Mapping[str, int]:
        """Write what is pending; the sequences that are durable now. A failing store is remembered, never raised."""
        async with self._busy:
            self.last_flush = began = time.monotonic()
            if not (self._pending or self._sequences or self._meta or self.failing):
                return {}
            taken = self._pending, self._sequences, self._meta
            self._pending, self._sequences, self._meta = defaultdict(list), {}, {}
            self._held_bytes, self._waiting_bytes, self.writing_since = self._waiting_bytes, 0, self.now()
            try:
                rows, written = await asyncio.to_thread(self._write, *taken, clock)
            except UnsettledError as error:
                self._unsettled.update(taken[1])
                self._failed(error)
                return {}
            except Exception as error:  # noqa: BLE001 - whatever it is: nothing was written, nothing is acknowledged
                self._put_back(*taken)
                self._failed(error)
                return {}
            finally:
                self._held_bytes, self.writing_since = 0, None
            self.flush_seconds += time.monotonic() - began
            self.flushes += 1
            self.written_rows += rows
            self.written_bytes += written
            if self.failing or self.detached:
                log.warning("recording works again; writing what agents kept meanwhile")
                self.failing = None
            durable, self._unsettled = {**self._unsettled, **taken[1]}, {}
            return durable

    def _write(
        self,
        pending: Mapping[str, list[Chunk]],
        sequences: Mapping[str, int],
        meta: Mapping[str, dict[str, Any]],
        clock: dict[str, Any],
    ) -> tuple[int, int]:
        if self.store is None:
            return 0, 0
        tables = arrow_tables(pending, self._words, self._definitions)
        files = {
            (job, name): content
            for job, parts in pending.items()
            for part in parts
            for name, content in part.attachments
        }
        done = self.store.write(tables, sequences, clock, files)
        for job, facts in meta.items():
            self._describe(job, facts)
        pa.default_memory_pool().release_unused()
        return done

    def _describe(self, job: str, facts: dict[str, Any]) -> None:
        """Write a job's facts; they are not acknowledged, so the next flush repairs a failure."""
        assert self.store is not None  # noqa: S101 - for the type checker
        try:
            self.store.write_meta(job, facts)
        except OSError:
            self._meta[job] = {**facts, **self._meta.get(job, {})}

    def _put_back(
        self, pending: Mapping[str, list[Chunk]], sequences: Mapping[str, int], meta: Mapping[str, dict[str, Any]]
    ) -> None:
        self._waiting_bytes += self._held_bytes
        newer, self._pending = self._pending, defaultdict(list, pending)
        for job, chunks in newer.items():
            self._pending[job] = [*self._pending[job], *chunks]
        self._sequences = {**sequences, **self._sequences}
        self._meta = {**meta, **self._meta}

    def _failed(self, error: Exception) -> None:
        """Count, and say once what is wrong."""
        self.failures += 1
        if isinstance(error, OSError):
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            reason, trace = "the disk is full" if full else error.strerror or str(error), None
        else:
            reason, trace = f"{type(error).__name__}: {error}", error
        if not self.failing:
            log.error(
                "recording stopped: %s; judging goes on from memory, agents keep what they can", reason, exc_info=trace
            )
        self.failing = reason

    def discard(self) -> None:
        """Let go of what cannot be written, and of all that comes until it can: the agents still hold it.

        What a write has taken stays: it may yet succeed.
        """
        if not (self.failing or self.detached):
            log.error("recording stopped: %s; judging goes on from memory, agents keep what they can", self.trouble)
        emptied = {job: [chunk.definitions() for chunk in chunks] for job, chunks in self._pending.items()}
        before, self.detached = self._waiting_bytes, True
        self._pending, self._sequences = defaultdict(list), {}
        self._waiting_bytes = sum(chunk.bytes for chunks in emptied.values() for chunk in chunks)
        self._pending.update({job: [chunk for chunk in chunks if not chunk.empty] for job, chunks in emptied.items()})
        self.shed_bytes += before - self._waiting_bytes


class Durable:
    """However many agents come at a time, the store is asked one question at a time, in a thread.

    Args:
        sequences: gives identity to the last durable sequence, as the store knows it now; may take its time.
    """

    def __init__(self, sequences: Callable[[], Mapping[str, int]]) -> None:
        self._sequences = sequences
        self._next: asyncio.Task[Mapping[str, int]] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def of(self, identity: str) -> int:
        """The last durable sequence of an agent, zero for none, as of this call or later. Raises the store's errors.

        Another collector may have made an agent's batches durable a moment ago, so an older answer is not enough.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._ask())
        return (await asyncio.shield(self._next)).get(identity, 0)

    async def _ask(self) -> Mapping[str, int]:
        async with self._one_at_a_time:
            self._next = None  # who comes from here on waits for the next answer
            return await asyncio.to_thread(self._sequences)
