"""What the ranks' processes and nodes use, and how well a job is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.panels import OF_NODE, OF_RANK, PER_RANK, lines
from dashboards.promql import (
    LINES,
    LOST_EVENTS,
    NODE_BUSY,
    PROCESS_CPU,
    PROCESS_MEMORY,
    PROCESS_READ,
    PROCESS_RUNQUEUE,
    busiest,
    highest,
    of_ranks,
    per_second,
)

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import timeseries

    from dashboards.board import Panels
    from dashboards.panels import Query


def processes() -> Panels:
    """CPU, run queue, memory and file bytes of the ranks' processes with their workers."""
    return [
        _process(
            "CPU",
            "Cores that a rank's process and its workers use. The culprit high and the others low: it computes while "
            "they sleep in the collective. All at the number of their threads: they spin while they wait.",
            "none",
            PROCESS_CPU,
        ),
        _process(
            "Waiting for a CPU",
            "Threads of a rank and its workers that were ready to run and had no CPU: other processes, too many "
            "threads, or a cgroup's limit.",
            "none",
            PROCESS_RUNQUEUE,
        ),
        _process(
            "Resident memory",
            "One rank that grows alone leaks; a node whose ranks together near its memory will swap or kill. Pages "
            "that workers share count in each.",
            "bytes",
            PROCESS_MEMORY,
        ),
        _process(
            "Read from files",
            "Bytes that a rank and its workers fetched from storage. Zero with a slow input phase: the data comes from "
            "the page cache or is generated; low with a slow input phase: the storage is slow.",
            "Bps",
            PROCESS_READ,
        ),
    ]


def nodes() -> Panels:
    """CPU, memory, disk, network and pressure of the nodes that hold the selected ranks."""
    available = "hindmost_node_memory_available_bytes / hindmost_node_memory_total_bytes"
    stalled = "hindmost_node_pressure_waiting_seconds_total"
    return [
        _node(
            "CPU in use",
            "Share of the node's CPU time. A node far above the others runs other work too.",
            "percentunit",
            (busiest(NODE_BUSY), "{{node}}"),
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


def seen() -> Panels:
    """Whether what the other panels show is complete."""
    return [
        lines(
            f"Events lost a second, the {LINES} highest nodes",
            "Events that probes wrote and no agent read in time. What is lost is missing from waits and phases; raise "
            "HINDMOST_RING_CAPACITY or give the agent CPU.",
            "none",
            (f"topk({LINES}, sum by (node) ({of_ranks(LOST_EVENTS)}))", "{{node}}"),
            links=OF_NODE,
        ),
        lines(
            f"Since the agent's last message, the {LINES} highest nodes",
            "Time since the last message of a node's agent. Above a few seconds the node, its network or its agent is "
            "down.",
            "s",
            (busiest("max by (node) (hindmost_collector_agent_silence_seconds)"), "{{node}}"),
            links=OF_NODE,
        ),
    ]


def _process(title: str, description: str, unit: str, record: str) -> timeseries.Panel:
    query = highest(of_ranks(record))
    return lines(f"{title}, the {LINES} highest ranks", description, unit, (query, PER_RANK), links=OF_RANK)


def _node(title: str, description: str, unit: str, *queries: Query) -> timeseries.Panel:
    return lines(f"{title}, the {LINES} highest nodes", description, unit, *queries, width=8, links=OF_NODE)


def _of_devices(metric: str, matchers: str = "") -> str:
    return f"sum by (node) ({per_second(f'{metric}{{{matchers}}}' if matchers else metric)})"
