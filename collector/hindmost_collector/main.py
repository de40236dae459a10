"""From options to a served collector: logging, signals, the event loop, stdin, the store; its start and stop.

While the store is down, health is served, readiness says why not, and the agents' port is closed: agents keep their
data in their spools, and retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hindmost import __version__, daemon_process
from hindmost.daemon_process import raise_open_file_limit
from hindmost.errors import HindmostError, UsageError, printable
from hindmost_judge.settings import DEFAULT
from hindmost_proto import retry

from hindmost_collector import runtime
from hindmost_collector.collector import Collector
from hindmost_collector.ingest import relay
from hindmost_collector.live.sealing import from_memory
from hindmost_collector.serve.credentials import Door, Gate
from hindmost_collector.serve.exposition import INFO, STORE_FAILING, family
from hindmost_collector.serve.http import Page, Site
from hindmost_collector.store import meta
from hindmost_collector.store.clickhouse.client import Unreachable, is_url, parse
from hindmost_collector.store.parquet.store import ParquetStore

if TYPE_CHECKING:
    from hindmost_judge.settings import Settings

    from hindmost_collector.options import Options
    from hindmost_collector.store.recorder import Store

#: How long a thread that writes or judges may keep the event loop waiting for the interpreter's lock.
SWITCH_S = 0.0005
#: Messages make many objects and hardly a cycle: look for cycles a hundredth as often as Python's default.
GARBAGE = (70_000, 20, 50)


class JsonLines(logging.Formatter):
    """One JSON object a line, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's time (Unix s), level, logger, message and traceback."""
        fields = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class TextLines(logging.Formatter):
    """A line a message, whatever names agents give: a line feed in one begins no line of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of logging
        """The message in printable characters; a traceback keeps its lines."""
        return printable(super().formatMessage(record))


def run_collector(options: Options, settings: Settings = DEFAULT) -> int:
    """Serve until SIGTERM or SIGINT, or the end of stdin where held; 0."""
    handler = logging.StreamHandler(sys.stderr)
    text = TextLines("%(asctime)s hindmost collector: %(levelname)s: %(message)s")
    handler.setFormatter(JsonLines() if options.log_format == "json" else text)
    # A user who starts a job by hand also keeps its collector, and reads its log only for trouble.
    logging.basicConfig(level=logging.WARNING if options.exit_when_stdin_closes else logging.INFO, handlers=[handler])
    logging.getLogger("grpc").setLevel(logging.ERROR)
    raise_open_file_limit()
    sys.setswitchinterval(SWITCH_S)
    daemon_process.set_up_allocator()
    runtime.put_off_pandas()
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    return asyncio.run(_serve(options, settings))


async def _serve(options: Options, settings: Settings) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    heard: list[str] = []

    def stop(number: signal.Signals) -> None:
        heard.append(number.name)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    if options.relay_to:
        return await relay.serve(options, stopped)
    return await serve(options, stopped, settings, heard)


log = logging.getLogger(__name__)


async def serve(
    options: Options, stopped: asyncio.Event, settings: Settings = DEFAULT, heard: Sequence[str] = ()
) -> int:
    """Run a collector until ``stopped``, or until stdin ends where it is held. ``heard``: the signals that came."""
    try:
        store, page = await store_and_page(options, stopped)
    except Unreachable:
        if not stopped.is_set():
            raise
        log.info("stopped: the store never answered")
        return 0
    collector = Collector(options, store, settings)
    try:
        addresses = await collector.start(page)
    except HindmostError:
        await collector.stop("start failed")
        raise
    log.info(
        "started: agents on %s, page and metrics on %s, recording into %s",
        addresses["grpc"],
        addresses["http"] or "no port",
        recorded_into(options),
    )
    if store is None:
        log.warning("nothing is recorded: give --store DIRECTORY to keep every job, or --out RUN_DIR for one")
    _say(addresses)
    await asyncio.to_thread(collector.judging.load)
    if options.exit_when_stdin_closes:
        await asyncio.to_thread(daemon_process.lower_priority, daemon_process.COLLECTOR_SESSION)
        _say({"loaded": True})
    job_over = asyncio.Event()  # a signal stops a held collector too, and says nothing of the job
    if options.exit_when_stdin_closes:
        follow = (collector, asyncio.get_running_loop(), (job_over, stopped))
        threading.Thread(target=follow_stdin, args=follow, daemon=True, name="stdin").start()
    await stopped.wait()
    log.info("stopping: %d agents are asked to send what they have", collector.ingest.connected())
    if options.exit_when_stdin_closes:
        await asyncio.to_thread(daemon_process.set_session_priority, 0)
    reason = retry.JOB_OVER if job_over.is_set() else "the collector is stopping"
    if options.exit_when_stdin_closes and heard:  # a time limit's, which all processes of the job get
        collector.interrupted(heard[0])
    stopping = asyncio.create_task(collector.stop(reason, job_over if options.exit_when_stdin_closes else None))
    if not await ended(stopping, collector):
        abandon(collector)
    unwritten = await stopping
    if unwritten is not None:
        _say({"report": unwritten})
    log.info("stopped: %d rows were written", collector.recorder.written_rows)
    return 0


async def ended(stopping: asyncio.Task[Any], collector: Collector, look_s: float = 1.0) -> bool:
    """Wait for a collector to stop; False when a write hangs, which would keep it for ever."""
    while not (stopping.done() or collector.recorder.hangs_s):
        await asyncio.wait({stopping}, timeout=look_s)
    return stopping.done()


def abandon(collector: Collector) -> NoReturn:
    """Leave without what the store does not take: a thread that hangs in it can only be left with its process.

    The job is judged from memory: one on full cores, or a short one, may never have been.
    """
    trouble = collector.recorder.trouble
    log.error("%s: stopping with unwritten data; agents keep it and send it again", trouble)
    job = collector.jobs.get(collector.options.job_id)
    if job is not None:
        judged = collector.judging.at_the_end(lambda: from_memory(collector, job, f"recording stopped ({trouble})"))
        _say({"report": judged[1].to_dict() if judged else job.report and {**job.report}})
    logging.shutdown()
    os._exit(1)


def recorded_into(options: Options) -> str:
    """Where everything goes, for messages: never with a password."""
    return str(parse(options.store)) if is_url(options.store) else options.out or options.store or "nothing"


def _say(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def follow_stdin(collector: Collector, loop: asyncio.AbstractEventLoop, at_the_end: tuple[asyncio.Event, ...]) -> None:
    """Read from stdin when the job's command began (what was before is no time of the job) and how it ended; the end of
    stdin is the end of the job, or of the process that started it."""
    for text in sys.stdin:
        job = collector.job(collector.options.job_id)
        try:
            message = json.loads(text)
            if message.get("begun"):
                job.started_ns = job.window.started_ns = collector.clock.now()
                continue
            job.exit_code = int(message["exit_code"])
        except (ValueError, KeyError, TypeError, AttributeError):
            log.warning('stdin: expected {"exit_code": N}, got %r', text.strip()[:80])
            continue
        job.interrupted_by, job.no_ring = message.get("interrupted_by"), message.get("no_ring")
        job.entered = message.get("entered") is True
        job.ended_ns = collector.clock.now()
        # the ranks are gone, and the agent waits only so long for its last acknowledgement
        daemon_process.set_session_priority(0)
    for event in at_the_end:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the collector has stopped before stdin
            loop.call_soon_threadsafe(event.set)


def open_store(options: Options) -> Store | None:
    """The store that the options name; None for none.

    Raises HindmostError when it cannot be had, UsageError where ``out`` has the recording of another job.
    """
    if options.out:
        job = meta.facts(Path(options.out)).get("job_id")
        if job and options.job_id and job != options.job_id:
            raise UsageError(
                f"--out {options.out}: it contains job {job}, not {options.job_id}; name another directory"
            )
        return ParquetStore(Path(options.out), single=True)
    if is_url(options.store):
        from hindmost_collector.store.clickhouse.store import ClickHouseStore  # noqa: PLC0415 - where used

        return ClickHouseStore(options.store, options.retention_days)
    if options.store:
        return ParquetStore(Path(options.store.removeprefix("file://")), single=False)
    return None


#: Between two tries, at first and at last.
FIRST_S, LAST_S = 1.0, 15.0


class Awaiting(Site):
    """What the HTTP side shows meanwhile."""

    def __init__(self) -> None:
        self.reason = ""

    def metrics(self) -> bytes:
        return (family(INFO, [([__version__], 1)]) + family(STORE_FAILING, [((), 1)])).encode()

    def ready(self) -> str:
        """Why this collector is not ready."""
        return f"waiting for the store: {self.reason}"


async def store_and_page(
    options: Options, stopped: asyncio.Event, opened: Callable[[Options], Store | None] = open_store
) -> tuple[Store | None, Page | None]:
    """The store as soon as it answers, and the page if it had to be served before; raises HindmostError.

    Raises the last Unreachable if ``stopped`` comes first; and at once if a job waits for this collector
    (``exit_when_stdin_closes``), so that its user learns of it.
    """
    shown, page, since = Awaiting(), None, time.monotonic()
    for attempt in itertools.count():
        store, trouble = await asyncio.to_thread(_tried, options, opened)
        if trouble is None:
            break
        if options.exit_when_stdin_closes:
            raise trouble
        if str(trouble) != shown.reason:
            log.warning("the store does not answer, retrying: %s", trouble)
        shown.reason = str(trouble)
        if page is None and options.http_address:
            page = Page(options.http_address, shown, Door(Gate(options), options))
        pause_s = retry.pause_s(attempt, LAST_S, random.random(), FIRST_S)  # noqa: S311 - no secret
        if await _stopped_within(pause_s, stopped):
            if page:
                page.close()
            raise trouble
    if shown.reason:
        log.warning("the store answered after %.0f s", time.monotonic() - since)
    return store, page


def _tried(
    options: Options, opened: Callable[[Options], Store | None]
) -> tuple[Store | None, None] | tuple[None, Unreachable]:
    try:
        return opened(options), None
    except Unreachable as error:
        return None, error


async def _stopped_within(seconds: float, stopped: asyncio.Event) -> bool:
    with contextlib.suppress(asyncio.TimeoutError):
        await retry.within(seconds, stopped.wait())
    return stopped.is_set()
