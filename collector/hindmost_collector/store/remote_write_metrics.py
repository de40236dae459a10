"""What remote write has sent, and what it could not, for the collector's own metrics page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from hindmost_collector.store.remote_write import RemoteWrite

#: Label ``reason`` to the sink's count: the queue was full, older than what was sent, refused for good, shut down, of a
#: schema that is no longer defined.
DROPPED = {
    "queue_full": "dropped_full",
    "old": "dropped_old",
    "refused": "refused",
    "leaving": "dropped_leaving",
    "undefined": "dropped_undefined",
}


def metrics(sink: RemoteWrite) -> Iterator[Metric]:
    """The sink's own metrics, at their present values."""
    yield CounterMetricFamily(
        "hindmost_collector_remote_write_samples", "Samples that the receiver took.", sink.counts["sent"]
    )
    dropped = CounterMetricFamily(
        "hindmost_collector_remote_write_dropped_samples", "Samples that it will never have.", labels=["reason"]
    )
    for reason, key in DROPPED.items():
        dropped.add_metric([reason], sink.counts[key])
    yield dropped
    yield CounterMetricFamily("hindmost_collector_remote_write_requests", "Requests sent.", sink.counts["requests"])
    yield CounterMetricFamily(
        "hindmost_collector_remote_write_retries", "Requests to be repeated.", sink.counts["retries"]
    )
    yield GaugeMetricFamily(
        "hindmost_collector_remote_write_waiting_bytes", "Memory held by samples not sent yet.", sink.waiting_bytes
    )
    yield GaugeMetricFamily(
        "hindmost_collector_remote_write_failing", "1 while the receiver takes nothing.", float(bool(sink.failing))
    )
