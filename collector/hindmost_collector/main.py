"""From options to a served collector: logging, signals, the event loop, the stdin that holds it, its start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from hindmost import daemon_process
from hindmost.daemon_process import raise_open_file_limit
from hindmost.errors import HindmostError
from hindmost_judge.settings import DEFAULT
from hindmost_proto import retry

from hindmost_collector import runtime
from hindmost_collector.collector import Collector
from hindmost_collector.ingest import relay
from hindmost_collector.live.sealing import from_memory
from hindmost_collector.store.clickhouse.client import Unreachable, is_url, parse
from hindmost_collector.store.startup import store_and_page

if TYPE_CHECKING:
    from hindmost_judge.settings import Settings

    from hindmost_collector.options import Options

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


def run_collector(options: Options, settings: Settings = DEFAULT) -> int:
    """Serve until SIGTERM or SIGINT, or the end of stdin where held; 0."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s hindmost collector: %(levelname)s: %(message)s")
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
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if options.relay_to:
        return await relay.serve(options, stopped)
    return await serve(options, stopped, settings)


log = logging.getLogger(__name__)


async def serve(options: Options, stopped: asyncio.Event, settings: Settings = DEFAULT) -> int:
    """Run a collector until ``stopped``, or until stdin ends where it is held."""
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
    if options.exit_when_stdin_closes:
        await asyncio.to_thread(daemon_process.lower_priority, daemon_process.COLLECTOR_SESSION)
    job_over = asyncio.Event()  # a signal stops a held collector too, and says nothing of the job
    if options.exit_when_stdin_closes:
        follow = (collector, asyncio.get_running_loop(), (job_over, stopped))
        threading.Thread(target=follow_stdin, args=follow, daemon=True, name="stdin").start()
    await stopped.wait()
    log.info("stopping: %d agents are asked to send what they have", collector.ingest.connected())
    if options.exit_when_stdin_closes:
        await asyncio.to_thread(daemon_process.set_session_priority, 0)
    reason = retry.JOB_OVER if job_over.is_set() else "the collector is stopping"
    stopping = asyncio.create_task(collector.stop(reason))
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
        _say({"report": judged[1].to_dict() if judged else job.report})
    logging.shutdown()
    os._exit(1)


def recorded_into(options: Options) -> str:
    """Where everything goes, for messages: never with a password."""
    return str(parse(options.store)) if is_url(options.store) else options.out or options.store or "nothing"


def _say(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def follow_stdin(collector: Collector, loop: asyncio.AbstractEventLoop, at_the_end: tuple[asyncio.Event, ...]) -> None:
    """Read from stdin how the job ended; its end is the end of the job, or of the process that started it."""
    for text in sys.stdin:
        how = _ending(text)
        if how is None:
            log.warning('stdin: expected {"exit_code": N}, got %r', text.strip()[:80])
        else:
            job = collector.job(collector.options.job_id)
            job.exit_code, job.interrupted_by, job.no_ring, job.entered = how
            job.ended_ns = collector.clock.now()
            # the ranks are gone, and the agent waits only so long for its last acknowledgement
            daemon_process.set_session_priority(0)
    for one in at_the_end:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the collector has stopped before stdin
            loop.call_soon_threadsafe(one.set)


def _ending(text: str) -> tuple[int, str | None, str | None, bool] | None:
    """The exit code, the signal that the job was asked to end by, and why no rank could make its ring; if there was.

    Last, whether the probe got into a process that no launcher named a rank.
    """
    try:
        said = json.loads(text)
        return int(said["exit_code"]), said.get("interrupted_by"), said.get("no_ring"), said.get("entered") is True
    except (ValueError, KeyError, TypeError):
        return None
