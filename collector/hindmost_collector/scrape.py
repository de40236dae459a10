"""What the HTTP side shows: the metrics page, reports, health."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from hindmost import __version__
from hindmost.errors import HindmostError
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from hindmost_collector.detector import failures
from hindmost_collector.exposition import family
from hindmost_collector.exposition_jobs import JobPage
from hindmost_collector.exposition_nodes import NodeMetrics
from hindmost_collector.store.remote_write_metrics import metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.core import Metric

    from hindmost_collector.service import Collector
    from hindmost_collector.stream.session import Agent


class Scrape:
    """Reads a running collector from another thread."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self.nodes = NodeMetrics(collector.definitions)
        self._jobs = JobPage()
        self._registry = CollectorRegistry()
        self._registry.register(OwnMetrics(collector))
        self._registry.register(collector.lag.histogram)
        for standard in (ProcessCollector, PlatformCollector, GCCollector):
            standard(registry=self._registry)
        self._one_at_a_time = threading.Lock()

    def metrics(self) -> bytes:
        """The whole ``/metrics`` page."""
        with self._one_at_a_time:
            return b"".join(
                (
                    self._jobs_text().encode(),
                    self.nodes.text().encode(),
                    generate_latest(self._registry),
                )
            )

    def jobs_text(self) -> str:
        """The part of the page that is about jobs, ranks, verdicts and agents."""
        with self._one_at_a_time:
            return self._jobs_text()

    def _jobs_text(self) -> str:
        return self._jobs.text(list(self._collector.jobs.values())) + _agents(self._collector)

    def forget(self, job: str) -> None:
        """A job is over: stop showing it."""
        with self._one_at_a_time:
            self._jobs.forget(job)

    def jobs(self) -> list[dict[str, Any]]:
        """What ``/api/jobs`` lists."""
        return [
            {"id": job.id, "command": job.command, "world_size": job.world_size, "last_step": job.window.last_step}
            for job in list(self._collector.jobs.values())
        ]

    def report(self, name: str | None) -> dict[str, Any] | None:
        """The newest report of a job, or of the only one; the stored one of a job that is over; None when none is."""
        jobs = self._collector.jobs
        job = jobs.get(name) if name else next(iter(list(jobs.values())), None)
        if job is None:
            return self._stored_report(name) if name else None
        if job.report is None:
            return None
        return {**job.report, "judged": job.judged, "recording": self._collector.recorder.trouble}

    def _stored_report(self, name: str) -> dict[str, Any] | None:
        store = self._collector.recorder.store
        try:
            content = store.read_file(name, "report.json") if store else None
            known: dict[str, Any] | None = json.loads(content) if content else None
        except (OSError, ValueError, HindmostError):  # no such job, or the store is away: readiness says which
            return None
        return known if known and known["job"]["id"] == name else None

    def ready(self) -> str | None:
        """Why this collector is not ready; None when it is."""
        if not self._collector.ready:
            return "starting or stopping"
        trouble = self._collector.recorder.trouble
        return f"recording fails: {trouble}" if trouble else None

    def damage(self) -> list[str]:
        """What is lost and stays so, a line each: no reason to send agents elsewhere."""
        return [f"torn, left out by every reader: {path}" for path in _torn(self._collector)]


def _torn(collector: Collector) -> Sequence[str]:
    store = collector.recorder.store
    return store.torn if store else ()


def _by_node(agents: Iterable[Agent]) -> list[Agent]:
    """The agent that speaks for its node, of those that serve it: one with a stream if any has, the last heard of."""
    speaks: dict[str, Agent] = {}
    for agent in sorted(agents, key=lambda one: (one.outbox is not None, one.last_heard_ns)):
        speaks[agent.node] = agent
    return list(speaks.values())


