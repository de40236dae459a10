"""The agent's own account: what each source cost, what was delivered, dropped or lost."""

import os
import resource
from collections.abc import Mapping

from hindmost_agent.kernel_files import File
from hindmost_agent.sampler import NAN, Host, Metric, Series, TableSampler, counter, gauge, register, series

PAGE = os.sysconf("SC_PAGE_SIZE")

DURATION = gauge("hindmost_agent_sampler_duration_seconds", "How long the sampler's last reading took.", "sampler")
SUCCESS = gauge(
    "hindmost_agent_sampler_success",
    "1 if the sampler's last reading worked; missing where it has nothing to read.",
    "sampler",
)
ERRORS = counter("hindmost_agent_sampler_errors_total", "Readings that failed, 0 from the start.", "sampler")
DROPPED = counter("hindmost_agent_dropped_samples_total", "Samples dropped before delivery, by reason.", "reason")
CPU = counter("hindmost_agent_cpu_seconds_total", "CPU time of the agent itself.")
RESIDENT = gauge("hindmost_agent_resident_memory_bytes", "Resident memory of the agent itself.")
#: What the agent counts to its metric.
COUNTED = {
    "produced": counter("hindmost_agent_produced_samples_total", "Samples put into batches."),
    "delivered": counter("hindmost_agent_delivered_samples_total", "Samples that the collector said are durable."),
    "pending": gauge("hindmost_agent_pending_samples", "Samples spooled and not yet acknowledged."),
    "spool_bytes": gauge("hindmost_agent_spool_bytes", "Size of the spool."),
    "spool_limit_bytes": gauge("hindmost_agent_spool_limit_bytes", "Size at which the spool drops its oldest samples."),
    "connected": gauge("hindmost_agent_connected", "1 while a stream to the collector is open."),
    "connects": counter("hindmost_agent_connects_total", "Streams opened to the collector."),
    "clock_offset_s": gauge(
        "hindmost_agent_clock_offset_seconds", "Collector's clock minus the node's real-time clock."
    ),
    "clock_round_trip_s": gauge(
        "hindmost_agent_clock_round_trip_seconds", "Shortest recent round trip to the collector."
    ),
    "rings": gauge("hindmost_agent_rings", "Rings of training processes that are being read."),
    "ring_events": counter("hindmost_agent_ring_events_total", "Events read from rings."),
    "ring_lost": counter(
        "hindmost_agent_ring_lost_events_total", "Events overwritten in a ring before they were read."
    ),
}


@register
class AgentSampler(TableSampler):
    """The agent's own cost and ledger: produced = delivered + dropped + pending. Without a collector only its cost."""

    name = "agent"
    period = 5.0
    source = "the agent itself"
    metrics = (DURATION, SUCCESS, ERRORS, DROPPED, CPU, RESIDENT, *COUNTED.values())

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        try:
            self._statm: File | None = File("/proc/self/statm")
        except OSError:
            self._statm = None

    def table(self) -> dict[Series, float]:
        counts, usage = self.host.counts, resource.getrusage(resource.RUSAGE_SELF)
        by_label: tuple[tuple[Metric, Mapping[str, float]], ...] = (
            (DURATION, counts.duration_s),
            (SUCCESS, counts.success),
            (ERRORS, counts.errors),
            (DROPPED, counts.dropped),
        )
        found = {series(metric, key): float(value) for metric, table in by_label for key, value in table.items()}
        found[series(CPU)] = usage.ru_utime + usage.ru_stime
        found[series(RESIDENT)] = NAN if self._statm is None else int(self._statm.read().split()[1]) * PAGE
        for name, metric in COUNTED.items():
            count = getattr(counts, name)
            found[series(metric)] = NAN if count is None else count
        return found
