"""The board of hindmost itself: whether what the other boards show is complete and new, and what it costs."""

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models import dashboard as model

from dashboards.board import Panels, Section, assemble
from dashboards.panels import OF_NODE, lines, number
from dashboards.promql import LINES, highest, over_range, per_second
from dashboards.thresholds import Limits, limits

_LAG = f"histogram_quantile(0.99, sum by (le) ({per_second('hindmost_collector_loop_lag_seconds_bucket')}))"


_OF_COLLECTORS = "and on (instance) hindmost_collector_info"


def dashboard() -> model.Dashboard:
    """The whole board; it needs no choice."""
    sections = [
        Section("Now", now()),
        Section("Collectors", collectors()),
        Section("Agents", agents()),
        Section("Losses and failures", losses()),
        Section("Cost of agents", cost(), folded=True),
    ]
    about = "Whether hindmost sees all, in time, and what it costs: lag, judging time, drops, spools, failures."
    return assemble("hindmost-itself", about, [], sections)


def now() -> Panels:
    """Six numbers that should be dull."""
    silent = "hindmost_collector_agent_connected == 0"
    return [
        number("Agents", "Agents with a stream.", "none", ("sum(hindmost_collector_agents)", "agents"), Limits(1, 0)),
        number(
            "Agents silent",
            "Agents that did not sign off and are not connected.",
            "none",
            (f"count({silent}) or vector(0)", "silent"),
            Limits(1, 8),
        ),
        number(
            "Lag",
            "By how much the collector's event loop is late, 99th percentile. Above it verdicts come late.",
            "s",
            (_LAG, "p99"),
            limits("lag"),
        ),
        number(
            "Samples dropped",
            "Samples that agents dropped over the time range.",
            "none",
            (f"sum({over_range('hindmost_agent_dropped_samples_total')})", "dropped"),
            limits("losses"),
        ).no_value("none"),
        number(
            "Events lost",
            "Probe events that no agent read in time, over the time range.",
            "none",
            (f"sum({over_range('hindmost_rank_events_lost_total')})", "lost"),
            limits("losses"),
        ).no_value("none"),
        number(
            "Detector failures",
            "Times that a detector failed over the time range; the log names it.",
            "none",
            (f"sum({over_range('hindmost_collector_detector_failures_total')})", "failures"),
            Limits(1, 10),
        ),
    ]


def collectors() -> Panels:
    return [
        lines(
            "Lag of the event loop",
            "99th percentile and median of the delay of its ticks.",
            "s",
            (_LAG, "p99"),
            (_LAG.replace("0.99", "0.5"), "median"),
        ),
        lines(
            "CPU",
            "Cores that a collector uses, and what part of that judging is. Judging runs in threads of its own.",
            "none",
            (f"{per_second('process_cpu_seconds_total')} {_OF_COLLECTORS}", "{{instance}} all"),
            (per_second("hindmost_collector_judging_seconds_total"), "{{instance}} judging"),
            (per_second("hindmost_collector_upkeep_seconds_total"), "{{instance}} upkeep of the store"),
        ),
        lines(
            "Memory",
            "Resident memory, and rows that are not yet durable.",
            "bytes",
            (f"process_resident_memory_bytes {_OF_COLLECTORS}", "{{instance}} resident"),
            ("hindmost_collector_pending_bytes", "{{instance}} pending rows"),
        ),
        lines(
            "Received",
            "Batches and metric samples a second.",
            "none",
            (per_second("hindmost_collector_batches_total"), "{{instance}} batches"),
            (per_second("hindmost_collector_samples_total"), "{{instance}} samples"),
        ),
        lines(
            "Written",
            "Bytes that the store takes a second.",
            "Bps",
            (per_second("hindmost_collector_stored_bytes_total"), "{{instance}}"),
        ),
        lines(
            "Time of a flush",
            "Mean. When it grows, the disk is slow: agents' spools fill next.",
            "s",
            (
                " / ".join(per_second(f"hindmost_collector_{what}_total") for what in ("flush_seconds", "flushes")),
                "{{instance}}",
            ),
        ),
    ]


def agents() -> Panels:
    """Whether agents are heard, and what they hold back."""
    return [
        _agents(
            "Since the agent's last message",
            "Above a few seconds the node, its network or its agent is down.",
            "s",
            "hindmost_collector_agent_silence_seconds",
        ),
        _agents(
            "Spool",
            "Share of its spool that an agent uses for what is not yet durable. At 1 the oldest samples go.",
            "percentunit",
            "hindmost_agent_spool_bytes / hindmost_agent_spool_limit_bytes",
        ),
        _agents(
            "Uncertainty of clocks",
            "Largest difference to expect between the node's times and the job clock.",
            "s",
            "hindmost_collector_clock_uncertainty_seconds",
        ),
        _agents(
            "Rings that are read",
            "Ranks whose events the agent reads. Fewer than there are ranks on the node: run hindmost doctor there.",
            "none",
            "hindmost_agent_rings",
        ),
    ]


def losses() -> Panels:
    """What is missing from the other boards."""
    return [
        lines(
            "Dropped and lost",
            "Over the time range, by what was lost. All should be 0.",
            "none",
            (f"sum by (reason) ({over_range('hindmost_agent_dropped_samples_total')})", "agents' samples: {{reason}}"),
            (f"sum({over_range('hindmost_collector_shed_samples_total')})", "samples: the collector's memory was full"),
            ("sum(hindmost_collector_missing_batches)", "batches that never came"),
            (f"sum({over_range('hindmost_collector_malformed_blocks_total')})", "malformed blocks"),
            ("sum(hindmost_collector_withheld_series)", "series left out of /metrics"),
        ),
        lines(
            "Failures",
            "Over the time range: detectors, flushes, messages that were set aside, readings of agents' samplers.",
            "none",
            (f"sum({over_range('hindmost_collector_detector_failures_total')})", "detectors"),
            (f"sum({over_range('hindmost_collector_store_failures_total')})", "flushes"),
            (f"sum({over_range('hindmost_collector_set_aside_messages_total')})", "messages set aside"),
            (highest(f"sum by (sampler) ({over_range('hindmost_agent_sampler_errors_total')})"), "sampler {{sampler}}"),
        ),
    ]


def cost() -> Panels:
    """What agents take from their nodes."""
    return [
        _agents(
            "CPU of the agent", "As a share of one core.", "percentunit", per_second("hindmost_agent_cpu_seconds_total")
        ),
        _agents("Memory of the agent", "Resident.", "bytes", "hindmost_agent_resident_memory_bytes"),
        lines(
            "Longest readings",
            "How long a sampler's last reading took, the slowest samplers. A driver that hangs is seen here.",
            "s",
            (f"topk({LINES}, max by (sampler) (hindmost_agent_sampler_duration_seconds))", "{{sampler}}"),
        ),
    ]


def _agents(title: str, description: str, unit: str, expression: str) -> timeseries.Panel:
    query = highest(f"max by (node) ({expression})")
    return lines(f"{title}, the {LINES} highest nodes", description, unit, (query, "{{node}}"), links=OF_NODE)
