"""Nodes whose ranks outnumber their CPUs: there the scheduler decides who arrives last, and not who is slow.

Whoever computes longer keeps the others of its CPU from computing, so that its victims arrive late as well, now one
and now another. What stays true is how much CPU time each rank asks for between two collectives, and how long it
reads and writes files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.causes import FILES
from hindmost_collector.robust import peers_median
from hindmost_collector.telemetry import Metrics, typical

if TYPE_CHECKING:
    from hindmost_collector.align import Floats
    from hindmost_collector.blocks import Blocks
    from hindmost_collector.model import Run

#: Evidence of blocks whose excess is time needed rather than lateness.
NEEDS = "needs"
#: Share of steps in which every rank's CPU time must have been measured, for it to speak of the job.
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
    """The most crowded node of a run; ``None`` where no node has more ranks than CPUs, or nobody counted them."""
    nodes, counts = np.unique(run.ranks["node"], return_counts=True)
    ranks = dict(zip(nodes.tolist(), counts.tolist(), strict=True))
    crowded = [
        Sharing(series.node, ranks[series.node], int(typical([series])))
        for series in Metrics(run).series("hindmost_node_cpus")
        if series.node in ranks and 0 < typical([series]) < ranks[series.node]
    ]
    return max(crowded, key=lambda one: one.ranks / one.cpus, default=None)


def on_needs(blocks: Blocks) -> Blocks | None:
    """The same steps judged by what each rank needs between collectives: CPU time, and time in files where measured.

    ``None`` where too little of it was measured. Other time off the CPU is left out: where threads compute beside the
    one that is measured, this one is blocked for as long as they queue.
    """
    cpu = blocks.parts.get("self_cpu")
    if cpu is None:
        return None
    files = [np.nan_to_num(blocks.parts[name]) for name in FILES if name in blocks.parts]
    return _judged_by(cpu + sum(files), blocks)


def _judged_by(needed: Floats, blocks: Blocks) -> Blocks | None:
    """Only for jobs in which all ranks meet in the same collectives: elsewhere roles need different things."""
    if blocks.overlapped or blocks.group.shape[1] > 1:
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
        klass=np.zeros(len(blocks.steps), np.int64),
        beside=np.zeros(len(blocks.steps), bool),
        parts={name: block for name, block in blocks.parts.items() if name not in ("self_runqueue", "self_blocked")},
        evidence=NEEDS,
        pipeline=None,
    )
