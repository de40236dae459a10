"""The agent's own account: what each source cost, what was delivered, dropped or lost."""

import os
import resource

from hindmost_agent.kernel_files import File
from hindmost_agent.sampler import NAN, Host, Sampler, counter, gauge, register, series

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
PRODUCED = counter("hindmost_agent_produced_samples_total", "Samples put into batches.")
DELIVERED = counter("hindmost_agent_delivered_samples_total", "Samples that the collector said are durable.")
PENDING = gauge("hindmost_agent_pending_samples", "Samples spooled and not yet acknowledged.")
SPOOL = gauge("hindmost_agent_spool_bytes", "Size of the spool.")
SPOOL_LIMIT = gauge("hindmost_agent_spool_limit_bytes", "Size at which the spool drops its oldest samples.")
CONNECTED = gauge("hindmost_agent_connected", "1 while a stream to the collector is open.")
CONNECTS = counter("hindmost_agent_connects_total", "Streams opened to the collector.")
OFFSET = gauge("hindmost_agent_clock_offset_seconds", "Collector's clock minus the node's real-time clock.")
ROUND_TRIP = gauge("hindmost_agent_clock_round_trip_seconds", "Shortest recent round trip to the collector.")
RINGS = gauge("hindmost_agent_rings", "Rings of training processes that are being read.")
EVENTS = counter("hindmost_agent_ring_events_total", "Events read from rings.")
LOST = counter("hindmost_agent_ring_lost_events_total", "Events overwritten in a ring before they were read.")

SINGLE = (
    CPU, RESIDENT, PRODUCED, DELIVERED, PENDING, SPOOL, SPOOL_LIMIT, CONNECTED, CONNECTS, OFFSET, ROUND_TRIP,
    RINGS, EVENTS, LOST,
)  # fmt: skip


@register
class AgentSampler(Sampler):
    """The agent's own cost and ledger: produced = delivered + dropped + pending. Without a collector only its cost."""

    name = "agent"
    period = 5.0
    source = "the agent itself"
    metrics = (DURATION, SUCCESS, ERRORS, DROPPED, *SINGLE)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._keys: list[tuple[str, ...]] = []
        self._single = tuple(series(metric) for metric in SINGLE)
        try:
            self._statm: File | None = File("/proc/self/statm")
        except OSError:
            self._statm = None

    def sample(self) -> list[float]:
        counts = self.host.counts
        by_label = (
            (DURATION, counts.duration_s),
            (SUCCESS, counts.success),
            (ERRORS, counts.errors),
            (DROPPED, counts.dropped),
        )
        keys = [tuple(table) for _, table in by_label]
        values: list[float] = [float(value) for _, table in by_label for value in table.values()]
        if keys != self._keys:
            self._keys = keys
            self.series = (*(series(metric, key) for metric, table in by_label for key in table), *self._single)
        return [*values, *self._values()]

    def _values(self) -> list[float]:
        counts = self.host.counts
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return [
            usage.ru_utime + usage.ru_stime,
            NAN if self._statm is None else int(self._statm.read().split()[1]) * PAGE,
            _or_nan(counts.produced),
            _or_nan(counts.delivered),
            _or_nan(counts.pending),
            _or_nan(counts.spool_bytes),
            _or_nan(counts.spool_limit_bytes),
            _or_nan(counts.connected),
            _or_nan(counts.connects),
            _or_nan(counts.clock_offset_s),
            _or_nan(counts.clock_round_trip_s),
            counts.rings,
            counts.ring_events,
            counts.ring_lost,
        ]


def _or_nan(value: float | None) -> float:
    return NAN if value is None else value
