"""The PromQL that several panels share: who is selected, what stays readable at scale, and the recording rules.

Rules record what boards would join and add up again and again. Identity is on ``hindmost_rank_info`` only, so a series
of a rank learns its node by a join. One identity a rank is taken, even while an old and a new process of it are both
visible.

A job of thousands of ranks must not draw thousands of lines: panels show the ranks that matter most.
"""

from typing import Any

#: How many lines or bars a panel draws, how many ranks a heat map, and how many rows a table has.
LINES = 12
HEAT = 32
ROWS = 50

#: What ``hindmost-recording.yml`` records: each is declared below, in :func:`groups`.
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


def once(labels: str, expression: str) -> str:
    """What several collectors see of the same device or node, once each."""
    return f"max by ({labels}) ({expression})"


def highest(expression: str) -> str:
    """The highest series of ``expression``, at each moment."""
    return f"topk({LINES}, {expression})"


def busiest(expression: str) -> str:
    """The nodes with the highest ``expression`` at each moment, among those that hold a selected rank."""
    return highest(f"({expression}) and on (node) group by (node) ({of_ranks('hindmost_rank_info')})")


_INFO = "topk by (job_id, rank) (1, hindmost_rank_info)"
_PROCESS = "job_id, rank, node"


def groups() -> list[dict[str, Any]]:
    """The groups of ``recording.yml``."""
    return [
        _group("hindmost-ranks", {**_ranks(), **_processes()}),
        _group("hindmost-jobs", _jobs()),
        _group("hindmost-nodes", _nodes()),
    ]


def _group(name: str, rules: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "rules": [{"record": record, "expr": expression} for record, expression in rules.items()]}


def _rate(metric: str) -> str:
    return f"rate({metric}[1m])"


def _of_rank(name: str) -> str:
    return _rate(f"hindmost_rank_{name}_total")


def _placed(expression: str, by: str = "") -> str:
    """Series of ranks with their node."""
    return f"sum by (job_id, rank, node{by}) (({expression}) * on (job_id, rank) group_left (node) {_INFO})"


def _ranks() -> dict[str, str]:
    steps, calls = f"({_of_rank('steps')} > 0)", f"({_of_rank('collectives')} > 0)"
    phases = f"{_of_rank('phase_seconds')} / on (job_id, rank) group_left () {steps}"
    return {
        CAUSED: _placed(_of_rank("caused_wait_seconds")),
        WAIT: _placed(_of_rank("wait_seconds")),
        STEPS: _placed(_of_rank("steps")),
        WORK: _placed(_of_rank("work")),
        STEP_SECONDS: _placed(f"{_of_rank('step_seconds')} / on (job_id, rank) {steps}"),
        LAST: _placed(f"{_of_rank('last_arrivals')} / on (job_id, rank) {calls}"),
        PHASES: _placed(phases, ", phase"),
        LOST_EVENTS: _placed(_of_rank("events_lost")),
    }


def _processes() -> dict[str, str]:
    return {
        PROCESS_CPU: _with_workers("cpu_seconds_total", "rate({}[1m])"),
        PROCESS_RUNQUEUE: _with_workers("runqueue_seconds_total", "rate({}[1m])"),
        PROCESS_READ: _with_workers("read_bytes_total", "rate({}[1m])"),
        PROCESS_MEMORY: _with_workers("resident_memory_bytes", "{}"),
    }


def _with_workers(what: str, of: str) -> str:
    """What a rank's process and the workers below it use; a rank without workers counts alone."""
    parts = {"rank": f"hindmost_process_{what}", "workers": f"hindmost_process_children_{what}"}
    labelled = (f'label_replace({of.format(metric)}, "part", "{part}", "", "")' for part, metric in parts.items())
    return f"sum by ({_PROCESS}) ({' or '.join(labelled)})"


def _jobs() -> dict[str, str]:
    def words(state: str, urgency: int, said: str) -> str:
        found = f'max by (job_id) (hindmost_job_state{{state="{state}"}} == 1)'
        return f'label_replace({urgency} * {found}, "verdict", "{said}", "", "")'

    return {
        # A job that is lost has no verdict, nor has one that was not judged yet.
        VERDICT: " or ".join(
            (
                "max by (job_id, verdict) (hindmost_verdict_urgency)",
                words("lost", 3, "contact lost"),
                words("ended", -2, "ended"),
                f"({words('running', -2, 'not judged yet')} unless on (job_id) hindmost_verdict_urgency)",
            )
        ),
        URGENCY: f"max by (job_id) ({VERDICT})",
        LOST_DEVICES: "max by (job_id) (hindmost_job_devices) * on (job_id) "
        "clamp(max by (job_id) (hindmost_verdict_urgency), 0, 1)",
    }


def _nodes() -> dict[str, str]:
    owner = "topk by (node, gpu_uuid) (1, max by (node, gpu_uuid, job_id, rank) (hindmost_gpu_rank_info))"
    idle = "group by (node, gpu_uuid) (hindmost_gpu_up)"
    which = "group by (node, gpu_uuid, gpu) (hindmost_gpu_info)"
    times = "sum by (node) (rate(hindmost_node_cpu_seconds_total{}[1m]))"
    unused = times.format('{mode=~"idle|iowait"}')
    return {
        OWNER: f"({owner} or on (node, gpu_uuid) {idle}) * on (node, gpu_uuid) group_left (gpu) {which}",
        NODE_BUSY: f"1 - {unused} / {times.format('')}",
    }
