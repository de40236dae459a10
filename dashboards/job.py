"""The job dashboard: read from the top, it goes from the verdict to what explains it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards import board, hosts
from dashboards.panels import PER_RANK, Column, bars, lines, name, number, rows
from dashboards.promql import (
    LINES,
    ROWS,
    highest,
    of_job,
    of_ranks,
    over_range,
    per_second,
    per_step,
    top,
    with_node,
)

if TYPE_CHECKING:
    from grafana_foundation_sdk.models import dashboard as model

    from dashboards.board import Panels

STEPS = of_ranks("hindmost_rank_steps_total")
STEP_SECONDS = of_ranks("hindmost_rank_step_seconds_total")
PHASES = of_ranks("hindmost_rank_phase_seconds_total")
#: These add up to a step; CPU, run queue and the GPU's own phases overlap them.
EXCLUSIVE_PHASES = of_ranks("hindmost_rank_phase_seconds_total", 'phase!~"cpu|runqueue|negotiation|gpu_.*"')
WAIT = of_ranks("hindmost_rank_wait_seconds_total")
CAUSED = of_ranks("hindmost_rank_caused_wait_seconds_total")
LAST = of_ranks("hindmost_rank_last_arrivals_total")
COLLECTIVES = of_ranks("hindmost_rank_collectives_total")

#: Share of the job's time: from the first on a verdict deserves attention, from the second on action.
COST_WARN, COST_BAD = 0.02, 0.10


def dashboard() -> model.Dashboard:
    """The whole dashboard, with the variables ``job``, ``node`` and ``rank``."""
    variables = [
        board.one("job", "job", "label_values(hindmost_job_info, job)"),
        board.several("node", "node", 'label_values(hindmost_rank_info{job="$job"}, node)'),
        board.several("rank", "rank", 'label_values(hindmost_rank_info{job="$job",node=~"$node"}, rank)'),
    ]
    sections = {
        "Verdict": verdict(),
        "Steps": steps(),
        "Waiting": waiting(),
        "Phases": phases(),
        "Ranks": ranks(),
        "Processes of the ranks": hosts.processes(),
        "Nodes of the ranks": hosts.nodes(),
        "hindmost itself": hosts.hindmost(),
    }
    about = "Which rank everyone else is waiting for, why, since when, and what it costs."
    return board.assemble("hindmost-job", "hindmost / job", about, variables, sections)


def verdict() -> Panels:
    """What holds the job back, and whether all of the job is seen."""
    by = "kind, cause, ranks"
    cost = of_job("hindmost_verdict_cost_ratio")
    opened = of_job("hindmost_verdict_info")
    return [
        name(
            "Verdict",
            "The most costly verdict now; balanced: no cause costs time. The table below has "
            "all, the panels further down what explains them.",
            (f"topk(1, {cost} or on (job, {by}) 0 * {opened})", "{{kind}}, rank {{ranks}}, {{cause}}"),
            width=9,
        ),
        number(
            "Cost of the worst verdict",
            "Share of the job's time that the most costly verdict takes.",
            "percentunit",
            (f"max({cost})", "cost"),
            warn=COST_WARN,
            bad=COST_BAD,
        ).no_value("none"),
        number(
            "Ranks that report",
            "Fewer than the world size: a node has no agent, or ranks have not started. Run hindmost doctor there.",
            "none",
            (f"count(group by (rank) ({of_job('hindmost_rank_info')}))", "ranks"),
            warn=1,
            bad=0,
        ),
        name(
            "Job",
            "Command and world size.",
            (of_job("hindmost_job_info"), "{{command}}, {{world_size}} ranks"),
            width=7,
        ),
        rows(
            "All verdicts",
            "What holds the job back now, the most costly first. Cost is the share of the job's time that "
            "repairing "
            "this one thing would save. For evidence and advice: hindmost report RUN.",
            {"kind": "kind", "cause": "cause", "ranks": "ranks", "since_step": "since step"},
            [
                Column("cost", f"max by ({by}) ({cost})", "percentunit", COST_WARN, COST_BAD),
                Column("cost a step", f"max by ({by}) ({of_job('hindmost_verdict_cost_seconds_per_step')})", "s"),
                Column("confidence", f"max by ({by}) ({of_job('hindmost_verdict_confidence_ratio')})", "percentunit"),
                Column("open", f"max by ({by}, since_step) ({opened})", "bool_yes_no"),
            ],
            height=7,
        ),
    ]


def steps() -> Panels:
    """How long steps take, and how far each rank has come."""
    seconds = f"{per_second(STEP_SECONDS)} / on (job, rank) {per_second(STEPS)}"
    reached = of_ranks("hindmost_rank_last_step")
    return [
        lines(
            "Step time of the job",
            "Median and 99th percentile of the job's recent steps. A p99 far above p50 is an intermittent "
            "slowdown; if both rise, it is a persistent one.",
            "s",
            (f"max by (quantile) ({of_job('hindmost_job_step_seconds')})", "p{{quantile}}"),
            width=8,
        ),
        lines(
            f"Step time, the {LINES} ranks that cause most wait",
            "In a synchronous job all ranks have nearly the same step time, the culprit too: look at waiting and "
            "phases for the difference. Lines apart mean that ranks are not synchronised each step.",
            "s",
            (top(seconds, CAUSED), PER_RANK),
            width=8,
        ),
        lines(
            "Step reached",
            "The furthest and the hindmost rank. Two flat lines: the job hangs, evaluates or has ended. A gap that "
            "grows: ranks run apart.",
            "none",
            (f"max({reached})", "furthest"),
            (f"min({reached})", "hindmost"),
            width=8,
        ),
    ]


def waiting() -> Panels:
    """Who waits, and who is waited for."""
    share = f"{over_range(LAST)} / on (job, rank) ({over_range(COLLECTIVES)} > 0)"
    waits = with_node(per_second(WAIT))
    return [
        bars(
            f"Wait caused to others, the {LINES} worst ranks",
            "Over the time range: for how long all other ranks together waited for this one. One bar that stands "
            "out "
            "is the straggler; bars of similar length mean load imbalance or no problem.",
            "s",
            (f"sort_desc({highest(over_range(CAUSED))})", PER_RANK),
        ),
        bars(
            f"Last into a collective, the {LINES} worst ranks",
            "Share of its collectives into which this rank came last. With N ranks and no straggler each has about "
            "1/N.",
            "percentunit",
            (f"sort_desc({highest(share)})", PER_RANK),
        ),
        lines(
            f"Wait caused to others, the {LINES} worst ranks",
            "Seconds that other ranks wait, per second. The cause began when this began.",
            "none",
            (top(per_second(CAUSED), CAUSED), PER_RANK),
        ),
        lines(
            "Own wait across ranks",
            "Share of time that ranks wait in collectives. The rank that waits least is the one that the others "
            "wait "
            "for: the minimum far below the median is a straggler, all high is the network.",
            "percentunit",
            (f"max({waits})", "maximum"),
            (f"quantile(0.5, {waits})", "median"),
            (f"min({waits})", "minimum"),
        ),
    ]


def phases() -> Panels:
    """Where the time of a step goes."""
    each = with_node(per_step(PHASES))
    exclusive = with_node(per_step(EXCLUSIVE_PHASES))
    return [
        lines(
            "Phases of a step",
            "Mean over the selected ranks, stacked. Select the culprit alone, then another rank, to see what differs.",
            "s",
            (f"avg by (phase) ({exclusive})", "{{phase}}"),
            stacked=True,
        ),
        lines(
            "Phase spread over ranks",
            "For each phase, how much longer the slowest rank takes than the median rank. The phase that stands "
            "out "
            "is the cause: input is data loading, forward and backward are compute, sync is waiting.",
            "s",
            (f"max by (phase) ({each}) - quantile by (phase) (0.5, {each})", "{{phase}}"),
        ),
    ]


def ranks() -> Panels:
    """The ranks that matter most, a row each."""
    chosen = f"topk({ROWS}, sum by (rank, node) ({with_node(over_range(CAUSED))}))"

    def of_chosen(expression: str) -> str:
        return f"sum by (rank, node) ({with_node(expression)}) and on (rank) {chosen}"

    cores = f"sum by (job, rank) ({per_second(of_ranks('hindmost_process_cpu_seconds_total'))})"
    resident = f"sum by (job, rank) ({of_ranks('hindmost_process_resident_memory_bytes')})"
    return [
        rows(
            f"The {ROWS} ranks that cause most wait",
            "Over the time range. Compare the first row with the others: more CPU or a longer step of its own "
            "points "
            "at the process, the same rank order on one node points at the node.",
            {"rank": "rank", "node": "node"},
            [
                Column("caused wait", chosen, "s"),
                Column("own wait", of_chosen(over_range(WAIT)), "s"),
                Column("last in", of_chosen(over_range(LAST)), "none"),
                Column("collectives", of_chosen(over_range(COLLECTIVES)), "none"),
                Column("step reached", of_chosen(of_ranks("hindmost_rank_last_step")), "none"),
                Column("CPU cores", of_chosen(cores), "none"),
                Column("resident memory", of_chosen(resident), "bytes"),
            ],
            height=12,
        ),
    ]
