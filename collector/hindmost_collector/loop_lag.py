"""How late the event loop gets to what is due: the first sign of a collector that has too much to do."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from prometheus_client import Histogram

from hindmost_collector.serve.exposition import Metric

if TYPE_CHECKING:
    from collections.abc import Callable

#: Between two measurements; and while cores are full, where each wake-up takes a core from a rank.
PERIOD_S, FULL_CORES_PERIOD_S = 0.05, 1.0
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
METRIC = Metric("hindmost_collector_loop_lag_seconds", "histogram", "Delay of the ticks of the event loop.")


class Lag:
    """Wakes twenty times a second, once where cores are full, and notes how late."""

    def __init__(self, cores_are_full: Callable[[], bool] = lambda: False) -> None:
        self._cores_are_full = cores_are_full
        self.histogram = Histogram(METRIC.name, METRIC.help, buckets=BUCKETS, registry=None)

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            period_s = FULL_CORES_PERIOD_S if self._cores_are_full() else PERIOD_S
            due = time.monotonic() + period_s
            await asyncio.sleep(period_s)
            self.histogram.observe(max(time.monotonic() - due, 0.0))
