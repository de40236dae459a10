"""The objects that a collector is made of, each made once, and passed to modules that need several of them.

Among them what its event loop is watched by, and tasks in it that are never cancelled.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any, TypeVar

from hindmost.daemon_process import FullCores
from hindmost_judge.settings import DEFAULT
from prometheus_client import Histogram

from hindmost_collector.ingest.clock import JobClock
from hindmost_collector.ingest.decode import Decoder, Parking
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.streams import Ingest
from hindmost_collector.live.evaluation_schedule import Judging, share_of
from hindmost_collector.live.jobs import LiveJob
from hindmost_collector.live.kubernetes import NOTHING, Kubernetes
from hindmost_collector.live.notification import Destination, Lines, Outlet, destination
from hindmost_collector.live.window import window_limit
from hindmost_collector.serve.credentials import Gate
from hindmost_collector.serve.exposition import Metric
from hindmost_collector.serve.node_metrics import NodeMetrics
from hindmost_collector.store.recorder import StoreRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hindmost_judge.settings import Settings

    from hindmost_collector.options import Options
    from hindmost_collector.store.recorder import Store
    from hindmost_collector.store.remote_write import RemoteWrite


#: Between two measurements; and next to a job's ranks, where each wake-up may take a core from one.
PERIOD_S, NEXT_TO_RANKS_S = 0.05, 1.0
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
LOOP_LAG = Metric("hindmost_collector_loop_lag_seconds", "histogram", "Delay of the ticks of the event loop.")


class Lag:
    """Wakes each ``period_s`` and notes how late."""

    def __init__(self, period_s: float = PERIOD_S) -> None:
        self._period_s = period_s
        self.histogram = Histogram(LOOP_LAG.name, LOOP_LAG.help, buckets=BUCKETS, registry=None)

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            due = time.monotonic() + self._period_s
            await asyncio.sleep(self._period_s)
            self.histogram.observe(max(time.monotonic() - due, 0.0))


_T = TypeVar("_T")


class ShieldedTasks:
    """What another thread would go on doing unwatched: tasks that are never cancelled."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def whole(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Start it, and wait for it."""
        return await asyncio.shield(self.begin(work))

    async def ended(self) -> None:
        """Wait for all of them; what one raises was for who asked."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _never() -> bool:
    return False


class Components:
    """The parts of one collector. ``remote`` is None where nothing is written to a remote; ``ready`` while it serves.

    ``upkeep_seconds`` counts the CPU time of compaction and retention; ``withheld_series`` were too many for the last
    scrape.
    """

    def __init__(self, options: Options, store: Store | None, settings: Settings = DEFAULT) -> None:
        self.options, self.settings = options, settings
        self.gate = Gate(options)
        self.clock = JobClock(store.clock if store else None)
        self.definitions = Definitions()
        self.decoder: Decoder = Decoder(self.definitions)
        parking = Parking(options.memory_mib << 18)  # a quarter of what may wait for the disk, and counted into it
        self.ingest: Ingest = Ingest(
            self.clock,
            self.definitions,
            self.decoder,
            lambda: store.sequences if store else {},
            parking,
            options.ack_ns,
            self.gate,
        )
        self.recorder: StoreRecorder = StoreRecorder(
            store, self.decoder.words, self.definitions, options.memory_mib << 20
        )
        self.jobs: dict[str, LiveJob] = {}
        self.nodes = NodeMetrics(self.definitions)
        #: Whether ranks wait for what this process does; a collector that no job started has a machine of its own.
        self.cores_are_full: Callable[[], bool] = FullCores() if options.exit_when_stdin_closes else _never
        share = share_of(len(os.sched_getaffinity(0)))
        full = self.cores_are_full if options.exit_when_stdin_closes else None
        self.judging: Judging = Judging(options.judge_seconds, share, settings=settings, cores_are_full=full)
        self.lag = Lag(NEXT_TO_RANKS_S if options.exit_when_stdin_closes else PERIOD_S)
        self.shielded = ShieldedTasks()
        targets: list[Destination] = [destination(options.on_verdict)] if options.on_verdict else []
        targets += [Kubernetes(options.kubernetes)] if options.kubernetes != NOTHING else []
        targets += [Lines()] if options.print_verdicts else []
        self.outlets = [Outlet(one) for one in targets]
        self.remote: RemoteWrite | None = None
        self.upkeep_seconds: float = 0.0
        self.withheld_series = 0
        self.ready = False

    def job(self, name: str) -> LiveJob:
        """The live job of that id, made when new."""
        job = self.jobs.get(name)
        if job is None:
            command = self.options.command if name == self.options.job_id else None
            job = self.jobs[name] = LiveJob(name, self.clock.now(), command or None, self.settings)
        return job

    def bound_window(self, job: LiveJob) -> None:
        """Have a job hold no more rows than its share of the memory, and than may be judged."""
        job.window.bound(self.judging.window_rows(job.id, window_limit(len(self.jobs))))
