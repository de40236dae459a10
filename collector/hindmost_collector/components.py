"""The objects that a collector is made of, each made once, and passed to modules that need several of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from hindmost.daemon_process import FullCores
from hindmost_judge.settings import DEFAULT

from hindmost_collector.event_loop import NEXT_TO_RANKS_S, PERIOD_S, Lag, ShieldedTasks
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
from hindmost_collector.serve.node_metrics import NodeMetrics
from hindmost_collector.store.recorder import StoreRecorder

if TYPE_CHECKING:
    from hindmost_judge.settings import Settings

    from hindmost_collector.options import Options
    from hindmost_collector.store.recorder import Store
    from hindmost_collector.store.remote_write import RemoteWrite


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
        self.cores_are_full: Callable[[], bool] = FullCores() if options.exit_when_stdin_closes else lambda: False
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
