"""The board of all jobs: which need a person, and what is lost to slow ranks."""

from grafana_foundation_sdk.models import dashboard as model

from dashboards.board import Panels, Section, assemble
from dashboards.panels import TO_JOB, Column, lines, number, rows, timeline
from dashboards.promql import LOST_DEVICES, ROWS, URGENCY, VERDICT, highest
from dashboards.thresholds import Limits, limits

SHOWN = 20


def dashboard() -> model.Dashboard:
    """The whole board; it needs no choice."""
    sections = [Section("Now", now()), Section("Jobs", every()), Section("Lost over time", lost())]
    about = "Every job that is known: which hang, which lose most to slow ranks, and how much."
    return assemble("hindmost-jobs", about, [], sections)


def now() -> Panels:
    """How many jobs are in which state, and what is lost."""
    return [
        _count("Jobs that run", "Jobs whose ranks make steps.", "running", Limits(1e9, 1e9)),
        _count("Jobs that hang", "Jobs whose ranks wait for one that does not come.", "hung", Limits(1, 1)),
        _count("Contact lost", "Jobs of which no agent is heard.", "lost", Limits(1, 1)),
        number(
            "Lost now",
            "GPUs' worth of time that slow ranks and hangs take at this moment; of jobs without GPUs, ranks' worth.",
            "none",
            (f"sum({LOST_DEVICES})", "lost"),
            Limits(1, 8),
        ),
        number(
            "GPU-hours lost",
            "The same, added up over the time range.",
            "none",
            (f"sum(sum_over_time({LOST_DEVICES}[$__range:1m])) / 60", "lost"),
            Limits(1, 100),
        ),
        number(
            "Worst cost",
            "Share of its time that the most costly verdict takes from a job that runs.",
            "percentunit",
            ("max(hindmost_verdict_cost_ratio)", "worst"),
            limits("cost"),
        ).no_value("none"),
    ]


def every() -> Panels:
    """A row a job, and the course of each."""
    first = f"topk({ROWS}, {URGENCY})"
    return [
        rows(
            "Jobs, the most urgent first",
            "Urgency is 3 where contact is lost, 2 for a hang, else the share of the job's time that its worst "
            "verdict costs; 0 is balanced, below 0 nothing is known. A click opens the job.",
            {"job_id": "job", "verdict": "verdict"},
            [
                Column(
                    "urgency",
                    f"topk by (job_id) (1, max by (job_id, verdict) ({VERDICT})) and on (job_id) {first}",
                    "none",
                    limits("cost"),
                ),
                Column("GPUs lost", f"max by (job_id) ({LOST_DEVICES}) and on (job_id) {first}", "none"),
                Column("GPU-hours lost", f"sum_over_time({LOST_DEVICES}[$__range:1m]) / 60", "none"),
                Column("GPUs", "max by (job_id) (hindmost_job_devices)", "none"),
                Column("steps a second", "sum by (job_id) (rate(hindmost_job_steps_total[$__rate_interval]))", "none"),
                Column(
                    "items a second",
                    "sum by (job_id) (rate(hindmost_job_work_total[$__rate_interval]))",
                    "none",
                ),
                Column("step", "max by (job_id) (hindmost_job_step_median_seconds)", "s"),
                Column("age", "time() - max by (job_id) (hindmost_job_start_time_seconds)", "s"),
            ],
            height=12,
            links={"job_id": [TO_JOB]},
        ),
        timeline(
            f"Verdicts, the {SHOWN} most urgent jobs",
            "Purple hangs or is lost, red and orange lose time, green is balanced, grey is not known.",
            (f"topk({SHOWN}, {URGENCY})", "{{job_id}}"),
            height=10,
            links=[TO_JOB],
        ),
    ]


def lost() -> Panels:
    """What jobs lose, and what they get done."""
    return [
        lines(
            "GPUs lost, by job",
            "GPUs' worth of time that slow ranks and hangs take.",
            "none",
            (highest(LOST_DEVICES), "{{job_id}}"),
            stacked=True,
            links=[TO_JOB],
        ),
        lines(
            "Steps a second",
            "A drop on one job alone is its own; a drop on all at once is a file system or a network.",
            "none",
            (highest("sum by (job_id) (rate(hindmost_job_steps_total[$__rate_interval]))"), "{{job_id}}"),
            links=[TO_JOB],
        ),
    ]


def _count(title: str, description: str, state: str, bounds: Limits) -> model.Panel:
    query = f'sum(hindmost_job_state{{state="{state}"}})'
    return number(title, description, "none", (query, state), bounds)
