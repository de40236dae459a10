"""What a report says of the job as a whole, for every format: the title line, what limits it, where time is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hindmost_judge.command_line import script, split
from hindmost_judge.verdict.wording import duration

from hindmost_collector.report.columns import part_of, ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_CAUSES = {
    "gpu_contention": "GPU contention",
    "gpu_throttle": "GPU throttling",
    "cpu_contention": "CPU contention",
    "h2d": "copies to the GPU",
    "gc": "garbage collection",
    "io": "I/O",
    "stopped": "stopped processes",
}


def title(report: Mapping[str, Any]) -> str:
    """``hindmost · train.py · 4 ranks on 1 node · 150 steps, mean 21.4 ms · ran 5.2 s``, as far as known."""
    job = report["job"]
    name = _called(job.get("command"))
    found = ["hindmost", name if name and name != "hindmost" else job["id"]]  # a simulation's command is our own
    if job.get("world_size"):
        found.append(_ranks(report) + (f" on {count(job['nodes'], 'node')}" if job.get("nodes") else ""))
    if job.get("steps"):
        found.append(count(job["steps"], "step") + _of_length(job.get("step_ms") or {}))
    if job.get("duration_s"):
        found.append(f"ran {job['duration_s']:.1f} s")
    return " · ".join(found)


_BOUNDS = {
    "input": "input",
    "host": "CPUs, which launch too slowly",
    "cpu": "too few free CPUs",
    "gpu_compute": "GPU computing",
    "gpu_memory": "GPU memory bandwidth",
    "unknown": "not known",
}


def bound(report: Mapping[str, Any]) -> str:
    """``GPU computing, no fault: SMs active 92 % of the time, …``;
    empty where a verdict says it, or nothing was measured."""
    found = report["job"].get("bound")  # reports of earlier versions have none
    if not found or {"input_bound", "host_bound", "oversubscribed"} & {one["kind"] for one in report["verdicts"]}:
        return ""
    fault = "" if found["by"] in ("unknown", "cpu") else ", no fault"
    return f"{_BOUNDS.get(found['by'], found['by'])}{fault}: {found['evidence']}"


def on_bound(report: Mapping[str, Any]) -> str:
    """What to do about the line on what limits the job; empty where nothing is, or a verdict says it."""
    by = report["job"]["bound"]["by"] if bound(report) else ""
    said = by == "cpu" and any(one.get("cause") == "cpu_contention" for one in report["verdicts"])
    return "" if said else _DO_ON.get(by, "")


_DO_ON = {
    "cpu": "run fewer ranks per node, each on its own CPU; look for other processes there (`top`)",
    "communication": "overlap transfers with computing, or send less data",
}


def bound_by(report: Mapping[str, Any]) -> bool:
    """Whether what was measured shows what limits the job."""
    return bool((report["job"].get("bound") or {}).get("by", "unknown") != "unknown")


#: Rows of each table of waste that are shown, and from which share of the step on.
_ROWS, _WORTH = 3, 0.01


def waste(report: Mapping[str, Any]) -> list[str]:
    """Where the time goes that ranks lose by being unequal, a line a table; none where the verdicts say it all."""
    found = report["what_if"].get("waste")  # reports of earlier versions have none
    if not found:
        return []
    rows = {name: [row for row in found[name] if row["ratio"] >= _WORTH][:_ROWS] for name in _TABLES}
    if not rows["by_cause"] or max(len(rows["by_cause"]), len(rows["by_phase"])) < 2:  # one verdict says its cost
        return []
    step = report["what_if"]["step_ms"]
    if (report["job"].get("nodes") or 1) < 2:
        rows["by_node"] = []
    lost = f"{part_of(found['lost_ms'], step)} per step ({ratio(found['lost_ms'] / step)}): ranks are unequal"
    rest = [f"not attributed: {duration(found['rest_ms'])}"] if found["rest_ms"] >= _WORTH * step else []
    return [lost, *(f"{_TABLES[name]} {_each(some, name)}" for name, some in rows.items() if some), *rest]


def _each(rows: Iterable[Mapping[str, Any]], table: str) -> str:
    return ", ".join(f"{_name(row['name'], table)} {duration(row['ms_per_step'])}" for row in rows)


def _name(row: str, table: str) -> str:
    if table == "by_cause":
        return _CAUSES.get(row, row)
    return row.replace("gpu_", "GPU ") if table == "by_phase" else row


_TABLES = {"by_cause": "by cause:", "by_phase": "by phase:", "by_rank": "by rank:", "by_node": "by node:"}


#: Mean and median are both given where they differ by more than this.
_ALIKE = 0.01


def _of_length(step_ms: Mapping[str, float | None]) -> str:
    """``, mean 8.2 ms``: the mean, which costs are shares of, with the median where that is another length."""
    typical = step_ms.get("p50")
    mean = step_ms.get("mean") or typical  # reports of earlier versions have no mean
    if not mean or not typical:
        return ""
    if abs(mean - typical) <= _ALIKE * mean or duration(mean) == duration(typical):
        return f", mean {duration(mean)}"
    return f", mean {duration(mean)}, median {duration(typical)}"


def _ranks(report: Mapping[str, Any]) -> str:
    """``4 ranks``; ``1 of 4 ranks`` where files of the others are not there."""
    all_ranks, seen = report["job"]["world_size"], len(report.get("ranks") or ())
    return f"{seen:,} of {count(all_ranks, 'rank')}" if 0 < seen < all_ranks else count(all_ranks, "rank")


def _called(command: str | None) -> str | None:
    """The training script's name in a command line; where there is none, the program's."""
    found = script(split(command or ""))
    return found.rpartition("/")[2] if found else None


def count(number: int, what: str) -> str:
    """``1 step``, ``3 steps``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
