"""The GPU dashboard: the GPUs of one job's ranks, with the blamed rank's next to the others'."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards import board
from dashboards.panels import Column, lines, rows
from dashboards.promql import LINES, ROWS, of_ranks, over_range, per_second

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import timeseries
    from grafana_foundation_sdk.models import dashboard as model

    from dashboards.board import Panels

OWNERS = 'hindmost_gpu_rank_info{job="$job",node=~"$node",rank=~"$rank"}'
PER_GPU = "rank {{rank}} · {{node}}"

#: Of the reasons for a clock, those that are no problem: an idle GPU, and a clock that a user set.
HARMLESS = 'reason!~"gpu_idle|applications_clocks|sync_boost|display_clocks"'


CLOCK = "hindmost_gpu_sm_clock_hertz / on (node, gpu_uuid) hindmost_gpu_sm_clock_max_hertz"
MEMORY = "hindmost_gpu_memory_used_bytes / on (node, gpu_uuid) hindmost_gpu_memory_total_bytes"
HELD = per_second(f"hindmost_gpu_clocks_event_seconds_total{{{HARMLESS}}}")
HELD_BACK = f"sum by (node, gpu_uuid) ({HELD})"
#: NVIDIA's GPUs tell errors by kind, AMD's what was sent again.
PCIE_TROUBLE = " or ".join(
    f"sum by (node, gpu_uuid) ({per_second(f'hindmost_gpu_pcie_{what}_total')})" for what in ("errors", "replays")
)
OWNED = f"and on (node, gpu_uuid) {OWNERS}"


def dashboard() -> model.Dashboard:
    """The whole dashboard, with the variables ``job``, ``node`` and ``rank``."""
    variables = [
        board.one("job", "job", "label_values(hindmost_gpu_rank_info, job)"),
        board.several("node", "node", 'label_values(hindmost_gpu_rank_info{job="$job"}, node)'),
        board.several("rank", "rank", 'label_values(hindmost_gpu_rank_info{job="$job",node=~"$node"}, rank)'),
    ]
    sections = {
        "GPUs of the ranks": overview(),
        "Clocks and heat": clocks(),
        "Work": work(),
        "Links and errors": links(),
    }
    about = "What the GPUs of one job do: whether a slow rank's GPU is throttled, shared, idle or faulty."
    return board.assemble("hindmost-gpus", "hindmost / GPUs", about, variables, sections)


def overview() -> Panels:
    """A row a rank, the one that others wait for on top."""
    caused = over_range(of_ranks("hindmost_rank_caused_wait_seconds_total"))
    worst = f"topk({ROWS}, sum by (rank, node) (({caused}) * on (job, rank) group_left (node) {OWNERS}))"

    def of_worst(expression: str) -> str:
        return f"max by (rank, node) ({of_gpus(expression)}) and on (rank) {worst}"

    return [
        rows(
            f"The {ROWS} ranks that cause most wait, and their GPUs",
            "Compare the first row with the others. A lower clock or a clock limit: power or heat. Less memory "
            "free: another process on the GPU. Lower activity at the same clock: its host launches work too "
            "slowly.",
            {"rank": "rank", "node": "node"},
            [
                Column("caused wait", worst, "s"),
                Column("clock of its maximum", of_worst(CLOCK), "percentunit"),
                Column("held back", of_worst(HELD_BACK), "percentunit", 0.01, 0.1),
                Column("utilisation", of_worst("hindmost_gpu_utilization_ratio"), "percentunit"),
                Column("memory used", of_worst(MEMORY), "percentunit"),
                Column("power", of_worst("hindmost_gpu_power_watts"), "watt"),
                Column("temperature", of_worst("hindmost_gpu_temperature_celsius"), "celsius", 83, 90),
            ],
            height=12,
        ),
    ]


def clocks() -> Panels:
    """What slows a GPU down."""
    return [
        _lowest(
            "SM clock, of its maximum",
            "All GPUs of a job should run alike. One with a lower clock computes more slowly by the same share.",
            "percentunit",
            CLOCK,
        ),
        lines(
            "Held back, by reason",
            "GPUs of the job that are held back at any time, added up. sw_power_cap: at the power limit; the "
            "thermal "
            "reasons: cooling; hw_power_brake: the power supply.",
            "none",
            (f"sum by (reason) ({HELD} {OWNED})", "{{reason}}"),
        ),
        _highest(
            "Temperature",
            "Neighbours in one chassis differ by some degrees; one that stands out has poor cooling.",
            "celsius",
            "hindmost_gpu_temperature_celsius",
        ),
        _highest("Power", "At the limit the clock goes down.", "watt", "hindmost_gpu_power_watts"),
    ]


def work() -> Panels:
    """How busy the parts of a GPU are; GPM, so on Hopper and later only."""
    return [
        _lowest(
            "SM activity",
            "Share of time in which the average SM had work, the lowest GPUs. The one that others wait for is busy "
            "while they wait; one that is idle and late waits for its host or its data. Hopper and later.",
            "percentunit",
            "hindmost_gpu_sm_activity_ratio",
        ),
        _lowest(
            "Tensor core activity",
            "Share of the peak, the lowest GPUs. Hopper and later.",
            "percentunit",
            "hindmost_gpu_tensor_activity_ratio",
        ),
        _highest(
            "Memory bandwidth in use",
            "Share of the peak. Near 1 the job is bound by device memory. Hopper and later.",
            "percentunit",
            "hindmost_gpu_dram_activity_ratio",
        ),
        _highest("Memory used", "Share of the device's memory.", "percentunit", MEMORY),
    ]


def links() -> Panels:
    """What passes to and from a GPU, and what went wrong on the way."""
    nvlink = per_second("hindmost_gpu_nvlink_receive_bytes_total")
    xid = over_range("hindmost_gpu_all_xid_errors_total")
    nvlink_errors = over_range("hindmost_gpu_nvlink_replay_errors_total")
    uncorrected = 'hindmost_gpu_ecc_errors_total{corrected="no"}'
    pcie = "hindmost_gpu_pcie_receive_bytes_per_second"
    return [
        _lowest("NVLink received", "One GPU far below its peers: a link is down or slow.", "Bps", nvlink),
        _highest("PCIe received", "Input batches and other copies from the host. Hopper and later.", "Bps", pcie),
        lines(
            "Errors over the time range",
            "Memory errors that ECC could not correct and XID errors are reasons to drain the node. "
            "hindmost_gpu_xid_errors_total names the XID. NVLink packets sent again cost time.",
            "none",
            (f"topk({LINES}, sum by (node) ({over_range(uncorrected)} {OWNED}))", "{{node}} ECC"),
            (f"topk({LINES}, sum by (node) ({nvlink_errors} {OWNED}))", "{{node}} NVLink"),
            (f"topk({LINES}, sum by (node) ({xid} {OWNED}))", "{{node}} XID"),
        ),
        _highest(
            "PCIe errors",
            "Bad packets, and packets refused, of any kind. A growing count: a bad riser, slot or cable.",
            "cps",
            PCIE_TROUBLE,
        ),
    ]


def of_gpus(expression: str) -> str:
    """A value of each GPU, given to each chosen rank that computes on it."""
    return f"{OWNERS} * on (node, gpu_uuid) group_left () ({expression})"


def _highest(title: str, description: str, unit: str, expression: str) -> timeseries.Panel:
    query = f"topk({LINES}, {of_gpus(expression)})"
    return lines(f"{title}, the {LINES} highest", description, unit, (query, PER_GPU))


def _lowest(title: str, description: str, unit: str, expression: str) -> timeseries.Panel:
    query = f"bottomk({LINES}, {of_gpus(expression)})"
    return lines(f"{title}, the {LINES} lowest", description, unit, (query, PER_GPU))
