"""Why a rank is late: each measurement's share of the excess. What explains little is no cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.robust import median

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Floats
    from hindmost_collector.blocks import Blocks
    from hindmost_collector.settings import Settings

#: Phase to the cause that its excess speaks for. Order matters: the first that explains enough is the cause.
PHASE_CAUSES = {
    "checkpoint": "checkpoint",
    "gc": "gc",
    "input": "input",
    "h2d": "h2d",
}
_COMPUTE = ("forward", "backward", "optimizer")
_GPU_COMPUTE = ("gpu_forward", "gpu_backward", "gpu_optimizer")

MEASURES = {
    "compute": "computing",
    "cpu_contention": "waiting for a CPU",
    "input": "input",
    "h2d": "copying to the GPU",
    "gc": "garbage collection",
    "checkpoint": "checkpoints",
    "blocked": "being off the CPU",
}


@dataclass(frozen=True)
class Cause:
    """``cause`` explains the fraction ``explained`` of the excess; with ``unknown``, ``partial`` explains most."""

    cause: str
    explained: float | None = None
    partial: str | None = None
    shares_ns: tuple[tuple[str, float], ...] = ()


def explain(blocks: Blocks, row: int, columns: Array, excess: float, settings: Settings) -> Cause:
    """The cause of one rank's excess (ns a step) over the steps ``columns`` (indices)."""
    shares = _shares(blocks, row, columns)
    if not shares or excess <= 0:
        return Cause("unknown")
    fractions = {name: float(np.clip(ns / excess, 0.0, 1.0)) for name, ns in shares.items()}
    listed = tuple(sorted(shares.items(), key=lambda item: -item[1]))
    for name, fraction in fractions.items():
        if fraction >= settings.min_explained and name != "blocked":
            return Cause(name, fraction, None, listed)
    best = max(fractions, key=lambda name: fractions[name])
    return Cause("unknown", fractions[best], best if fractions[best] > 0 else None, listed)


def _shares(blocks: Blocks, row: int, columns: Array) -> dict[str, float]:
    """Cause to ns a step of the excess that its measurement accounts for, more specific causes first."""
    parts = blocks.parts
    found: dict[str, float] = {}
    if "self_cpu" in parts:
        found |= _of_processor(blocks, row, columns, parts["self_cpu"], parts.get("self_runqueue"))
        if "self_blocked" in parts:
            found["blocked"] = _excess(parts["self_blocked"], row, columns)
    elif "runqueue" in parts and "cpu" in parts:
        contended = _of_processor(blocks, row, columns, parts["cpu"], parts["runqueue"])
        found["cpu_contention"] = contended["cpu_contention"]
    for phase, cause in PHASE_CAUSES.items():
        if phase in parts:
            found[cause] = _excess(parts[phase], row, columns)
    computing = [_excess(block, row, columns) for block in _computing(blocks)]
    if computing and "self_cpu" not in parts:
        # Phases that wait for others inside shrink where the rank is late: only what grew speaks of the rank itself.
        found["compute"] = sum(max(ns, 0.0) for ns in computing) - max(found.get("cpu_contention", 0.0), 0.0)
    return found


def _of_processor(blocks: Blocks, row: int, columns: Array, cpu: Floats, runqueue: Floats | None) -> dict[str, float]:
    """Excess as computing and as waiting for a CPU.

    On a shared machine whoever computes longer also queues longer. The queueing that peers suffer for the same CPU time
    belongs to the computing; only what goes beyond it is contention of this rank's own.
    """
    more = _excess(cpu, row, columns)
    if runqueue is None:
        return {"compute": more}
    queued = _excess(runqueue, row, columns)
    others = np.delete(np.arange(len(blocks.ranks)), row)
    busy = float(median(cpu[np.ix_(others, columns)]))
    usual = float(median(runqueue[np.ix_(others, columns)])) / busy if busy > 0 else 0.0
    proportional = float(np.clip(more * usual, 0.0, max(queued, 0.0))) if more > 0 else 0.0
    return {"cpu_contention": queued - proportional, "compute": more + proportional}


def _computing(blocks: Blocks) -> list[Floats]:
    """Phases of computing: the GPU's where measured, else the host's, less what was waited inside them."""
    parts = blocks.parts
    on_gpu = [parts[name] for name in ("gpu_forward", "gpu_optimizer") if name in parts]
    if on_gpu:
        return on_gpu
    found = [parts[name] for name in _COMPUTE if name in parts and name != "backward"]
    if "backward" in parts and not np.isnan(blocks.wait).all():
        found.append(parts["backward"] - (0.0 if "sync" in parts else blocks.wait))
    return found


def _excess(block: Floats, row: int, columns: Array) -> float:
    """Ns a step by which a rank's typical value exceeds its peers'; 0 where it was not measured."""
    chosen = block[:, columns]
    others = np.delete(chosen, row, axis=0)
    if len(others) == 0:
        return 0.0
    more = chosen[row] - median(others, axis=0)
    known = more[~np.isnan(more)]
    return float(np.median(known)) if len(known) else 0.0
