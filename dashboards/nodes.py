"""The node dashboard: every node of a cluster at a glance, then the chosen ones in detail, whatever runs there."""

import re

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models import dashboard as model

from dashboards import board, promql
from dashboards.board import Panels, Section
from dashboards.panels import OF_NODE, TO_GPUS, Column, Query, lines, rows
from dashboards.promql import NODE_BUSY, ROWS, of_nodes, once, over_range
from dashboards.thresholds import limits

#: How many nodes, or devices of nodes, one panel draws.
LINES = 16


NOT_IDLE = 'mode!="idle"'
NOT_LOOPBACK = 'device!="lo"'
RESOURCE_CPU = 'resource="cpu"'


def rate_of(what: str, *matchers: str) -> str:
    """The rate of the chosen nodes' counter ``hindmost_node_WHAT_total``."""
    return promql.per_second(of_nodes(f"hindmost_node_{what}_total", *matchers))


CORES = of_nodes("hindmost_node_cpus")
RUNNABLE = f"{of_nodes('hindmost_node_processes_running')} / {CORES}"
MEMORY = f"1 - {of_nodes('hindmost_node_memory_available_bytes')} / {of_nodes('hindmost_node_memory_total_bytes')}"
LOST = " + ".join(rate_of(f"network_{way}_{what}") for way in ("receive", "transmit") for what in ("errors", "drops"))


def dashboard() -> model.Dashboard:
    """The whole dashboard, with the variable ``node``."""
    variables = [board.several("node", "node", "label_values(hindmost_node_cpus, node)")]
    sections = [
        Section("All chosen nodes", overview()),
        Section("CPU and memory", host()),
        Section("Disk and network", devices()),
        Section("RDMA", rdma(), folded=True),
        Section("Kernel and hardware", hardware(), folded=True),
    ]
    about = "What the nodes of the cluster do, job or no job: where a straggler's host differs from its neighbours."
    return board.assemble("hindmost-nodes", about, variables, sections)


def overview() -> Panels:
    """A row a node, the busiest on top."""
    busiest = f"topk({ROWS}, max by (node) ({of_nodes(NODE_BUSY)}))"

    def of_busiest(expression: str) -> str:
        return f"max by (node) ({expression}) and on (node) {busiest}"

    pressure = rate_of("pressure_waiting_seconds", RESOURCE_CPU)
    return [
        rows(
            f"The {ROWS} busiest nodes",
            "Compare a straggler's node with its neighbours. More runnable threads than cores, memory nearly gone, or "
            "CPU pressure on one node alone explains a slow rank there.",
            {"node": "node"},
            [
                Column("CPU in use", busiest, "percentunit", limits("cpu_busy")),
                Column("runnable threads a core", of_busiest(RUNNABLE), "none"),
                Column("memory in use", of_busiest(MEMORY), "percentunit", limits("memory_used")),
                Column("CPU pressure", of_busiest(pressure), "percentunit", limits("cpu_pressure")),
                Column("cores", of_busiest(CORES), "none"),
            ],
            height=10,
            links={"node": [TO_GPUS]},
        )
    ]


def host() -> Panels:
    """Where CPU time goes, what is short, and what memory is used for."""
    cpu = rate_of("cpu_seconds", NOT_IDLE)
    return [
        lines(
            "CPU time by mode",
            "Cores' worth of time of the chosen nodes together. Much system time: interrupts, page faults, file I/O. "
            "Much iowait: storage. Steal: another virtual machine on the same host.",
            "none",
            (f"sum by (mode) ({once('node, mode', cpu)})", "{{mode}}"),
            stacked=True,
        ),
        _highest(
            "Pressure",
            "Share of time in which some task waited for the resource.",
            "percentunit",
            (rate_of("pressure_waiting_seconds"), "{{node}} {{resource}}"),
        ),
        _highest(
            "Runnable threads a core",
            "Above 1 threads wait for a core. Load balance between cores is not perfect: below 1 some wait too.",
            "none",
            (RUNNABLE, "{{node}}"),
        ),
        _highest(
            "Context switches",
            "A step up without a new job: something wakes up often, such as spinning threads on too few cores.",
            "cps",
            (rate_of("context_switches"), "{{node}}"),
        ),
        _highest("Memory in use", "Share that is not available.", "percentunit", (MEMORY, "{{node}}")),
        _highest(
            "Major page faults",
            "Pages that had to be read from disk: memory is short, or a program starts.",
            "cps",
            (rate_of("major_page_faults"), "{{node}}"),
        ),
    ]


def devices() -> Panels:
    """Bytes and trouble of block devices and interfaces."""
    return [
        _highest(
            "Disk bytes",
            "Read and written, by device.",
            "Bps",
            (rate_of("disk_read_bytes"), "{{node}} {{device}} read"),
            (rate_of("disk_written_bytes"), "{{node}} {{device}} written"),
        ),
        _highest(
            "Disk busy",
            "Share of time with a request in flight. Near 1 with few bytes: a device at its limit of operations, or "
            "ill.",
            "percentunit",
            (rate_of("disk_busy_seconds"), "{{node}} {{device}}"),
        ),
        _highest(
            "Network bytes",
            "Received and sent, by interface. RDMA does not pass here.",
            "Bps",
            (rate_of("network_receive_bytes", NOT_LOOPBACK), "{{node}} {{device}} received"),
            (rate_of("network_transmit_bytes", NOT_LOOPBACK), "{{node}} {{device}} sent"),
        ),
        _highest(
            "Network errors and drops",
            "Packets lost on this node, received or sent. If they continue, check cable, switch and ring sizes.",
            "cps",
            (LOST, "{{node}} {{device}}"),
        ),
    ]


def rdma() -> Panels:
    """Bytes and trouble of InfiniBand and RoCE ports."""
    return [
        _highest(
            "RDMA bytes",
            "Received and sent, by port. A port far below its peers in a job that uses all: it is slow or down.",
            "Bps",
            (rate_of("infiniband_receive_bytes"), "{{node}} {{device}}/{{port}} received"),
            (rate_of("infiniband_transmit_bytes"), "{{node}} {{device}}/{{port}} sent"),
        ),
        _highest(
            "RDMA errors",
            "Packets out of sequence: some were lost, by congestion as a rule. Links that went down: a bad cable.",
            "cps",
            (rate_of("infiniband_out_of_sequence"), "{{node}} {{device}} out of order"),
            (rate_of("infiniband_link_downed"), "{{node}} {{device}} went down"),
        ),
    ]


def hardware() -> Panels:
    """What the kernel reports, memory errors, heat."""
    return [
        _highest(
            "Kernel messages about faults",
            "Hardware errors, killed processes, lost links and the like, over the time range.",
            "none",
            (over_range(of_nodes("hindmost_node_all_kernel_events_total")), "{{node}} {{event}}"),
        ),
        _highest(
            "Temperature",
            "The hottest sensor of each node.",
            "celsius",
            (of_nodes("hindmost_node_temperature_celsius"), "{{node}}"),
        ),
    ]


def _highest(title: str, description: str, unit: str, *queries: Query) -> timeseries.Panel:
    """The highest lines, one for each legend."""
    labels = [", ".join(re.findall(r"\{\{(\w+)\}\}", legend)) for _, legend in queries]
    shown = ((f"topk({LINES}, {once(by, query)})", legend) for by, (query, legend) in zip(labels, queries, strict=True))
    return lines(title, description, unit, *shown, links=OF_NODE)
