"""CPU oversubscription: on nodes whose ranks outnumber their CPUs, the scheduler decides who arrives last, not
slowness.

A rank that computes longer keeps the others of its CPU from computing: its victims arrive late as well, now one and now
another. Two measurements stay valid: each rank's CPU time between two collectives, and its time in reading and writing
files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hindmost_judge.blocks import Blocks, CpuBinding, Sharing
from hindmost_judge.causes import cpu_wait
from hindmost_judge.causes.table import FILES, OFF
from hindmost_judge.causes.telemetry import Metrics, once_a_run
from hindmost_judge.encoding import codes
from hindmost_judge.model import Run
from hindmost_judge.stats.robust import median, or_zero, peers_median
from hindmost_judge.types import Floats

#: Evidence of blocks that hold needed time instead of a delay.
NEEDS = "needs"
#: Parts of a step that are the scheduler's doing where CPUs are shared.
_WAITING = ("self_runqueue", "self_blocked", "runqueue")
#: A quota matters that stops its group for this share of the time.
QUOTA = 0.05
#: Share of the steps with CPU times of every rank, needed to speak for the job.
_MEASURED = 0.5


def find(run: Run) -> Sharing | None:
    """The node or the binding that all ranks suffer from, of several the most oversubscribed one.

    ``None`` where ranks have a CPU each, or some have, or the counts are unknown.
    """
    crowded = [Sharing(node, ranks, cpus) for node, (ranks, cpus) in _nodes(run).items() if 0 < cpus < ranks]
    return max([*crowded, *(bound(run) if all_bound(run) else ())], key=lambda one: one.ranks / one.cpus, default=None)


def all_bound(run: Run, *, by_quota: bool = False) -> bool:
    """Whether every rank shares too few CPUs by a binding or a quota; ``by_quota``: by this alone.

    What a quota allows is taken by no process of another group. CPUs of a binding are open to all processes.
    """
    members = {rank for one in bound(run) if not (by_quota and one.listed) for rank in one.members}
    return members >= set(run.ranks["rank"].tolist())


@once_a_run
def bound(run: Run) -> list[CpuBinding]:
    """The sets of ranks that are bound to fewer CPUs than they are, or have a quota of fewer, on nodes that have more
    CPUs than that."""
    allowed: dict[str, dict[int, frozenset[int]]] = {}
    listed: dict[frozenset[int], str] = {}
    metrics = Metrics.of(run)
    for rank, (node, text) in last_stated(run, metrics, "hindmost_process_affinity_info", "cpus").items():
        cpus = cpu_wait.cpus(text)
        allowed.setdefault(node, {})[rank] = cpus
        listed[cpus] = text
    nodes, found = _nodes(run), list[CpuBinding]()
    for node, of_ranks in allowed.items():
        _, of = nodes.get(node, (0, 0))
        found += [
            CpuBinding(node, len(ranks), len(cpus), ranks, listed[cpus], of)
            for ranks, cpus in cpu_wait.oversubscribed(of_ranks)
            if len(cpus) < of
        ]
    by_cpus = {one.node for one in found}
    for one in _quotas(run):
        (_, of), count = nodes.get(one.node, (0, 0)), len(one.ranks)
        if one.node not in by_cpus and count > 1 and one.cpus < min(count, of):
            found.append(CpuBinding(one.node, count, max(int(one.cpus), 1), one.ranks, "", of, one.stopped))
    return found


def _nodes(run: Run) -> dict[str, tuple[int, int]]:
    """Each node's ranks and CPUs, where both are known."""
    code, nodes = codes(run.ranks["node"])
    ranks = dict(zip(nodes, np.bincount(code).tolist(), strict=True))
    counts = {series.node: float(median(series.values)) for series in Metrics.of(run).series("hindmost_node_cpus")}
    return {node: (ranks[node], int(count)) for node, count in counts.items() if node in ranks and count > 0}


@dataclass(frozen=True)
class QuotaGroup:
    """A control group with a quota: how many CPUs it may use, its ranks, and for how many s per s it was stopped.

    ``file`` sets the quota; empty where that is not known.
    """

    node: str
    name: str
    cpus: float
    ranks: tuple[int, ...]
    stopped: float
    file: str


#: The series that says which control group a rank is in, and by which file.
_GROUP_INFO = "hindmost_process_cpu_cgroup_info"


