"""The recording rules: what boards would join and add up again and again.

Identity is on ``hindmost_rank_info`` only, so a series of a rank learns its node by a join. One identity a rank is
taken, even while an old and a new process of it are both visible.
"""

from __future__ import annotations

from typing import Any

from dashboards import promql

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
        promql.CAUSED: _placed(_of_rank("caused_wait_seconds")),
        promql.WAIT: _placed(_of_rank("wait_seconds")),
        promql.STEPS: _placed(_of_rank("steps")),
        promql.WORK: _placed(_of_rank("work")),
        promql.STEP_SECONDS: _placed(f"{_of_rank('step_seconds')} / on (job_id, rank) {steps}"),
        promql.LAST: _placed(f"{_of_rank('last_arrivals')} / on (job_id, rank) {calls}"),
        promql.PHASES: _placed(phases, ", phase"),
        promql.LOST_EVENTS: _placed(_of_rank("events_lost")),
    }


def _processes() -> dict[str, str]:
    return {
        promql.PROCESS_CPU: _with_workers("cpu_seconds_total", "rate({}[1m])"),
        promql.PROCESS_RUNQUEUE: _with_workers("runqueue_seconds_total", "rate({}[1m])"),
        promql.PROCESS_READ: _with_workers("read_bytes_total", "rate({}[1m])"),
        promql.PROCESS_MEMORY: _with_workers("resident_memory_bytes", "{}"),
    }


def _with_workers(what: str, of: str) -> str:
    """What a rank's process and the workers below it use; a rank without workers counts alone."""
    parts = (
        ("rank", of.format(f"hindmost_process_{what}")),
        ("workers", of.format(f"hindmost_process_children_{what}")),
    )
    told = " or ".join(f'label_replace({expression}, "part", "{part}", "", "")' for part, expression in parts)
    return f"sum by ({_PROCESS}) ({told})"


def _jobs() -> dict[str, str]:
    def words(state: str, urgency: int, said: str) -> str:
        found = f'max by (job_id) (hindmost_job_state{{state="{state}"}} == 1)'
        return f'label_replace({urgency} * {found}, "verdict", "{said}", "", "")'

    return {
        # A job that is lost has no verdict, nor has one that was not judged yet.
        promql.VERDICT: " or ".join(
            (
                "max by (job_id, verdict) (hindmost_verdict_urgency)",
                words("lost", 3, "contact lost"),
                words("ended", -2, "ended"),
                f"({words('running', -2, 'not judged yet')} unless on (job_id) hindmost_verdict_urgency)",
            )
        ),
        promql.URGENCY: f"max by (job_id) ({promql.VERDICT})",
        promql.LOST_DEVICES: "max by (job_id) (hindmost_job_devices) * on (job_id) "
        "clamp(max by (job_id) (hindmost_verdict_urgency), 0, 1)",
    }


def _nodes() -> dict[str, str]:
    owner = "topk by (node, gpu_uuid) (1, max by (node, gpu_uuid, job_id, rank) (hindmost_gpu_rank_info))"
    idle = "group by (node, gpu_uuid) (hindmost_gpu_up)"
    which = "group by (node, gpu_uuid, gpu) (hindmost_gpu_info)"
    times = "sum by (node) (rate(hindmost_node_cpu_seconds_total{}[1m]))"
    unused = times.format('{mode=~"idle|iowait"}')
    return {
        promql.OWNER: f"({owner} or on (node, gpu_uuid) {idle}) * on (node, gpu_uuid) group_left (gpu) {which}",
        promql.NODE_BUSY: f"1 - {unused} / {times.format('')}",
    }