def _agents(collector: Collector) -> str:
    """Each node's connection and clock: one line a node, also where agents of several jobs share it."""
    now = collector.clock.now()
    shown = _by_node(agent for agent in list(collector.ingest.agents.values()) if not agent.departed)
    labels = [{"node": agent.node} for agent in shown]
    return "".join(
        (
            family(
                "hindmost_collector_agent_connected",
                "gauge",
                "1 while an agent of the node has a stream, 0 after the last broke off without a farewell.",
                ((label, agent.outbox is not None) for label, agent in zip(labels, shown, strict=True)),
            ),
            family(
                "hindmost_collector_agent_silence_seconds",
                "gauge",
                "Time since an agent of the node sent anything.",
                ((label, (now - agent.last_heard_ns) / 1e9) for label, agent in zip(labels, shown, strict=True)),
            ),
            family(
                "hindmost_collector_clock_uncertainty_seconds",
                "gauge",
                "How far the node's times may be off the job clock.",
                ((label, agent.clock.uncertainty_ns / 1e9) for label, agent in zip(labels, shown, strict=True)),
            ),
            family(
                "hindmost_collector_clock_drift_ratio",
                "gauge",
                "Drift of the node's clock against the job clock.",
                ((label, agent.clock.drift_ppb / 1e9) for label, agent in zip(labels, shown, strict=True)),
            ),
        )
    )


#: Key in ``Ingest.counts`` to ``(metric, help)``.
COUNTS = {
    "batches": ("hindmost_collector_batches", "Batches received."),
    "duplicate_batches": ("hindmost_collector_duplicate_batches", "Batches that came again and were left out."),
    "malformed_blocks": ("hindmost_collector_malformed_blocks", "Blocks left out because they made no sense."),
    "set_aside": (
        "hindmost_collector_set_aside_messages",
        "Messages that failed in an unforeseen way; the log names them.",
    ),
    "shed_samples": ("hindmost_collector_shed_samples", "Metric samples left out because memory is full."),
    "unwatched_chunks": (
        "hindmost_collector_unwatched_chunks",
        "Pieces of jobs that were recorded and not watched live, there being too many jobs.",
    ),
    "streams": ("hindmost_collector_streams", "Streams that agents opened."),
    "relay_streams": ("hindmost_collector_relay_streams", "Streams that relays opened."),
    "replaced_streams": ("hindmost_collector_replaced_streams", "Streams replaced by another of the same identity."),
    "impossible_clock_samples": ("hindmost_collector_impossible_clock_samples", "Round trips that cannot have been."),
}


class OwnMetrics:
    """The collector's own metrics, for prometheus_client."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Metric]:
        """Every own metric, at its present value."""
        ingest, recorder = self._collector.ingest, self._collector.recorder
        info = GaugeMetricFamily("hindmost_collector_info", "This collector.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        for key, (name, text) in COUNTS.items():
            yield CounterMetricFamily(name, text, ingest.counts[key])
        yield ingest.strangers.metric()
        counters = {
            "hindmost_collector_samples": ("Metric samples taken.", self._collector.decoder.samples),
            "hindmost_collector_stored_rows": ("Rows made durable.", recorder.written_rows),
            "hindmost_collector_stored_bytes": ("Bytes written to the store.", recorder.written_bytes),
            "hindmost_collector_flushes": ("Flushes made durable.", recorder.flushes),
            "hindmost_collector_flush_seconds": ("Time spent flushing.", recorder.flush_seconds),
            "hindmost_collector_store_failures": ("Flushes that failed.", recorder.failures),
            "hindmost_collector_discarded_bytes": (
                "Bytes of rows discarded while the store failed; they were never acknowledged as durable.",
                recorder.shed_bytes,
            ),
            "hindmost_collector_judging_seconds": ("Time spent judging.", self._collector.judging.seconds),
            "hindmost_collector_detector_failures": (
                "Times that a detector failed; the log names it, and so do the report's notes.",
                failures.total(),
            ),
            "hindmost_collector_upkeep_seconds": (
                "CPU time of compaction and retention.",
                self._collector.upkeep_seconds,
            ),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(name, text, value)
        gauges = {
            "hindmost_collector_store_failing": ("1 while the store cannot be written.", float(bool(recorder.trouble))),
            "hindmost_collector_torn_segments": (
                "Segments that lie aside as torn: readers leave their rows out.",
                len(_torn(self._collector)),
            ),
            "hindmost_collector_pending_bytes": ("Memory held by rows that are not durable.", recorder.pending_bytes),
            "hindmost_collector_agents": ("Agents with a stream.", ingest.connected()),
            "hindmost_collector_missing_batches": (
                "Batches whose numbers agents skipped and that have not come since: dropped from a full spool.",
                sum(agent.skipped for agent in list(ingest.agents.values())),
            ),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value)
        if self._collector.remote:
            yield from metrics(self._collector.remote)
