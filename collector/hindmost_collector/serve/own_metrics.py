"""Metrics of the collector itself: its agents, what it received, stored and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hindmost import __version__
from hindmost_judge.detect import failures

from hindmost_collector.serve.exposition import INFO, STORE_FAILING, counter, family, gauge, open_ports
from hindmost_collector.store import remote_write

if TYPE_CHECKING:
    from hindmost_collector.components import Components
    from hindmost_collector.ingest.session import AgentSession
    from hindmost_collector.serve.exposition import Metric

#: Metric to its value for an agent at a job time in ns.
OF_AGENTS: Mapping[Metric, Callable[[AgentSession, int], float]] = {
    gauge(
        "hindmost_collector_agent_connected",
        "1 while an agent of the node has a stream, 0 after the last stream broke off without a farewell.",
        "node",
    ): lambda agent, _: agent.outbox is not None,
    gauge(
        "hindmost_collector_agent_silence_seconds", "Time since an agent of the node sent anything.", "node"
    ): lambda agent, now: (now - agent.last_heard_ns) / 1e9,
    gauge(
        "hindmost_collector_clock_uncertainty_seconds",
        "Largest difference to expect between the node's times and the job clock.",
        "node",
    ): lambda agent, _: agent.clock.uncertainty_ns / 1e9,
    gauge(
        "hindmost_collector_clock_drift_ratio", "Drift of the node's clock against the job clock.", "node"
    ): lambda agent, _: agent.clock.drift_ppb / 1e9,
}

#: Metric to its value.
OF_COLLECTOR: Mapping[Metric, Callable[[Components], float]] = {
    gauge("hindmost_collector_agents", "Agents with a stream."): lambda own: own.ingest.connected(),
    counter("hindmost_collector_batches_total", "Batches received."): lambda own: own.ingest.counts["batches"],
    counter("hindmost_collector_duplicate_batches_total", "Batches that came again and were left out."): lambda own: (
        own.ingest.counts["duplicate_batches"]
    ),
    gauge(
        "hindmost_collector_missing_batches",
        "Batches that known agents numbered and that never came: dropped from a full spool.",
    ): lambda own: sum(agent.skipped for agent in list(own.ingest.agents.values())),
    counter(
        "hindmost_collector_malformed_blocks_total", "Blocks left out because they could not be decoded."
    ): lambda own: own.ingest.counts["malformed_blocks"],
    counter(
        "hindmost_collector_set_aside_messages_total",
        "Messages that raised an unexpected error; the log says once for each agent what was left out and why.",
    ): lambda own: own.ingest.counts["set_aside"],
    counter("hindmost_collector_samples_total", "Metric samples received."): lambda own: own.decoder.samples,
    counter("hindmost_collector_shed_samples_total", "Metric samples left out because memory is full."): lambda own: (
        own.ingest.counts["shed_samples"]
    ),
    counter(
        "hindmost_collector_unwatched_chunks_total",
        "Parts of jobs that were recorded but not watched live, because there are too many jobs.",
    ): lambda own: own.ingest.counts["unwatched_chunks"],
    counter("hindmost_collector_streams_total", "Streams that agents opened."): lambda own: own.ingest.counts[
        "streams"
    ],
    counter("hindmost_collector_relay_streams_total", "Streams that relays opened."): lambda own: own.ingest.counts[
        "relay_streams"
    ],
    counter(
        "hindmost_collector_replaced_streams_total", "Streams replaced by another of the same identity."
    ): lambda own: own.ingest.counts["replaced_streams"],
    counter(
        "hindmost_collector_impossible_clock_samples_total", "Clock round trips left out because they are impossible."
    ): lambda own: own.ingest.counts["impossible_clock_samples"],
    counter("hindmost_collector_stored_rows_total", "Rows made durable."): lambda own: own.recorder.written_rows,
    counter("hindmost_collector_stored_bytes_total", "Bytes written to the store."): lambda own: (
        own.recorder.written_bytes
    ),
    counter("hindmost_collector_flushes_total", "Flushes made durable."): lambda own: own.recorder.flushes,
    counter("hindmost_collector_flush_seconds_total", "Time spent flushing."): lambda own: own.recorder.flush_seconds,
    STORE_FAILING: lambda own: bool(own.recorder.trouble),
    counter("hindmost_collector_store_failures_total", "Flushes that failed."): lambda own: own.recorder.failures,
    counter(
        "hindmost_collector_discarded_bytes_total",
        "Bytes of rows discarded while the store failed; they were never acknowledged, so agents send them again.",
    ): lambda own: own.recorder.shed_bytes,
    gauge(
        "hindmost_collector_torn_segments",
        "Segments set aside as torn (`*.parquet.torn`), which readers leave out; `/readyz` and the log name them.",
    ): lambda own: len(torn(own)),
    gauge("hindmost_collector_pending_bytes", "Memory of rows that are not yet durable."): lambda own: (
        own.recorder.pending_bytes
    ),
    counter("hindmost_collector_judging_seconds_total", "Time spent judging."): lambda own: own.judging.seconds,
    counter(
        "hindmost_collector_detector_failures_total",
        "Times that a detector failed; the log names it, and so do the report's notes.",
    ): lambda _: failures.total(),
    counter(
        "hindmost_collector_notifications_total", "Notifications of verdicts that the command or webhook took."
    ): lambda own: sum(outlet.sent for outlet in own.outlets),
    counter(
        "hindmost_collector_notification_failures_total", "Attempts to notify that failed; the log has the first."
    ): lambda own: sum(outlet.failures for outlet in own.outlets),
    counter(
        "hindmost_collector_dropped_notifications_total",
        "Notifications of verdicts that were given up, or found no room in the queue.",
    ): lambda own: sum(outlet.dropped for outlet in own.outlets),
    gauge(
        "hindmost_collector_withheld_series",
        "Series left out of `/metrics`, because with them there would be more than `metrics_series`.",
    ): lambda own: own.withheld_series,
    counter("hindmost_collector_upkeep_seconds_total", "CPU time of compaction and retention."): lambda own: (
        own.upkeep_seconds
    ),
}


def of_collector(parts: Components) -> str:
    """Every metric of the collector itself, at its present value."""
    counted = (family(metric, [((), float(value(parts)))]) for metric, value in OF_COLLECTOR.items())
    remote = remote_write.metrics(parts.remote) if parts.remote else ""
    other = family(INFO, [([__version__], 1)]), parts.ingest.rejected_calls.metric(), open_ports(parts.gate.insecure)
    return "".join((*counted, *other, remote))


def of_agents(parts: Components) -> str:
    """Each node's connection and clock: one line a node, also where agents of several jobs share it."""
    now = parts.clock.now()
    shown = _by_node(agent for agent in list(parts.ingest.agents.values()) if not agent.departed)
    return "".join(
        family(metric, (((agent.node,), value(agent, now)) for agent in shown)) for metric, value in OF_AGENTS.items()
    )


def _by_node(agents: Iterable[AgentSession]) -> list[AgentSession]:
    """The agent that speaks for its node, of those that serve it: one with a stream if any has, the last heard of."""
    speaks: dict[str, AgentSession] = {}
    for agent in sorted(agents, key=lambda one: (one.outbox is not None, one.last_heard_ns)):
        speaks[agent.node] = agent
    return list(speaks.values())


def torn(parts: Components) -> Sequence[str]:
    """Paths of the segments that were set aside as torn."""
    store = parts.recorder.store
    return store.torn if store else ()
