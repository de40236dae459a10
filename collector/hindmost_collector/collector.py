"""The collector running: its start, what it moves on at each tick and maintains twice a minute, its end."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from hindmost.daemon_process import FULL_PERIOD_S
from hindmost.errors import HindmostError
from hindmost_judge.settings import DEFAULT
from hindmost_proto import retry

from hindmost_collector.components import Components
from hindmost_collector.http_client import Receiver
from hindmost_collector.ingest.chunk import finish
from hindmost_collector.ingest.connections import listen
from hindmost_collector.ingest.session import batch_ns
from hindmost_collector.ingest.streams import MESSAGE_LIMIT
from hindmost_collector.live.evaluation_loop import Watch
from hindmost_collector.live.sealing import finish as seal
from hindmost_collector.live.sealing import note, preliminary
from hindmost_collector.page.history import cells_of
from hindmost_collector.serve.credentials import Door
from hindmost_collector.serve.endpoints import Endpoints
from hindmost_collector.serve.http import Page
from hindmost_collector.store.parquet.compaction import MANY_SEGMENTS, Retention, Upkeep
from hindmost_collector.store.parquet.store import ParquetStore
from hindmost_collector.store.recorder import WAIT_S
from hindmost_collector.store.remote_write import RemoteWrite

if TYPE_CHECKING:
    import grpc
    from hindmost_judge.settings import Settings

    from hindmost_collector.live.jobs import LiveJob
    from hindmost_collector.options import Options
    from hindmost_collector.store.recorder import Store

log = logging.getLogger(__name__)

#: Between rounds of compaction and retention.
UPKEEP_S = 30.0
#: So many rounds are put off while cores are full. In the next one tables of many segments have so many merges:
#: compaction takes more CPU time than all flushes.
PUT_OFF, MERGES = 10, 2
#: A series whose agent has not sent for this long has no value.
STALE_NS = 120_000_000_000
#: An agent without a stream is forgotten after an hour. A schema without samples is forgotten after ten minutes: each
#: process that starts or ends on a node makes new ones. Both come back, the agent's numbers from the store.
FORGET_NS, UNUSED_NS = 3_600_000_000_000, 600_000_000_000


async def tend(components: Components) -> None:
    """Forget, compact and expire, a piece at a time, when the store allows; for ever."""
    options, store = components.options, components.recorder.store
    limits = Retention(options.retention_days, int(options.retention_gib * 2**30))
    upkeep = Upkeep(store, limits) if isinstance(store, ParquetStore) else None
    put_off = 0
    while True:
        await asyncio.sleep(UPKEEP_S)
        prune(components)
        full = components.cores_are_full()
        put_off = (put_off + 1) % PUT_OFF if full else 0
        if put_off or upkeep is None or components.recorder.hangs_s:
            continue
        if not components.recorder.failing:
            large_tables = partial(upkeep.compact, MANY_SEGMENTS)
            await (_repeat(components, large_tables, MERGES) if full else _repeat(components, upkeep.compact))
        await _repeat(components, upkeep.expire)  # whatever became of compaction: it makes room on a full disk


async def _repeat(components: Components, piece: Callable[[], int], most: int = sys.maxsize) -> None:
    """Do a piece of upkeep until nothing is left to do; what fails is tried again in the next round."""
    try:
        for _ in range(most):
            if not await components.shielded.whole(asyncio.to_thread(_counted, components, piece)):
                break
            await asyncio.sleep(1.0)
    except (OSError, HindmostError) as error:
        log.warning("maintenance of the store failed and will be retried: %s", error)
    except Exception:  # a task that ended here would let the disk fill without a word
        log.exception("maintenance of the store failed and will be retried")


def _counted(components: Components, piece: Callable[[], int]) -> int:
    """Do a piece of upkeep, in a thread that does nothing else meanwhile, and count what CPU time it took."""
    began = time.thread_time()
    try:
        return piece()
    finally:
        components.upkeep_seconds += time.thread_time() - began


def prune(components: Components) -> None:
    """Forget agents and jobs without news for long, and share the memory for windows among the remaining jobs."""
    now = components.clock.now()
    components.definitions.used(components.nodes.schemas(), now)
    components.nodes.expire(now - STALE_NS, now)
    cells = cells_of(len(components.jobs))
    for job in components.jobs.values():
        components.bound_window(job)
        job.history.bound(cells)
    if not components.recorder.trouble:  # what waits for the disk still needs its definitions
        components.ingest.prune(now - FORGET_NS)
        components.definitions.prune(now, UNUSED_NS)
        components.decoder.prune()
        components.ingest.again.prune()


TICK_S = 0.5
#: A tick lets agents and requests be served after so long.
SLICE_S = 0.005
#: How long agents may take to flush and say Goodbye once asked to stop.
GOODBYE_S = 12.0
#: Where a signal ends it, the agents mostly got it too: how long they may take to leave by themselves, and then who
#: started this collector to say how the job ended.
SIGNALLED_S, LAST_WORD_S = 5.0, 1.0
#: While cores are full, how often (s) the collector looks whether an agent has news, and how much further apart flushes
#: are: agents keep what is not written. A flush of one second's rows costs as much as that of half a minute's: a file a
#: table.
NEWS_LOOK_S, FULL_CORES_FLUSH = 2.0, 30
#: So long (s) the agent and ranks start: it is not known yet whether they fill the cores.
STARTING_S = 10.0
#: Jobs that are watched live at one time.
JOB_LIMIT = 1000


class Collector(Components):
    """A running collector. ``start`` before anything else; ``stop`` is safe at any time."""

    def __init__(self, options: Options, store: Store | None, settings: Settings = DEFAULT) -> None:
        super().__init__(options, store, settings)
        self.endpoints = Endpoints(self)
        self.remote = self._remote_write()
        self.watch = Watch(self, self.judging, self._end)
        self._described: set[str] = set()  # jobs of whose ranks something new is known
        self._parts: Iterator[None] = iter(())  # what is left of the tick that was begun last
        self._server: grpc.aio.Server | None = None
        self._page: Page | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.began = time.monotonic()

    def _remote_write(self) -> RemoteWrite | None:
        if not self.options.remote_write:
            return None
        receiver = Receiver(self.options.remote_write)
        label, page = self.options.job_label, self.endpoints.jobs_text
        return RemoteWrite(receiver, self.definitions, page, job_label=label, now_ns=self.clock.now)

    async def start(self, page: Page | None = None) -> dict[str, str | None]:
        """Bind both ports; ``{"grpc": "HOST:PORT", "http": "HOST:PORT" or None}``. Raises HindmostError.

        A ``page`` that is served already shows this collector from now on, and is closed with it.
        """
        self._page = page
        handlers = (self.ingest.handler(), self.ingest.rejected_calls)
        self._server, bound = listen(self.options.listen, handlers, MESSAGE_LIMIT, self.gate.server())
        http = self.options.http_address
        if http and not page:
            self._page = Page(http, self.endpoints, Door(self.gate, self.options))
        await self._server.start()
        if self.remote:
            self.remote.start()
        work = (self._ticks(), self.watch.run(), self.lag.watch(), tend(self))
        self._tasks = [asyncio.create_task(one) for one in work]
        self.ready, address = True, self._page.address if self._page else None
        if page:
            page.show(self.endpoints)
        if self.options.job_id:
            self.job(self.options.job_id)
            note(
                self,
                self.options.job_id,
                {"started_ns": self.clock.now(), "page": address, "host": os.uname().nodename},
            )
            self.recorder.last_flush = float("-inf")  # the first tick writes that down: it leads to the page
        return {"grpc": bound, "http": address}

    async def _ticks(self) -> None:
        flush: asyncio.Task[None] | None = None  # concurrent with the ticks: a hanging one must not delay their relief
        while True:
            await self.next_tick()
            try:
                if flush and flush.done():
                    ended, flush = flush, None
                    ended.result()
                served = time.monotonic()
                for _ in self.gathering():
                    if time.monotonic() - served >= SLICE_S:
                        await asyncio.sleep(0)
                        served = time.monotonic()
                if flush is None and self.flush_due():
                    flush = asyncio.create_task(self.flush())
            except Exception:  # a collector that no longer ticks would take batches and keep none of them
                if not self.recorder.failing:
                    log.exception("a tick failed; its data is requested again")
                self.recorder.failing = "a tick failed, see the log"
                self.recorder.discard()
                self.definitions.forget()

    async def next_tick(self) -> None:
        """Wait for the next tick: while cores are full, until agents make their next batches or one has news."""
        while True:
            full, left_s = self.cores_are_full(), FULL_PERIOD_S - time.time() % FULL_PERIOD_S
            usual_s = min(left_s, NEWS_LOOK_S) if full else TICK_S
            pause_s = self.watch.pause_s(usual_s)
            may_hang, turn = pause_s < usual_s, usual_s == left_s
            await asyncio.sleep(pause_s)
            news = self.ingest.inbox.out_of_turn or (self.ingest.inbox.waits and self._awaited())
            if not full or may_hang or turn or news or self._departing():
                return

    def _awaited(self) -> bool:
        """Whether a job waits for its first verdict, or for one that its counters let expect."""
        return any(job.report is None or job.counter_watch.change for job in self.jobs.values())

    def _departing(self) -> bool:
        """Whether an agent waits for its last acknowledgement."""
        return any(agent.departed and agent.outbox for agent in self.ingest.agents.values())

    def flush_due(self) -> bool:
        starting = self.options.exit_when_stdin_closes and time.monotonic() - self.began < STARTING_S
        period = self.options.flush_period * (FULL_CORES_FLUSH if starting or self.cores_are_full() else 1)
        overdue = time.monotonic() - self.recorder.last_flush - period
        if overdue >= 0:
            return overdue >= WAIT_S or not self.judging.busy
        if self.recorder.failing:
            return False  # trying more often costs time and gains nothing
        return self._departing() or self.recorder.pressure > 0.125

    def gather(self) -> None:
        """Move what has arrived to the recorder, the windows and the counters."""
        deque(self.gathering(), maxlen=0)

    def gathering(self) -> Iterator[None]:
        """The same in parts, between which the event loop may serve others; what another call began is done first."""
        deque(self._parts, maxlen=0)
        self._parts = self._in_parts()
        return self._parts

    def _in_parts(self) -> Iterator[None]:
        self.ingest.connection_log.tell(self.ingest.connected)
        self.ingest.inbox.empty()
        self.ingest.inbox.next_turn()
        sequences = self.ingest.received()
        chunks = {name: finish(rows) for name, rows in self.decoder.take().items()}
        self.recorder.add(chunks, sequences)
        self.recorder.add({name: finish(rows) for name, rows in self.ingest.again.take().items()}, {})
        self._relieve()
        now = self.clock.now()
        for name, chunk in chunks.items():
            yield
            self.nodes.add(chunk.metrics, in_order=chunk.in_order)
            if self.remote:
                self.remote.add(chunk.metrics)
            if name and self._shown(name):
                yield
                yield from self.job(name).adding(chunk, self.decoder.words, self.definitions, now)
                if "ranks" in chunk.plain:
                    self._described.add(name)

    def _shown(self, name: str) -> bool:
        """Whether a job has, or may have, a window; beyond the limit jobs are recorded and not watched."""
        if name in self.jobs or len(self.jobs) < JOB_LIMIT:
            return True
        if not self.ingest.counts["unwatched_chunks"]:
            log.warning("%d jobs at once: job %s and further ones are recorded but not watched live", JOB_LIMIT, name)
        self.ingest.counts["unwatched_chunks"] += 1
        return False

    def _relieve(self) -> None:
        """Under pressure: node metrics go first; when the disk fails, everything that agents can send again."""
        parked = self.ingest.parking.bytes / (self.options.memory_mib << 20)
        pressure, shedding = self.recorder.pressure + parked, self.ingest.shed_metrics
        wanted = pressure > 0.5 or (shedding and pressure > 0.25)
        self.ingest.throttle(wanted, batch_ns(self.ingest.connected(), self.ingest.batch_ns))
        if wanted != shedding:
            log.warning(
                "%s node metrics: memory for unwritten rows is %.0f %% full",
                "dropping" if wanted else "accepting",
                pressure * 100,
            )
        if pressure >= 1 and self.recorder.trouble:
            self.recorder.discard()
        if pressure >= 1 and not self.recorder.detached:
            self.ingest.pause()
        else:
            self.ingest.resume()

    async def flush(self) -> None:
        """Write what is pending and acknowledge it."""
        await self.shielded.whole(self._flush())

    async def _flush(self) -> None:
        described, self._described = self._described, set()
        for name in described & self.jobs.keys():
            note(self, name, {"started_ns": self.jobs[name].started_ns})
        self.ingest.acknowledge(await self.recorder.flush(self.clock.state()))
        if self.recorder.detached and not self.recorder.failing:
            self.gather()  # what came meanwhile has been seen and not recorded: it comes again, with the rest
            self.recorder.detached = False
            self.ingest.rewind("the collector could not record what came before, and now can: send it again")
        self._relieve()

    async def _end(self, job: LiveJob) -> None:
        """Write down the end of a job, and forget it."""
        await seal(self, job, self.flush)
        del self.jobs[job.id]
        self.endpoints.forget(job.id)
        self.definitions.forget_job(job.id)

    def interrupted(self, by: str) -> None:
        """This signal asked the collector to end, and so its job; the process that started it may know better."""
        job = self.job(self.options.job_id)
        job.interrupted_by = job.interrupted_by or by

    async def _take_in(self, awaited: Callable[[], object], seconds: float) -> None:
        """Write, and acknowledge, all that comes while something is ``awaited``, for so long at most."""
        deadline = time.monotonic() + seconds
        while awaited() and time.monotonic() < deadline:
            self.gather()
            await self.flush()
            await asyncio.sleep(0.05)

    async def stop(self, reason: str, end_known: asyncio.Event | None = None) -> dict[str, Any] | None:
        """Ask agents to leave, write everything, judge. The report of the job that was asked for, if it could not be
        written to disk.

        ``end_known`` is set once the job's end is known. Where a signal came first, it is waited for a moment, while
        agents that got it too leave in order. SIGKILL may follow within seconds, and until cores were free nothing may
        have been written: what has come is written first. Until the whole recording is judged, the report is that of
        the last evaluation.
        """
        if end_known is not None and not end_known.is_set():
            self.gather()
            await self.flush()
            await asyncio.gather(*(preliminary(self, job) for job in self.jobs.values()), return_exceptions=True)
            await self._take_in(lambda: not end_known.is_set() and self.ingest.connected(), SIGNALLED_S)
            await self._take_in(lambda: not end_known.is_set(), LAST_WORD_S)
        self.ingest.stop(reason)
        await self._take_in(self.ingest.connected, GOODBYE_S)
        await retry.cancel(*self._tasks)
        await self.shielded.ended()
        if self._server:
            await self._server.stop(1.0)
        self.gather()
        await self.flush()
        unwritten = None
        for job in list(self.jobs.values()):
            report = await seal(self, job, self.flush)
            if job.over or self.options.exit_when_stdin_closes:  # others go on without this collector
                self.watch.ended(job)
            if job.id == self.options.job_id or not self.options.job_id:
                unwritten = report
        await asyncio.gather(*(asyncio.to_thread(outlet.close) for outlet in self.outlets))
        if self._page:
            self._page.close()
        if self.remote:
            await asyncio.to_thread(self.remote.close)
        if self.recorder.store:
            self.recorder.store.close()
        self.ready = False
        return unwritten
