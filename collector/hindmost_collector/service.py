"""The collector's life: start, tick, judge, stop."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from hindmost import __version__
from hindmost.errors import HindmostError

from hindmost_collector.chunk import finish
from hindmost_collector.clock import JobClock
from hindmost_collector.decode import Decoder
from hindmost_collector.definitions import Definitions
from hindmost_collector.ingest import MESSAGE_LIMIT, Ingest
from hindmost_collector.jobs import LiveJob
from hindmost_collector.lag import Lag
from hindmost_collector.live import Judging, VerdictLog, line, zoom
from hindmost_collector.options import address
from hindmost_collector.parking import Parking
from hindmost_collector.recording import Recorder
from hindmost_collector.remote_write import RemoteWrite
from hindmost_collector.remote_write_http import Receiver
from hindmost_collector.scrape import Scrape
from hindmost_collector.sealing import seal
from hindmost_collector.store.clickhouse_client import is_url
from hindmost_collector.store.parquet import ParquetStore
from hindmost_collector.store.upkeep import Retention, Upkeep
from hindmost_collector.web.server import Page
from hindmost_collector.window import window_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hindmost_proto import telemetry_pb2 as wire

    from hindmost_collector.options import Options
    from hindmost_collector.recording import Store

log = logging.getLogger(__name__)
_T = TypeVar("_T")

TICK_S = 0.5
#: How often is looked whether a job is to be judged; and how often that and a tick come where a job may hang.
LOOK_S, HASTE_S = 0.25, 0.05
#: What agents are asked comes at their next tick, with all that they have read until then: the cause may be in it.
ANSWER_S = 0.5
#: How long agents may take to flush and say Goodbye once told to stop.
GOODBYE_S = 12.0
#: Between rounds of compaction and retention.
UPKEEP_S = 30.0
#: A series whose agent has not sent for this long has no value.
STALE_NS = 120_000_000_000
#: A job that nobody speaks of for this long is over, and so is one whose ranks are all gone for a tenth of it.
SILENCE_NS = 300_000_000_000
#: An agent without a stream, and a definition that nothing refers to, are forgotten after this long; both are known
#: again as soon as they come back, the agent's numbers from the store.
FORGET_NS = 3_600_000_000_000
#: Jobs that are watched live at one time.
JOB_LIMIT = 1000


def open_store(options: Options) -> Store | None:
    """The store that the options name; None for none. Raises HindmostError when it cannot be had."""
    if options.out:
        return ParquetStore(Path(options.out), single=True)
    if is_url(options.store):
        from hindmost_collector.store.clickhouse import ClickHouseStore  # noqa: PLC0415 - where used

        return ClickHouseStore(options.store, options.retention_days)
    if options.store:
        return ParquetStore(Path(options.store.removeprefix("file://")), single=False)
    return None


class Collector:
    """All parts, wired. ``start`` before anything else; ``stop`` is safe at any time."""

    def __init__(self, options: Options, store: Store | None) -> None:
        self.options = options
        self.clock = JobClock(store.clock if store else None)
        self.definitions = Definitions()
        self.decoder = Decoder(self.definitions)
        parking = Parking(options.memory_mib << 18)  # a quarter of what may wait for the disk, and counted into it
        self.ingest = Ingest(
            self.clock,
            self.definitions,
            self.decoder,
            lambda: store.sequences if store else {},
            parking,
            options.ack_ns,
        )
        self.recorder = Recorder(store, self.decoder.words, self.definitions, options.memory_mib << 20)
        self.jobs: dict[str, LiveJob] = {}
        self.judging = Judging(options.judge_seconds)
        self.lag = Lag()
        self.scrape = Scrape(self)
        self.remote = self._remote_write()
        self._verdicts: dict[str, VerdictLog] = {}
        self._described: set[str] = set()  # jobs of whose ranks something new is known
        self._server: grpc.aio.Server | None = None
        self._page: Page | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unbroken: set[asyncio.Task[Any]] = set()
        self._verdicts_written = asyncio.Lock()
        self.ready = False

    def _remote_write(self) -> RemoteWrite | None:
        if not self.options.remote_write:
            return None
        receiver = Receiver(self.options.remote_write)
        return RemoteWrite(receiver, self.definitions, self.scrape.jobs_text, now_ns=self.clock.now)

    async def start(self) -> dict[str, str | None]:
        """Bind both ports; ``{"grpc": "HOST:PORT", "http": "HOST:PORT" or None}``. Raises HindmostError."""
        host, port = address(self.options.listen, "--listen")
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MESSAGE_LIMIT),
                ("grpc.so_reuseport", 0),  # a port in use is an error, not a lottery
                ("grpc.keepalive_permit_without_calls", 1),
                # Probing for bandwidth pings the agent at every message, which wakes it for nothing, and a ping that a
                # host under load leaves unanswered for a minute ends the connection.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
            ]
        )
        self._server.add_generic_rpc_handlers((self.ingest.handler(), self.ingest.strangers))
        try:
            bound = self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError as error:
            raise HindmostError(
                f"cannot listen on {host}:{port}: it is in use, or not an address of this host"
            ) from error
        http = self.options.http_address
        if http:
            self._page = Page(http, self.scrape)
        await self._server.start()
        if self.remote:
            self.remote.start()
        work = (self._ticks(), self._judges(), self.lag.watch(), self._keep_up())
        self._tasks = [asyncio.create_task(one) for one in work]
        self.ready = True
        if self.options.job_id:
            self.job(self.options.job_id)
            self._note(self.options.job_id, {"started_ns": self.clock.now()})
        return {"grpc": f"{host}:{bound}", "http": self._page.address if self._page else None}

    def job(self, name: str) -> LiveJob:
        """The live job of that id, made when new."""
        job = self.jobs.get(name)
        if job is None:
            command = self.options.command if name == self.options.job_id else None
            job = self.jobs[name] = LiveJob(name, self.clock.now(), command or None)
        return job

    async def _ticks(self) -> None:
        flush: asyncio.Task[None] | None = None  # beside the ticks: one that hangs must not keep them from relief
        while True:
            await asyncio.sleep(self._pause_s(TICK_S))
            try:
                if flush and flush.done():
                    ended, flush = flush, None
                    ended.result()
                self.gather()
                if flush is None and self._flush_due():
                    flush = asyncio.create_task(self.flush())
            except Exception:  # a collector that no longer ticks would take batches and keep none of them
                if not self.recorder.failing:
                    log.exception("a tick failed; what it held is asked for again")
                self.recorder.failing = "a tick failed, see the log"
                self.recorder.discard()
                self.definitions.forget()

    def _pause_s(self, usual_s: float) -> float:
        return HASTE_S if any(job.stall.in_haste(job) for job in self.jobs.values()) else usual_s

    def _flush_due(self) -> bool:
        if time.monotonic() - self.recorder.last_flush >= self.options.flush_period:
            return True
        if self.recorder.failing:
            return False  # trying more often would cost, and help nobody
        departing = any(agent.departed and agent.outbox for agent in self.ingest.agents.values())
        return departing or self.recorder.pressure > 0.125

    async def _keep_up(self) -> None:
        """Forget, compact and expire, a piece at a time, when the store allows."""
        store = self.recorder.store
        limits = Retention(self.options.retention_days, int(self.options.retention_gib * 2**30))
        upkeep = Upkeep(store, limits) if isinstance(store, ParquetStore) else None
        while True:
            await asyncio.sleep(UPKEEP_S)
            self._prune()
            if upkeep is None or self.recorder.hangs_s:
                continue
            # retention holds whatever became of compaction, and is what makes room on a full disk
            for piece in (upkeep.expire,) if self.recorder.failing else (upkeep.compact, upkeep.expire):
                await self._tend(piece)

    async def _tend(self, piece: Callable[[], int]) -> None:
        """Repeat a piece of upkeep until nothing is left to do; what fails is tried again in the next round."""
        try:
            while await self._whole(asyncio.to_thread(piece)):
                await asyncio.sleep(1.0)
        except (OSError, HindmostError) as error:
            log.warning("upkeep of the store failed, and will be tried again: %s", error)
        except Exception:  # a task that ended here would let the disk fill without a word
            log.exception("upkeep of the store failed, and will be tried again")

    def gather(self) -> None:
        """Move what has arrived to the recorder, the windows and the counters."""
        self.ingest.attendance.tell(self.ingest.connected)
        sequences = self.ingest.received()
        chunks = {name: finish(rows) for name, rows in self.decoder.take().items()}
        now = self.clock.now()
        for name, chunk in chunks.items():
            self.definitions.used({block.schema for block in chunk.metrics}, now)
            for block in chunk.metrics:
                self.scrape.nodes.add(block)
            if self.remote:
                self.remote.add(chunk.metrics)
            if name and self._shown(name):
                self.job(name).add(chunk, self.decoder.words, self.definitions, now)
                if "ranks" in chunk.plain:
                    self._described.add(name)
        self.recorder.add(chunks, sequences)
        self.recorder.add({name: finish(rows) for name, rows in self.ingest.again.take().items()}, {})
        self._relieve()

    def _shown(self, name: str) -> bool:
        """Whether a job has, or may have, a window; beyond the limit jobs are recorded and not watched."""
        if name in self.jobs or len(self.jobs) < JOB_LIMIT:
            return True
        if not self.ingest.counts["unwatched_chunks"]:
            log.warning("%d jobs at once: job %s and further ones are recorded but not watched live", JOB_LIMIT, name)
        self.ingest.counts["unwatched_chunks"] += 1
        return False

    def _prune(self) -> None:
        """Forget what nobody has spoken of for long, and share the memory for windows among the jobs there are."""
        self.scrape.nodes.expire(self.clock.now() - STALE_NS)
        limit = window_limit(len(self.jobs))
        for job in self.jobs.values():
            job.window.bound(limit)
        if not self.recorder.trouble:  # what waits for the disk still needs its definitions
            self.ingest.prune(self.clock.now() - FORGET_NS)
            self.definitions.prune(self.clock.now(), FORGET_NS)

    def _relieve(self) -> None:
        """Under pressure: node metrics go first; when the disk fails, everything that agents can send again."""
        parked = self.ingest.parking.bytes / (self.options.memory_mib << 20)
        pressure, shedding = self.recorder.pressure + parked, self.ingest.shed_metrics
        wanted = pressure > 0.5 or (shedding and pressure > 0.25)
        if wanted != shedding:
            self.ingest.shed_metrics = wanted
            for agent in self.ingest.agents.values():
                if agent.outbox:
                    agent.outbox.throttle(wanted)
            log.warning(
                "%s node metrics: memory for unwritten rows is %.0f %% full",
                "shedding" if wanted else "taking",
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
        await self._whole(self._flush())

    async def _whole(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run to its end, even if who asks is cancelled, what another thread would go on doing unwatched."""
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start what is to run to its end."""
        task = asyncio.create_task(work)
        self._unbroken.add(task)
        task.add_done_callback(self._unbroken.discard)
        return task

    async def _flush(self) -> None:
        described, self._described = self._described, set()
        for name in described & self.jobs.keys():
            self._note(name, {"started_ns": self.jobs[name].started_ns})
        self.ingest.durable(await self.recorder.flush(self.clock.state()))
        if self.recorder.detached and not self.recorder.failing:
            self.gather()  # what came meanwhile has been seen and not recorded: it comes again, with the rest
            self.recorder.detached = False
            self.ingest.rewind("the collector could not record what came before, and now can: send it again")
        self._relieve()

    async def _judges(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s(LOOK_S))
            for job in sorted(self.jobs.values(), key=lambda job: self.judging.turn(job.id)):
                if job.sealed or job.judged_revision == job.revision:
                    continue
                self._ask(job.id, job.stall.question(job))
                if self.judging.due(job.id) or job.stall.ripe(job):
                    await self._judge(job)
            if not self.options.hold:
                await self._seal_finished()

    async def _judge(self, job: LiveJob) -> None:
        job.judged_revision = job.revision
        job.infer_steps()
        snapshot = job.snapshot(self.decoder.words)
        report = await asyncio.to_thread(self.judging.report, job.id, snapshot)
        if report is None:
            return
        events = self._verdicts.setdefault(job.id, VerdictLog()).update(
            report["verdicts"], self.clock.now(), job.window.last_step
        )
        told = list(events)
        if told and self.recorder.store:
            self._begin(self._write_down(job.id, [line(event) for event in told]))
        questions = [question for event in told if (question := zoom(job.id, event)) is not None]
        for question in questions:
            self._ask(job.id, question)
        if questions:
            self.judging.again(job.id, ANSWER_S)
        job.report = report

    def _ask(self, job: str, question: wire.Zoom | None) -> None:
        if question is not None:
            self.ingest.ask(job, question)

    async def _write_down(self, job: str, lines: list[str]) -> None:
        """Append verdicts, one judging after the other; a disk that hangs keeps nobody waiting."""
        assert self.recorder.store is not None  # noqa: S101 - for the type checker
        async with self._verdicts_written:
            try:
                for text in lines:
                    await asyncio.to_thread(self.recorder.store.append_line, job, "verdicts.jsonl", text)
            except OSError as error:
                self.recorder.failing = self.recorder.failing or error.strerror or str(error)

    def _note(self, job: str, meta: dict[str, Any]) -> None:
        """Have what is known of a job as a whole written to its ``meta.json``."""
        live = self.job(job)
        ours = job == self.options.job_id
        known = {
            "job_id": job,
            "command": live.command or self.definitions.command(job),
            "launcher": (self.options.launcher or None) if ours else None,
            "world_size": live.world_size,
            "nodes": sorted(set(live.window.ranks()["node"].tolist())) or None,
            "version": __version__,
        }
        self.recorder.describe(job, {**known, **meta})

    async def _seal_finished(self) -> None:
        """Judge, once and whole, each job that is over."""
        now = self.clock.now()
        for job in list(self.jobs.values()):
            quiet = now - job.heard_ns
            if quiet > SILENCE_NS or (job.over and quiet > SILENCE_NS / 10):
                await self.finish(job)
                del self.jobs[job.id]
                self._verdicts.pop(job.id, None)
                self.judging.forget(job.id)
                self.scrape.forget(job.id)
                self.definitions.forget_job(job.id)

    async def finish(self, job: LiveJob) -> dict[str, Any] | None:
        """Write the end of a job: meta.json and report.json; the report."""
        job.sealed = True
        how = {name: getattr(job, name) for name in ("exit_code", "interrupted_by", "no_ring")}
        self._note(job.id, {"started_ns": job.started_ns, "ended_ns": self.clock.now(), **how})
        await self.flush()
        return await asyncio.to_thread(seal, self, job)

    async def stop(self, reason: str) -> dict[str, Any] | None:
        """Ask agents to leave, write everything, judge. The report of the job that was asked for, if it could not be
        written to disk."""
        self.ingest.stop(reason)
        deadline = time.monotonic() + GOODBYE_S
        while self.ingest.connected() and time.monotonic() < deadline:
            self.gather()
            await self.flush()
            await asyncio.sleep(0.05)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._unbroken, return_exceptions=True)
        if self._server:
            await self._server.stop(1.0)
        self.gather()
        await self.flush()
        unwritten = None
        for job in list(self.jobs.values()):
            report = await self.finish(job)
            if job.id == self.options.job_id or not self.options.job_id:
                unwritten = report
        if self._page:
            self._page.close()
        if self.remote:
            await asyncio.to_thread(self.remote.close)
        if self.recorder.store:
            self.recorder.store.close()
        self.ready = False
        return unwritten
