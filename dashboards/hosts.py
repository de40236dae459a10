"""What the ranks' processes, their nodes and hindmost itself use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.panels import PER_RANK, lines
from dashboards.promql import LINES, busiest, highest, of_ranks, per_second, with_node

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import timeseries

    from dashboards.board import Panels
    from dashboards.panels import Query


def processes() -> Panels:
    """CPU, memory, run queue and file bytes of the ranks' processes."""
    return [
        _process(
            "CPU",
            "Cores that a rank's process and its workers use. The culprit high and the others low: it computes "
            "while "
            "they sleep in the collective. All at the number of their threads: they spin while they wait.",
            "none",
            per_second(of_ranks("hindmost_process_cpu_seconds_total")),
        ),
        _process(
            "Waiting for a CPU",
            "Share of time that a rank was ready to run and had no CPU: other processes, too many threads, or "
            "a cgroup's limit.",
            "percentunit",
            per_second(of_ranks("hindmost_process_runqueue_seconds_total")),
        ),
        _process(
            "Resident memory",
            "One rank that grows alone leaks; a node whose ranks together near its memory will swap or kill.",
            "bytes",
            of_ranks("hindmost_process_resident_memory_bytes"),
        ),
        _process(
            "Read from files",
            "Bytes that reached storage. Zero with a slow input phase: the data comes from the page cache or is "
            "generated; low with a slow input phase: the storage is slow.",
            "Bps",
            per_second(of_ranks("hindmost_process_read_bytes_total")),
        ),
    ]


def nodes() -> Panels:
    """CPU, memory, disk, network and pressure of the nodes that hold the selected ranks."""
    busy = 'sum by (node) (rate(hindmost_node_cpu_seconds_total{mode!~"idle|iowait"}[$__rate_interval]))'
    every = "sum by (node) (rate(hindmost_node_cpu_seconds_total[$__rate_interval]))"
    available = "hindmost_node_memory_available_bytes / hindmost_node_memory_total_bytes"
    stalled = "hindmost_node_pressure_waiting_seconds_total"
    return [
        _node(
            "CPU in use",
            "Share of the node's CPU time. A node far above the others runs other work too.",
            "percentunit",
            (busiest(f"{busy} / {every}"), "{{node}}"),
        ),
        _node(
            "Memory in use",
            "Share of the node's memory that is not available. Above 95 % pages are reclaimed under the job.",
            "percentunit",
            (busiest(f"1 - {available}"), "{{node}}"),
        ),
        _node(
            "Pressure",
            "Share of time in which at least one task on the node waited for the resource (Linux PSI).",
            "percentunit",
            (busiest(f"sum by (node, resource) ({per_second(stalled)})"), "{{node}} {{resource}}"),
        ),
        _node(
            "Disk",
            "Bytes read and written, all devices of a node.",
            "Bps",
            (busiest(_of_devices("hindmost_node_disk_read_bytes_total")), "{{node}} read"),
            (busiest(_of_devices("hindmost_node_disk_written_bytes_total")), "{{node}} written"),
        ),
        _node(
            "Network",
            "Bytes received and sent, all interfaces but loopback.",
            "Bps",
            (busiest(_of_devices("hindmost_node_network_receive_bytes_total", 'device!="lo"')), "{{node}} received"),
            (busiest(_of_devices("hindmost_node_network_transmit_bytes_total", 'device!="lo"')), "{{node}} sent"),
        ),
    ]


def hindmost() -> Panels:
    """Whether what the other panels show is complete, and what it costs to know it."""
    lost = with_node(per_second(of_ranks("hindmost_rank_events_lost_total")))
    agent = per_second("hindmost_agent_cpu_seconds_total")
    return [
        lines(
            f"Events lost a second, the {LINES} highest nodes",
            "Events that probes wrote and no agent read in time. What is lost is missing from waits and phases; "
            "raise "
            "HINDMOST_RING_CAPACITY or give the agent CPU.",
            "none",
            (f"topk({LINES}, sum by (node) ({lost}))", "{{node}}"),
            width=6,
        ),
        _own(
            "Since the agent's last message",
            "Time since the last message of a node's agent. Above a few seconds the node, its network or its "
            "agent is down.",
            "s",
            "hindmost_collector_agent_silence_seconds",
        ),
        _own(
            "Spool of the agent",
            "Data that the agent keeps until the collector has stored it. If it grows, the collector is slow or "
            "unreachable.",
            "bytes",
            "hindmost_agent_spool_bytes",
        ),
        _own(
            "CPU of the agent",
            "Cost of the agent on its node, as a share of one core.",
            "percentunit",
            agent,
        ),
    ]


def _process(title: str, description: str, unit: str, expression: str) -> timeseries.Panel:
    """One panel of the ranks' processes; a rank's processes count together."""
    of_rank = f"sum by (job, rank) ({expression})"
    return lines(f"{title}, the {LINES} highest ranks", description, unit, (highest(of_rank), PER_RANK))


def _node(title: str, description: str, unit: str, *queries: Query) -> timeseries.Panel:
    return lines(f"{title}, the {LINES} highest nodes", description, unit, *queries, width=8)


def _of_devices(metric: str, matchers: str = "") -> str:
    return f"sum by (node) ({per_second(f'{metric}{{{matchers}}}' if matchers else metric)})"


def _own(title: str, description: str, unit: str, expression: str) -> timeseries.Panel:
    """One panel of the agents on the ranks' nodes."""
    of_node = f"max by (node) ({expression})"
    return lines(f"{title}, the {LINES} highest nodes", description, unit, (busiest(of_node), "{{node}}"), width=6)
