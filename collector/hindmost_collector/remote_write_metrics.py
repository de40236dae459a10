"""What remote write has sent, and what it could not, for the collector's own metrics page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from hindmost_collector.remote_write import RemoteWrite

#: Label ``reason`` to the sink's count: the queue was full, older than what was sent, refused for good, told to leave.
DROPPED = {"queue_full": "dropped_full", "old": "dropped_old", "refused": "refused", "leaving": "dropped_leaving"}


def metrics(sink: RemoteWrite) -> Iterator[Metric]:
    """The sink's own metrics, at their present values."""
    name = "hindmost_collector_remote_write"
    yield CounterMetricFamily(f"{name}_samples", "Samples that the receiver took.", sink.counts["sent"])
    dropped = CounterMetricFamily(f"{name}_dropped_samples", "Samples that it will never have.", labels=["reason"])
    for reason, key in DROPPED.items():
        dropped.add_metric([reason], sink.counts[key])
    yield dropped
    yield CounterMetricFamily(f"{name}_requests", "Requests sent.", sink.counts["requests"])
    yield CounterMetricFamily(f"{name}_retries", "Requests to be repeated.", sink.counts["retries"])
    yield GaugeMetricFamily(f"{name}_waiting_bytes", "Memory held by samples not sent yet.", sink.waiting_bytes)
    yield GaugeMetricFamily(f"{name}_failing", "1 while the receiver takes nothing.", float(bool(sink.failing)))
