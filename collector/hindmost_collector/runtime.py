"""What the collector sets up of Python and Arrow: watch of the event loop, shielded tasks, memory, a late pandas."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import sys
import time
from collections.abc import Coroutine, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import pyarrow as pa
from prometheus_client import Histogram

from hindmost_collector.serve.exposition import Metric

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


@lru_cache(1)  # each ``CDLL`` makes types, which only the garbage collector removes
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def give_memory_back() -> None:
    """Have glibc return all free memory to the system, also between blocks in use; rarely, and before a new peak of
    use."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        _libc().malloc_trim(0)


class _NoPandas:
    """Stands before the other finders of modules."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:  # noqa: ARG004
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def put_off_pandas() -> None:
    """Have pyarrow look for pandas now, and find none. For a process of our own, before its first array."""
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)
