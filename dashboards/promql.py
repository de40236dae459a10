"""The PromQL that several panels share: who is selected, what is recorded by rules, and what stays readable at scale.

A job of thousands of ranks must not draw thousands of lines: panels show the ranks that matter most.
"""

from __future__ import annotations

#: How many lines or bars a panel draws, how many ranks a heat map, and how many rows a table has.
LINES = 12
HEAT = 32
ROWS = 50

#: What ``hindmost-recording.yml`` records: each is declared in :mod:`dashboards.recording`.
CAUSED = "job_rank:hindmost_caused_wait:rate1m"
WAIT = "job_rank:hindmost_wait:rate1m"
STEPS = "job_rank:hindmost_steps:rate1m"
WORK = "job_rank:hindmost_work:rate1m"
STEP_SECONDS = "job_rank:hindmost_step_seconds:mean1m"
LAST = "job_rank:hindmost_last_arrivals:ratio1m"
PHASES = "job_rank_phase:hindmost_phase_seconds:per_step1m"
LOST_EVENTS = "job_rank:hindmost_events_lost:rate1m"
PROCESS_CPU = "job_rank:hindmost_process_cpu:rate1m"
PROCESS_RUNQUEUE = "job_rank:hindmost_process_runqueue:rate1m"
PROCESS_READ = "job_rank:hindmost_process_read_bytes:rate1m"
PROCESS_MEMORY = "job_rank:hindmost_process_resident_memory_bytes:sum"
VERDICT = "job_verdict:hindmost_urgency:max"
URGENCY = "job:hindmost_urgency:max"
LOST_DEVICES = "job:hindmost_lost_devices:sum"
OWNER = "node_gpu:hindmost_gpu_owner:info"
NODE_BUSY = "node:hindmost_cpu_busy:ratio1m"

#: These add up to a step; CPU, run queue and the GPU's own phases overlap them.
EXCLUSIVE = 'phase!~"cpu|runqueue|negotiation|gpu_.*"'


def _selected(metric: str, *matchers: str) -> str:
    return f"{metric}{{{','.join(matchers)}}}"


def of_job(metric: str, *matchers: str) -> str:
    """The chosen job's series of ``metric``."""
    return _selected(metric, 'job_id="$job_id"', *matchers)


def of_ranks(metric: str, *matchers: str) -> str:
    """The chosen ranks' series of ``metric``."""
    return of_job(metric, 'node=~"$node"', 'rank=~"$rank"', *matchers)


def of_rank(metric: str, *matchers: str) -> str:
    """The one chosen rank's series of ``metric``."""
    return of_job(metric, 'rank="$rank"', *matchers)


def of_nodes(metric: str, *matchers: str) -> str:
    """The chosen nodes' series of ``metric``."""
    return _selected(metric, 'node=~"$node"', *matchers)


def per_second(selector: str) -> str:
    """Average rate over the interval that suits the panel's resolution."""
    return f"rate({selector}[$__rate_interval])"


def over_range(selector: str) -> str:
    """Increase over the dashboard's whole time range."""
    return f"increase({selector}[$__range])"


def worst(expression: str, lines: int = LINES) -> str:
    """The series of ``expression`` of the ranks that caused most wait over the time range: the same all along."""
    ranking = f"avg_over_time({of_ranks(CAUSED)}[$__range] @ end())"
    return f"{expression} and on (job_id, rank) topk({lines}, {ranking})"


def highest(expression: str) -> str:
    """The highest series of ``expression``, at each moment."""
    return f"topk({LINES}, {expression})"


def busiest(expression: str) -> str:
    """The nodes with the highest ``expression`` at each moment, among those that hold a selected rank."""
    return highest(f"({expression}) and on (node) group by (node) ({of_ranks('hindmost_rank_info')})")
