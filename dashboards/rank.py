"""The board of one rank and the median of its job."""

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models import dashboard as model

from dashboards import board, promql
from dashboards.board import Panels, Section
from dashboards.panels import OF_NODE, TO_PAGE_OF_RANK, lines, name, number
from dashboards.promql import of_job, of_rank, per_second
from dashboards.thresholds import Limits


def dashboard() -> model.Dashboard:
    """The whole board, with the variables ``job_id`` and ``rank``."""
    ranks = board.one("rank", "rank", f"label_values({of_job('hindmost_rank_info')}, rank)")
    sections = [
        Section("Rank", identity()),
        Section("Steps and waiting", steps()),
        Section("Process and workers", process()),
        Section("GPU", gpu()),
        Section("Node", node(), folded=True),
    ]
    about = "One rank and the median of its job: where its step goes, and what its process, GPU and node do."
    return board.assemble("hindmost-rank", about, [*board.of_a_job(), ranks], sections)


def identity() -> Panels:
    """Where the rank runs and what it does to the others."""
    return [
        name(
            "Where",
            "Node, local rank, process and GPU.",
            (of_rank("hindmost_rank_info"), "{{node}} · local rank {{local_rank}} · pid {{pid}} · {{gpu_uuid}}"),
            width=12,
        ),
        number(
            "Wait caused to others",
            "Seconds that other ranks wait for this one, per second.",
            "none",
            (f"sum({of_rank(promql.CAUSED)})", "caused"),
            Limits(0.5, 2),
        ),
        number(
            "Last into a collective",
            "Share of its collectives into which this rank came last. Without a straggler about 1/N of N ranks.",
            "percentunit",
            (f"max({of_rank(promql.LAST)})", "last"),
            Limits(0.5, 0.9),
        ),
        number(
            "Events lost a second",
            "What was lost is missing from its waits and phases.",
            "none",
            (f"sum({of_rank(promql.LOST_EVENTS)})", "lost"),
            Limits(0.01, 1),
        ),
    ]


def steps() -> Panels:
    """Its steps, waits and phases and the median rank's."""
    own = of_rank(promql.PHASES)
    return [
        _compared("Step time", "A step of this rank and of the median rank.", "s", promql.STEP_SECONDS),
        _compared("Own wait", "Far below the median: the others wait for this rank.", "percentunit", promql.WAIT),
        _compared("Steps a second", "Of a synchronous job all ranks have the same.", "none", promql.STEPS),
        _compared("Items a second", "More than the median: this rank has more work.", "none", promql.WORK),
        lines(
            "Phases of a step, this rank",
            "Stacked.",
            "s",
            (of_rank(promql.PHASES, promql.EXCLUSIVE), "{{phase}}"),
            stacked=True,
            links=[TO_PAGE_OF_RANK],
        ),
        lines(
            "Phases of a step, difference from the median rank",
            "Above 0 this rank takes longer. The highest line is what to explain.",
            "s",
            (f"sum by (phase) ({own}) - quantile by (phase) (0.5, {of_job(promql.PHASES)})", "{{phase}}"),
            links=[TO_PAGE_OF_RANK],
        ),
    ]


def process() -> Panels:
    """CPU, memory and files of its process and workers, and the median rank's."""
    return [
        _compared("CPU", "Cores that the process and its workers use.", "none", promql.PROCESS_CPU),
        _compared(
            "Waiting for a CPU", "Threads that were ready to run and had no CPU.", "none", promql.PROCESS_RUNQUEUE
        ),
        _compared("Resident memory", "Process and workers.", "bytes", promql.PROCESS_MEMORY),
        _compared("Read from files", "Bytes fetched from storage, process and workers.", "Bps", promql.PROCESS_READ),
        lines(
            "Context switches a second",
            "Many involuntary ones: another thread wants the same core.",
            "none",
            (per_second(of_rank("hindmost_process_voluntary_switches_total")), "voluntary"),
            (per_second(of_rank("hindmost_process_involuntary_switches_total")), "involuntary"),
        ),
        lines(
            "Page faults a second",
            "Major ones had to read from disk.",
            "none",
            (per_second(of_rank("hindmost_process_major_page_faults_total")), "major"),
            (per_second(of_rank("hindmost_process_minor_page_faults_total")), "minor"),
        ),
    ]


def gpu() -> Panels:
    """Its GPU and the median GPU of the job."""
    clock = "hindmost_gpu_sm_clock_hertz"
    return [
        _gpu("Clock", "Below the median: heat, power or a limit.", "hertz", clock),
        _gpu("Power", "Below the median at the same clock: it has less to do.", "watt", "hindmost_gpu_power_watts"),
        _gpu("Utilisation", "Share of time with a kernel resident.", "percentunit", "hindmost_gpu_utilization_ratio"),
        _gpu("Temperature", "Near its limit the clock falls.", "celsius", "hindmost_gpu_temperature_celsius"),
    ]


def node() -> Panels:
    here = f"and on (node) group by (node) ({of_rank('hindmost_rank_info')})"
    busy, stalled = "node:hindmost_cpu_busy:ratio1m", "hindmost_node_pressure_waiting_seconds_total"
    return [
        lines(
            "CPU in use", "Share of the node's CPU time.", "percentunit", (f"{busy} {here}", "{{node}}"), links=OF_NODE
        ),
        lines(
            "Pressure",
            "Share of time in which at least one task on the node waited for the resource (Linux PSI).",
            "percentunit",
            (f"{per_second(stalled)} {here}", "{{resource}}"),
            links=OF_NODE,
        ),
    ]


def _compared(title: str, description: str, unit: str, record: str) -> timeseries.Panel:
    return lines(
        title,
        description,
        unit,
        (f"sum({of_rank(record)})", "this rank"),
        (f"quantile(0.5, {of_job(record)})", "median rank"),
        links=[TO_PAGE_OF_RANK],
    )


def _gpu(title: str, description: str, unit: str, metric: str) -> timeseries.Panel:
    value = f"max by (node, gpu_uuid) ({metric})"
    return lines(
        title,
        description,
        unit,
        (f"{value} and on (node, gpu_uuid) {of_rank(promql.OWNER)}", "its GPU"),
        (f"quantile(0.5, {value} and on (node, gpu_uuid) {of_job(promql.OWNER)})", "median GPU"),
        width=6,
    )
