"""CPU oversubscription: on nodes whose ranks outnumber their CPUs, the scheduler decides who arrives last, not
slowness.

A rank that computes longer keeps the others of its CPU from computing: its victims arrive late as well, now one and now
another. Two measurements stay valid: each rank's CPU time between two collectives, and its time in reading and writing
files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.coded import codes
from hindmost_collector.explain import off_cpu
from hindmost_collector.explain.causes import FILES
from hindmost_collector.explain.telemetry import Metrics, typical
from hindmost_collector.robust import peers_median

if TYPE_CHECKING:
    from hindmost_collector.align import Floats
    from hindmost_collector.model import Run
    from hindmost_collector.timeline.blocks import Blocks

#: Evidence of blocks that hold needed time instead of a delay.
NEEDS = "needs"
#: Evidence of blocks that hold off-CPU time instead of a delay.
OFF = "off the CPU"
#: Parts of a step that are the scheduler's doing where CPUs are shared.
_WAITING = ("self_runqueue", "self_blocked", "runqueue")
#: Share of the steps with CPU times of every rank, needed to speak for the job.
_MEASURED = 0.5


@dataclass(frozen=True)
class Sharing:
    """The node whose ranks share its CPUs most: how many ranks, how many CPUs."""

    node: str
    ranks: int
    cpus: int

    def __str__(self) -> str:
        return f"{self.ranks} ranks share the {self.cpus} CPU{'s' if self.cpus > 1 else ''} of {self.node}"


def find(run: Run) -> Sharing | None:
    """The most oversubscribed node of a run; ``None`` where no node has more ranks than CPUs, or the counts are
    unknown."""
    code, nodes = codes(run.ranks["node"])
    ranks = dict(zip(nodes, np.bincount(code).tolist(), strict=True))
    crowded = [
        Sharing(series.node, ranks[series.node], int(typical([series])))
        for series in Metrics.of(run).series("hindmost_node_cpus")
        if series.node in ranks and 0 < typical([series]) < ranks[series.node]
    ]
    return max(crowded, key=lambda one: one.ranks / one.cpus, default=None)


def on_needs(blocks: Blocks, whole_steps: bool = False) -> Blocks | None:
    """The same steps judged by each rank's needs between collectives: CPU time, and file time where measured.

    ``None`` where too little of it was measured. Other off-CPU time is left out: where other threads compute, the
    measured thread is blocked for as long as they queue. Without times between collectives, ``whole_steps`` take the
    CPU time of the step; part of it may be spent on waiting, so that it speaks for late ranks only.
    """
    cpu = cpu_time(blocks)
    if cpu is None or not (whole_steps or between_collectives(blocks)):
        return None
    files = [np.nan_to_num(blocks.parts[name]) for name in FILES if name in blocks.parts]
    found = _judged_by(cpu + sum(files), blocks)
    if found is None or between_collectives(blocks):
        return found
    return replace(found, parts=found.parts | {"self_cpu": cpu}, collectives=0)  # nothing here is between two of them


def off_the_cpu(blocks: Blocks) -> Blocks | None:
    """The same steps judged by how long each main thread was off the CPU by its own doing, which no scheduler makes.

    ``None`` where too little of it was measured.
    """
    if off_cpu.between_collectives(blocks):
        found = _judged_by(blocks.parts["self_blocked"], blocks)
    else:
        found = _judged_by(np.maximum(off_cpu.of_whole_steps(blocks), 0.0), blocks)
    return replace(found, parts=blocks.parts, evidence=OFF) if found is not None else None


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
    excess = needed - peers_median(needed)
    return replace(
        blocks,
        own=needed,
        excess=excess,
        segments=np.nan_to_num(excess),
        segment_step=np.arange(len(blocks.steps)),
        group=np.zeros((len(blocks.ranks), 1), np.int64),
        klass=np.zeros(len(blocks.steps), np.int64),
        beside=np.zeros(len(blocks.steps), bool),
        parts={name: block for name, block in blocks.parts.items() if name not in _WAITING},
        evidence=NEEDS,
        pipeline=None,
        computing=None,
    )
