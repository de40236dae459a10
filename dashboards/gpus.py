"""The GPU dashboard: the GPUs of one job's ranks, with the blamed rank's next to the others'."""

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models import dashboard as model

from dashboards import board
from dashboards.board import Panels, Section
from dashboards.panels import TO_NODE, Column, lines, rows
from dashboards.promql import LINES, OWNER, ROWS, once, over_range, per_second
from dashboards.thresholds import limits

#: A GPU that no rank computes on has no job: a choice of all jobs matches that, too.
OWNERS = f'{OWNER}{{job_id=~"$job_id",node=~"$node",gpu=~"$gpu"}}'
PER_GPU = "{{node}} GPU {{gpu}} · rank {{rank}}"

#: Of the reasons for a clock, those that are no problem: an idle GPU, and a clock that a user set.
HARMLESS = 'reason!~"gpu_idle|applications_clocks|sync_boost|display_clocks"'


CLOCK = "hindmost_gpu_sm_clock_hertz / hindmost_gpu_sm_clock_max_hertz"
MEMORY = "hindmost_gpu_memory_used_bytes / hindmost_gpu_memory_total_bytes"
#: NVIDIA's GPUs count the seconds, AMD's have the share of each reading.
HELD = once(
    "node, gpu_uuid, reason",
    f"{per_second(f'hindmost_gpu_clocks_event_seconds_total{{{HARMLESS}}}')} "
    f"or hindmost_gpu_clocks_event_ratio{{{HARMLESS}}}",
)
HELD_BACK = f"sum by (node, gpu_uuid) ({HELD})"
#: NVIDIA's GPUs tell errors by kind, AMD's what was sent again.
PCIE_TROUBLE = " or ".join(
    f"sum by (node, gpu_uuid, instance) ({per_second(f'hindmost_gpu_pcie_{what}_total')})"
    for what in ("errors", "replays")
)
OWNED = f"and on (node, gpu_uuid) {OWNERS}"


def dashboard() -> model.Dashboard:
    """The whole board, with the variables ``job_id``, ``node`` and ``gpu``; all GPUs, also those without a job."""
    variables = [
        board.several("job_id", "job", f"label_values({OWNER}, job_id)"),
        board.several("node", "node", f"label_values({OWNER}, node)"),
        board.several("gpu", "GPU", f'label_values({OWNER}{{node=~"$node"}}, gpu)'),
    ]
    sections = [
        Section("GPUs", overview()),
        Section("Clocks and heat", clocks()),
        Section("Work", work()),
        Section("Links and errors", links()),
    ]
    about = "What GPUs do, in a job or not: whether one is throttled, shared, idle or faulty."
    return board.assemble("hindmost-gpus", about, variables, sections)


def overview() -> Panels:
    """A row a GPU, those held back most on top."""
    shown = f"topk({ROWS}, max by (node, gpu, job_id, rank) ({of_gpus(HELD_BACK)}))"

    def of_shown(expression: str) -> str:
        return f"max by (node, gpu, job_id, rank) ({of_gpus(expression)}) and on (node, gpu) {shown}"

    return [
        rows(
            f"{ROWS} GPUs, those held back most first",
            "A lower clock than its peers: power or heat. More memory than its rank uses: another process on the GPU. "
            "Lower utilisation at the same clock: its host launches work too slowly.",
            {"node": "node", "gpu": "GPU", "job_id": "job", "rank": "rank"},
            [
                Column("held back", shown, "percentunit", limits("gpu_held_back")),
                Column("clock of its maximum", of_shown(CLOCK), "percentunit"),
                Column("utilisation", of_shown("hindmost_gpu_utilization_ratio"), "percentunit"),
                Column("memory used", of_shown(MEMORY), "percentunit"),
                Column("power", of_shown("hindmost_gpu_power_watts"), "watt"),
                Column(
                    "temperature", of_shown("hindmost_gpu_temperature_celsius"), "celsius", limits("gpu_temperature")
                ),
                Column("answers", of_shown("hindmost_gpu_up"), "bool_yes_no"),
            ],
            height=12,
            links={"node": [TO_NODE]},
        )
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
            "Chosen GPUs that are held back at any time, added up. sw_power_cap: at the power limit; the "
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
    kinds = [
        ('hindmost_gpu_ecc_errors_total{corrected="no"}', "{{node}} ECC"),
        ("hindmost_gpu_nvlink_replay_errors_total", "{{node}} NVLink"),
        ("hindmost_gpu_all_xid_errors_total", "{{node}} XID"),
    ]
    pcie = "hindmost_gpu_pcie_receive_bytes_per_second"
    return [
        _lowest("NVLink received", "One GPU far below its peers: a link is down or slow.", "Bps", nvlink),
        _highest("PCIe received", "Input batches and other copies from the host. Hopper and later.", "Bps", pcie),
        lines(
            "Errors over the time range",
            "Memory errors that ECC could not correct and XID errors are reasons to drain the node. "
            "hindmost_gpu_xid_errors_total names the XID. NVLink packets sent again cost time.",
            "none",
            *(
                (f"topk({LINES}, max by (node) (sum by (node, instance) ({over_range(errors)} {OWNED})))", legend)
                for errors, legend in kinds
            ),
        ),
        _highest(
            "PCIe errors",
            "Bad packets, and packets refused, of any kind. A growing count: a bad riser, slot or cable.",
            "cps",
            PCIE_TROUBLE,
        ),
    ]


def of_gpus(expression: str) -> str:
    """A value of each chosen GPU, with the rank that computes on it."""
    return f"{OWNERS} * on (node, gpu_uuid) group_left () {once('node, gpu_uuid', expression)}"


def _highest(title: str, description: str, unit: str, expression: str) -> timeseries.Panel:
    query = f"topk({LINES}, {of_gpus(expression)})"
    return lines(f"{title}, the {LINES} highest", description, unit, (query, PER_GPU), links=[TO_NODE])


def _lowest(title: str, description: str, unit: str, expression: str) -> timeseries.Panel:
    query = f"bottomk({LINES}, {of_gpus(expression)})"
    return lines(f"{title}, the {LINES} lowest", description, unit, (query, PER_GPU), links=[TO_NODE])