@once_a_run
def _quotas(run: Run) -> list[QuotaGroup]:
    """The control groups that have a quota."""
    metrics = Metrics.of(run)
    stopped = {}
    for series in metrics.series("hindmost_node_cgroup_cpu_throttled_seconds_total"):
        seconds = float(np.ptp(series.times)) / 1e9
        if seconds > 0:
            stopped[series.node, series.labels.get("cgroup", "")] = float(np.ptp(series.values)) / seconds
    files = last_stated(run, metrics, _GROUP_INFO, "file")
    on: dict[str, list[tuple[int, str]]] = {}
    for rank, (node, group) in sorted(last_stated(run, metrics, _GROUP_INFO, "cgroup").items()):
        on.setdefault(node, []).append((rank, f"{group}/"))
    groups = []
    for series in metrics.series("hindmost_node_cgroup_cpu_limit_cores"):
        node, name, cpus = series.node, series.labels.get("cgroup", ""), float(median(series.values))
        within = name.rstrip("/") + "/"
        if cpus > 0:
            ranks = tuple(rank for rank, group in on.get(node, ()) if group.startswith(within))
            file = min((files[rank][1] for rank in ranks), default="")
            groups.append(QuotaGroup(node, name, cpus, ranks, stopped.get((node, name), 0.0), file))
    return groups


def own_quota(run: Run, rank: int) -> QuotaGroup | None:
    """The control group that stops this rank and allows it fewer CPUs than any other rank has.

    ``None``: there is no such group, or the group of some rank is not known.
    """
    quotas = _quotas(run)
    own = min((one for one in quotas if rank in one.ranks), key=lambda one: one.cpus, default=None)
    if own is None or own.stopped < QUOTA:
        return None
    if len(last_stated(run, Metrics.of(run), _GROUP_INFO, "cgroup")) < len(run.ranks["rank"]):
        return None
    as_few = {other for one in quotas if one.cpus <= own.cpus for other in one.ranks}
    return own if as_few == {rank} else None


def last_stated(run: Run, metrics: Metrics, name: str, label: str) -> dict[int, tuple[str, str]]:
    """Each rank's node and what a label of its series says last: a rank may be bound, or moved, after its start."""
    ours, found = set(run.ranks["rank"].tolist()), dict[int, tuple[str, str]]()
    for series in sorted(metrics.series(name), key=lambda one: int(one.times[-1])):
        rank = series.labels.get("rank", "")
        if rank.isdigit() and int(rank) in ours:
            found[int(rank)] = (series.node, series.labels.get(label, ""))
    return found


def on_needs(blocks: Blocks, whole_steps: bool = False) -> Blocks | None:
    """The same steps judged by each rank's needs between collectives: CPU time, and file time where measured.

    ``None`` where too little of it was measured. Other off-CPU time is left out: where other threads compute, the
    measured thread is blocked for as long as they queue. Without times between collectives, ``whole_steps`` take the
    CPU time of the step; part of it may be spent on waiting, so that it speaks for late ranks only.
    """
    cpu = cpu_time(blocks)
    if cpu is None or not (whole_steps or between_collectives(blocks)):
        return None
    files = [or_zero(blocks.parts[name]) for name in FILES if name in blocks.parts]
    found = _judged_by(cpu + sum(files), blocks)
    if found is None or between_collectives(blocks):
        return found
    return replace(found, parts=found.parts | {"self_cpu": cpu}, collectives=0)  # nothing here is between two of them


def off_the_cpu(blocks: Blocks) -> Blocks | None:
    """The same steps judged by how long each main thread was off the CPU by its own doing, which no scheduler makes.

    ``None`` where too little of it was measured.
    """
    if cpu_wait.between_collectives(blocks):
        found = _judged_by(blocks.parts["self_blocked"], blocks)
    else:
        found = _judged_by(np.maximum(cpu_wait.off_cpu_in_whole_steps(blocks), 0.0), blocks)
    return replace(found, parts=blocks.parts, evidence=OFF) if found is not None else None


def cpu_pace(blocks: Blocks) -> float:
    """What a ms of CPU time takes the typical rank, ms, with its wait for a CPU; NaN where that is unknown."""
    parts = [blocks.parts.get(name) for name in ("self_cpu", "self_runqueue")]
    used, queued = (float("nan") if part is None else float(median(median(part, axis=1))) for part in parts)
    return (used + queued) / max(used, 1.0)


def between_collectives(blocks: Blocks) -> bool:
    """Whether CPU time was measured between collectives."""
    return "self_cpu" in blocks.parts


def cpu_time(blocks: Blocks) -> Floats | None:
    """[R, S] CPU time between collectives, else of the main thread in its step where no GPU computes."""
    if between_collectives(blocks) or "gpu_forward" in blocks.parts:
        return blocks.parts.get("self_cpu")
    return blocks.parts.get("cpu")


def _judged_by(needed: Floats, blocks: Blocks) -> Blocks | None:
    """Only for jobs in which all ranks meet in the same collectives: elsewhere cohorts have different needs."""
    if blocks.overlapped or (blocks.group != blocks.group[0]).any():
        return None
    if float(np.mean(~np.isnan(needed).any(axis=0))) < _MEASURED:
        return None
    delay = needed - peers_median(needed)
    return blocks.by_delay(
        delay,
        self_time=needed,
        group=np.zeros((len(blocks.ranks), 1), np.int64),
        overlapping=np.zeros(len(blocks.steps), bool),
        parts={name: block for name, block in blocks.parts.items() if name not in _WAITING},
        evidence=NEEDS,
        pipeline=None,
        computing=None,
    )
