"""What remote write has sent, and what it could not, for the collector's own metrics page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_collector.serve.exposition import collected, counter, gauge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from hindmost_collector.store.remote_write.sink import RemoteWrite

#: Label ``reason`` to the sink's count: the queue was full, older than what was sent, refused for good, shut down, of a
#: schema that is no longer defined.
DROPPED = {
    "queue_full": "dropped_full",
    "old": "dropped_old",
    "refused": "refused",
    "leaving": "dropped_leaving",
    "undefined": "dropped_undefined",
}


_SAMPLES = counter("hindmost_collector_remote_write_samples_total", "With `remote_write`: samples sent.")
_DROPPED = counter(
    "hindmost_collector_remote_write_dropped_samples_total",
    "Samples that will never be sent. `queue_full`; `old`: behind newer ones; `refused`: HTTP 4xx; `leaving`: at exit; "
    "`undefined`: of a forgotten schema.",
    "reason",
)
_REQUESTS = counter("hindmost_collector_remote_write_requests_total", "Requests sent.")
_RETRIES = counter("hindmost_collector_remote_write_retries_total", "Requests that had to be repeated.")
_WAITING = gauge(
    "hindmost_collector_remote_write_waiting_bytes", "Memory of samples that the receiver has not accepted yet."
)
_FAILING = gauge("hindmost_collector_remote_write_failing", "1 while the receiver accepts nothing.")
METRICS = (_SAMPLES, _DROPPED, _REQUESTS, _RETRIES, _WAITING, _FAILING)


def metrics(sink: RemoteWrite) -> Iterator[Metric]:
    """The sink's own metrics, at their present values."""
    yield collected(_SAMPLES, [((), sink.counts["sent"])])
    yield collected(_DROPPED, [([reason], sink.counts[key]) for reason, key in DROPPED.items()])
    yield collected(_REQUESTS, [((), sink.counts["requests"])])
    yield collected(_RETRIES, [((), sink.counts["retries"])])
    yield collected(_WAITING, [((), sink.waiting_bytes)])
    yield collected(_FAILING, [((), float(bool(sink.failing)))])
