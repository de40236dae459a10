"""The board of one job: read from the top, it goes from the verdict to what explains it."""

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models import dashboard as model

from dashboards import board, promql
from dashboards.board import Annotation, Panels, Section
from dashboards.panels import (
    OF_NODE,
    OF_RANK,
    PER_RANK,
    TO_NODE,
    TO_PAGE,
    TO_PAGE_OF_RANK,
    TO_RANK,
    Column,
    Query,
    bars,
    heat,
    lines,
    name,
    number,
    rows,
    timeline,
    verdict,
)
from dashboards.promql import busiest, highest, of_job, of_ranks, over_range, per_second, worst
from dashboards.thresholds import Limits, limits

_URGENCY = of_job("hindmost_verdict_urgency")
ANNOTATIONS = (
    Annotation("verdicts", f"max by (job_id, verdict) ({_URGENCY}) > 0", "{{verdict}}", "orange"),
    Annotation(
        "onsets",
        f"max by (job_id, verdict) ({of_job('hindmost_verdict_onset_time_seconds')}) * 1000",
        "onset of {{verdict}}",
        "red",
        at_value=True,
    ),
)


def dashboard() -> model.Dashboard:
    """The whole board, with the variables ``job_id``, ``node`` and ``rank``."""
    sections = [
        Section("Verdict", verdicts()),
        Section("Steps", steps()),
        Section("Waiting", waiting()),
        Section("The culprit and its peers", culprit()),
        Section("Ranks", ranks()),
        Section("Processes of the ranks", processes(), folded=True),
        Section("Nodes of the ranks", hosts(), folded=True),
        Section("What is seen of this job", seen(), folded=True),
    ]
    about = "Which rank everyone else is waiting for, why, since when, and what it costs."
    return board.assemble("hindmost-job", about, board.of_ranks(), sections, ANNOTATIONS)


def verdicts() -> Panels:
    """What holds the job back, and whether all of the job is seen."""
    cost, by = of_job("hindmost_verdict_cost_ratio"), "kind, cause, ranks"
    return [
        verdict(
            "Verdict",
            "What to look at first: a lost contact, then a hang, then the most costly verdict. Grey: not known, or "
            "not yet.",
            (f"topk(1, {of_job(promql.VERDICT)})", "{{verdict}}"),
            width=8,
        ),
        number(
            "Cost of the worst verdict",
            "Share of the job's time that the most costly verdict takes.",
            "percentunit",
            (f"max({cost})", "cost"),
            limits("cost"),
        ).no_value("none"),
        number(
            "Steps a second",
            "Of the rank with most steps.",
            "none",
            (f"rate({of_job('hindmost_job_steps_total')}[$__rate_interval])", "steps"),
            Limits(1e9, 1e9),
        ),
        number(
            "Ranks that report",
            "Fewer than the world size: a node has no agent, or ranks have not started. Run hindmost doctor there.",
            "none",
            (f"max({of_job('hindmost_job_ranks')})", "ranks"),
            Limits(1, 0),
            width=3,
        ),
        number(
            "Nodes lost",
            "Nodes of the job from which no agent is heard: their ranks are missing from verdicts.",
            "none",
            (f"max({of_job('hindmost_job_lost_nodes')})", "nodes"),
            Limits(1, 1),
            width=2,
        ),
        name(
            "Job",
            "Command and world size.",
            (of_job("hindmost_job_info"), "{{command}}, {{world_size}} ranks"),
            width=3,
        ),
        timeline(
            "Verdicts over time",
            "A row a verdict, from when it was found to when it ended. Purple hangs or is lost, red and orange cost "
            "time, green is balanced, grey is not known.",
            (of_job(promql.VERDICT), "{{verdict}}"),
            links=[TO_PAGE],
        ),
        rows(
            "All verdicts",
            "What holds the job back now, the most urgent first. Cost is the share of the job's time that repairing "
            "this one thing would save. For evidence and advice: the page, or hindmost report RUN.",
            {"kind": "kind", "cause": "cause", "ranks": "ranks", "since_step": "since step"},
            [
                Column("urgency", f"max by ({by}) ({_URGENCY})", "none", limits("cost")),
                Column("cost", f"max by ({by}) ({cost})", "percentunit", limits("cost")),
                Column("cost a step", f"max by ({by}) ({of_job('hindmost_verdict_cost_seconds_per_step')})", "s"),
                Column("confidence", f"max by ({by}) ({of_job('hindmost_verdict_confidence_ratio')})", "percentunit"),
                Column("open", f"max by ({by}, since_step) ({of_job('hindmost_verdict_info')})", "bool_yes_no"),
            ],
            height=6,
            links={"ranks": [TO_PAGE]},
        ),
    ]


