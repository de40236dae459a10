"""How late the event loop gets to what is due: the first sign of a collector that has too much to do."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import Histogram

PERIOD_S = 0.05
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Lag:
    """Wakes twenty times a second and notes how late."""

    def __init__(self) -> None:
        self.histogram = Histogram(
            "hindmost_collector_loop_lag_seconds",
            "How late the event loop ran what was due.",
            buckets=BUCKETS,
            registry=None,
        )

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            due = time.monotonic() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            self.histogram.observe(max(time.monotonic() - due, 0.0))
