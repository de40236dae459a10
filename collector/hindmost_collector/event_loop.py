"""What the collector's event loop is watched for, and tasks in it that are never cancelled."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from prometheus_client import Histogram

from hindmost_collector.serve.exposition import Metric

#: Between two measurements; and next to a job's ranks, where each wake-up may take a core from one.
PERIOD_S, NEXT_TO_RANKS_S = 0.05, 5.0
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