def steps() -> Panels:
    """How long steps take, and what the job gets done."""
    seconds, reached = of_ranks(promql.STEP_SECONDS), of_job("hindmost_rank_last_step")
    return [
        lines(
            "Step time of the job",
            "The last minute; median and 99th percentile of the last five; and the step if no rank made others wait. A "
            "p99 far above the median is an intermittent slowdown; if both rise, it is a persistent one.",
            "s",
            (f"quantile(0.5, {seconds})", "last minute"),
            *((f"max({of_job(f'hindmost_job_step_{one}_seconds')})", one) for one in ("median", "p99", "ideal")),
            width=8,
        ),
        lines(
            "Steps a second, of ranks",
            "The fastest and the slowest rank. In a synchronous job they are the same.",
            "none",
            (f"max({of_ranks(promql.STEPS)})", "fastest"),
            (f"min({of_ranks(promql.STEPS)})", "slowest"),
            width=8,
        ),
        lines(
            "Items a second",
            "Samples or tokens of all ranks together, and of the rank with least and with most. Empty where neither "
            "the job nor its framework counts them: hindmost.step(work=tokens) does.",
            "none",
            (f"sum({of_ranks(promql.WORK)})", "all ranks"),
            (f"max({of_ranks(promql.WORK)})", "most of a rank"),
            (f"min({of_ranks(promql.WORK)})", "least of a rank"),
            width=8,
        ),
        lines(
            f"Step time, the {promql.LINES} ranks that cause most wait",
            "In a synchronous job all ranks have nearly the same step time, the culprit too: look at waiting and "
            "phases for the difference. Lines apart mean that ranks are not synchronised each step.",
            "s",
            (worst(seconds), PER_RANK),
            links=OF_RANK,
        ),
        lines(
            "Step reached",
            "The furthest and the hindmost rank. Two flat lines: the job hangs, evaluates or has ended. A gap that "
            "grows: ranks run apart.",
            "none",
            (f"max({reached})", "furthest"),
            (f"min({reached})", "hindmost"),
        ),
    ]


def waiting() -> Panels:
    caused, waits = of_ranks(promql.CAUSED), of_ranks(promql.WAIT)
    return [
        heat(
            f"Wait caused to others, the {promql.HEAT} worst ranks",
            "Seconds that other ranks wait for this one, per second. One dark row is a straggler; dark columns are "
            "moments in which all ranks were slow in turn.",
            "none",
            (worst(caused, promql.HEAT), "rank {{rank}}"),
            links=[TO_RANK, TO_PAGE_OF_RANK],
        ),
        bars(
            f"Wait caused to others, the {promql.LINES} worst ranks",
            "Over the time range: for how long all other ranks together waited for this one. One bar that stands out "
            "is the straggler; bars of similar length mean load imbalance or no problem.",
            "none",
            (f"sort_desc(topk({promql.LINES}, avg_over_time({caused}[$__range])))", PER_RANK),
            width=8,
            links=OF_RANK,
        ),
        bars(
            f"Last into a collective, the {promql.LINES} worst ranks",
            "Share of its collectives into which this rank came last. With N ranks and no straggler each has about "
            "1/N.",
            "percentunit",
            (f"sort_desc(topk({promql.LINES}, avg_over_time({of_ranks(promql.LAST)}[$__range])))", PER_RANK),
            width=8,
            links=OF_RANK,
        ),
        lines(
            "Own wait across ranks",
            "Share of time that ranks wait in collectives. The rank that waits least is the one that the others wait "
            "for: the minimum far below the median is a straggler, all high is the network.",
            "percentunit",
            (f"max({waits})", "maximum"),
            (f"quantile(0.5, {waits})", "median"),
            (f"min({waits})", "minimum"),
            width=8,
        ),
    ]


def culprit() -> Panels:
    """Where the time of a step goes, on the rank that others wait for and on the median rank."""
    exclusive = of_ranks(promql.PHASES, promql.EXCLUSIVE)
    each = of_ranks(promql.PHASES)
    return [
        lines(
            "Phases of the rank that causes most wait",
            "Stacked, of a step. Compare with the median rank on its right.",
            "s",
            (worst(exclusive, 1), "{{phase}} · rank {{rank}}"),
            stacked=True,
            width=8,
            links=OF_RANK,
        ),
        lines(
            "Phases of the median rank",
            "Stacked, of a step: the median of each phase over the selected ranks.",
            "s",
            (f"quantile by (phase) (0.5, {exclusive})", "{{phase}}"),
            stacked=True,
            width=8,
        ),
        lines(
            "Phase spread over ranks",
            "For each phase, how much longer the slowest rank takes than the median rank. The phase that stands out "
            "is the cause: input is data loading, forward and backward are compute, sync is waiting.",
            "s",
            (f"max by (phase) ({each}) - quantile by (phase) (0.5, {each})", "{{phase}}"),
            width=8,
        ),
    ]


def ranks() -> Panels:
    """The ranks that matter most, a row each."""
    chosen = f"topk({promql.ROWS}, avg_over_time({of_ranks(promql.CAUSED)}[$__range]))"

    def of_chosen(expression: str) -> str:
        return f"sum by (rank, node) ({expression}) and on (rank) {chosen}"

    return [
        rows(
            f"The {promql.ROWS} ranks that cause most wait",
            "Compare the first row with the others: more CPU or a longer step of its own points at the process, the "
            "same rank order on one node points at the node. CPU and memory are those of the process and its workers.",
            {"rank": "rank", "node": "node"},
            [
                Column("caused wait", f"sum by (rank, node) ({chosen})", "none"),
                Column("own wait", of_chosen(of_ranks(promql.WAIT)), "percentunit"),
                Column("last in", of_chosen(of_ranks(promql.LAST)), "percentunit"),
                Column("step", of_chosen(of_ranks(promql.STEP_SECONDS)), "s"),
                Column("CPU cores", of_chosen(of_ranks(promql.PROCESS_CPU)), "none"),
                Column("resident memory", of_chosen(of_ranks(promql.PROCESS_MEMORY)), "bytes"),
                Column(
                    "lost events", f"sum by (rank) ({over_range(of_job('hindmost_rank_events_lost_total'))})", "none"
                ),
            ],
            height=12,
            links={"rank": [TO_RANK, TO_PAGE_OF_RANK], "node": [TO_NODE]},
        )
    ]


def processes() -> Panels:
    """CPU, run queue, memory and file bytes of the ranks' processes with their workers."""
    return [
        _process(
            "CPU",
            "Cores that a rank's process and its workers use. The culprit high and the others low: it computes while "
            "they sleep in the collective. All at the number of their threads: they spin while they wait.",
            "none",
            promql.PROCESS_CPU,
        ),
        _process(
            "Waiting for a CPU",
            "Threads of a rank and its workers that were ready to run and had no CPU: other processes, too many "
            "threads, or a cgroup's limit.",
            "none",
            promql.PROCESS_RUNQUEUE,
        ),
        _process(
            "Resident memory",
            "One rank that grows alone leaks; a node whose ranks together near its memory will swap or kill. Pages "
            "that workers share count in each.",
            "bytes",
            promql.PROCESS_MEMORY,
        ),
        _process(
            "Read from files",
            "Bytes that a rank and its workers fetched from storage. Zero with a slow input phase: the data comes from "
            "the page cache or is generated; low with a slow input phase: the storage is slow.",
            "Bps",
            promql.PROCESS_READ,
        ),
    ]


def hosts() -> Panels:
    """CPU, memory, disk, network and pressure of the nodes that hold the selected ranks."""
    available = "hindmost_node_memory_available_bytes / hindmost_node_memory_total_bytes"
    stalled = "hindmost_node_pressure_waiting_seconds_total"
    return [
        _node(
            "CPU in use",
            "Share of the node's CPU time. A node far above the others runs other work too.",
            "percentunit",
            (busiest(promql.NODE_BUSY), "{{node}}"),
        ),
        _node(
            "Memory in use",
            "Share of the node's memory that is not available. Above 95 % pages are reclaimed under the job.",
            "percentunit",
            (busiest(f"max by (node) (1 - {available})"), "{{node}}"),
        ),
        _node(
            "Pressure",
            "Share of time in which at least one task on the node waited for the resource (Linux PSI).",
            "percentunit",
            (busiest(f"max by (node, resource) ({per_second(stalled)})"), "{{node}} {{resource}}"),
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
    silent = f"hindmost_collector_agent_silence_seconds and on (node, instance) {of_ranks('hindmost_rank_info')}"
    return [
        lines(
            f"Events lost a second, the {promql.LINES} highest nodes",
            "Events that probes wrote and no agent read in time. What is lost is missing from waits and phases; raise "
            "HINDMOST_RING_CAPACITY or give the agent CPU.",
            "none",
            (f"topk({promql.LINES}, sum by (node) ({of_ranks(promql.LOST_EVENTS)}))", "{{node}}"),
            links=OF_NODE,
        ),
        lines(
            f"Since the agent's last message, the {promql.LINES} highest nodes",
            "Time since the last message of a node's agent. Above a few seconds the node, its network or its agent is "
            "down.",
            "s",
            (highest(f"max by (node) ({silent})"), "{{node}}"),
            links=OF_NODE,
        ),
    ]


def _process(title: str, description: str, unit: str, record: str) -> timeseries.Panel:
    query = highest(of_ranks(record))
    return lines(f"{title}, the {promql.LINES} highest ranks", description, unit, (query, PER_RANK), links=OF_RANK)


def _node(title: str, description: str, unit: str, *queries: Query) -> timeseries.Panel:
    return lines(f"{title}, the {promql.LINES} highest nodes", description, unit, *queries, width=8, links=OF_NODE)


def _of_devices(metric: str, matchers: str = "") -> str:
    per_device = per_second(f"{metric}{{{matchers}}}" if matchers else metric)
    return f"max by (node) (sum by (node, instance) ({per_device}))"  # more than one collector may see a node
