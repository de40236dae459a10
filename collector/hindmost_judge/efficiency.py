"""Parallel efficiencies as the POP centre of excellence defines them, and the step with one thing made free.

https://pop-coe.eu/node/69: parallel efficiency = load balance x communication efficiency; communication efficiency =
serialisation x transfer. "Orchestration" is the share of the time in which GPUs have work (DLB's TALP), as far
as their phases tell: a gap between two kernels of a phase counts as work.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from hindmost_judge import overview
from hindmost_judge.overview import Overview
from hindmost_judge.stats.robust import lower_median, mean, median, or_zero
from hindmost_judge.types import Floats

_GPU_PHASES = ("gpu_forward", "gpu_backward", "gpu_optimizer")


@dataclass(frozen=True)
class Efficiency:
    """Shares of the time of the judged steps, 0 to 1; ``None`` is unknown. ``lane`` is ``host`` or ``GPU``.

    ``parallel`` is useful work of the mean rank over time, ``load_balance`` that of the mean rank over the longest,
    ``communication`` the longest over time, ``serialisation`` the longest over time without transfers, ``transfer``
    time without transfers over time. ``orchestration``: a GPU's time with work over time.
    """

    lane: str
    parallel: float | None = None
    load_balance: float | None = None
    communication: float | None = None
    serialisation: float | None = None
    transfer: float | None = None
    orchestration: float | None = None


def of(seen: Overview, ideal: float | None = None) -> list[Efficiency]:
    """Of the hosts where these run the collectives, of the GPUs where these were timed.

    ``ideal`` is the mean step, ns, if all ranks were like the median one.
    """
    known, step = np.isfinite(seen.period), seen.step
    if not known.any():
        return []
    gpus = _of_gpus(seen, step, ideal)
    own = seen.planes["self"]
    if seen.on_gpu or gpus or np.isnan(own).all():  # of steps that GPUs were timed in it is what these do
        return gpus
    useful = np.nanmean(own[:, known], axis=1)
    return [_split("host", useful[~np.isnan(useful)], _transfer(seen), step), *gpus]


def _transfer(seen: Overview) -> float | None:
    """ns a mean step that the typical rank is in collectives with all ranks there; ``None`` where it is unknown."""
    block = seen.planes["transfer"]
    if np.isnan(block).all():
        return None
    return float(np.nanmean(median(block, axis=0)))


def _split(lane: str, useful: Floats, transfer: float | None, step: float, whole: float | None = None) -> Efficiency:
    """``useful`` [R] ns of a mean ``step``, of which GPUs have work for ``whole`` ns (hosts: all of it)."""
    longest, typical = float(useful.max()), float(useful.mean())
    busy = step if whole is None else whole
    free = busy - transfer if transfer is not None else None
    return Efficiency(
        lane,
        parallel=typical / step,
        load_balance=typical / longest if longest > 0 else None,
        communication=longest / busy,
        serialisation=longest / free if free else None,
        transfer=free / busy if free is not None else None,
        orchestration=None if whole is None else whole / step,
    )


def _of_gpus(seen: Overview, step: float, ideal: float | None) -> list[Efficiency]:
    """Where collectives overlap with computing, kernels alone would show what is useful: then what GPUs idle, and how
    late ranks come.
    """
    phases = [seen.planes[name] for name in _GPU_PHASES if name in seen.planes]
    if not phases:
        return []
    known = np.isfinite(seen.period)
    means = {name: mean(block[:, known]) for name, block in seen.planes.items() if not _empty(block)}
    lane = overview.lanes(means, np.full(len(seen.ranks), step), on_gpu=seen.on_gpu, gathers=seen.gathers).get("gpu")
    if lane is None:
        return []
    busy = step - lane.parts["idle"]
    if np.isnan(busy).all():
        return []
    whole = float(np.nanmax(busy))
    if seen.overlapped or not seen.on_gpu:
        return [Efficiency("GPU", load_balance=_by_delay(seen, whole, ideal), orchestration=whole / step)]
    useful = busy - lane.parts.get("wait", 0.0) - lane.parts.get("transfer", 0.0)
    return [_split("GPU", useful[~np.isnan(useful)], _transfer(seen), step, whole)]


def _by_delay(seen: Overview, busy: float, ideal: float | None) -> float | None:
    """Load balance of GPUs that overlap collectives, whose own kernels were not recorded.

    The latest rank works for ``busy`` ns, the others less by as much as they come earlier. In each step the latest one
    costs what the step is longer than the ``ideal`` one; by then delays have grown as much on all ranks. The latest
    rank's exposed transfer counts as work. ``None`` where ranks do different work.
    """
    delay = seen.planes["delay"][:, np.isfinite(seen.period)]
    if ideal is None or not seen.on_gpu or _empty(delay) or len(np.unique(seen.cohort)) > 1 or not busy > 0:
        return None
    latest = float(np.nanmean(np.nanmax(delay, axis=0)))
    late = np.nanmean(delay, axis=1) * (max(seen.step - ideal, 0.0) / latest if latest > 0 else 0.0)
    return max(1.0 - float(np.nanmax(late) - np.nanmean(late)) / busy, 0.0)


def least_communication(seen: Overview, orchestration: float) -> float | None:
    """What the communication efficiency of GPUs is at least: as if no computing hid any collective of the rank that
    spends least in these; ``None`` where they were not timed."""
    known, busy = np.isfinite(seen.period), orchestration * seen.step
    inside = (seen.planes["wait"] + seen.planes["transfer"])[:, known]
    if not seen.on_gpu or _empty(inside) or not busy > 0:
        return None
    return max(1.0 - float(np.nanmin(mean(inside))) / busy, 0.0)


def _empty(block: Floats) -> bool:
    return bool(np.isnan(block).all())


def free(seen: Overview) -> dict[str, float]:
    """What was made free, ``input``, ``copies``, ``saving`` or ``communication``, to the mean step's ms without it.

    A step ends when the last rank is done: it is shorter by as much as the latest rank then comes earlier. Where GPUs
    were timed, only that part of the input counts in which they had no work. Left out is what was not measured, and
    transfers that computing may hide.
    """
    costs = {"input": cost(seen, "input"), "copies": cost(seen, "h2d")}
    if seen.saves is not None and seen.saves.any() and np.isfinite(seen.period).any():
        saving = float(overview.lengthened(seen.saves, seen.period).mean())
        costs["saving"] = None if np.isnan(saving) else saving
    costs["communication"] = None if seen.overlapped or not np.isfinite(seen.period).any() else _transfer(seen)
    return {name: (seen.step - ns) / 1e6 for name, ns in costs.items() if ns is not None}


def cost(seen: Overview, phase: str, named: Collection[int] = ()) -> float | None:
    """ns that ``input`` or ``h2d`` takes of the mean step, or would take if the ranks ``named`` for it had no more
    than their peers; ``None`` where that was not measured. No loader shortens what input waits for a CPU.
    """
    known, block = np.isfinite(seen.period), seen.planes.get(phase)
    gpu = [seen.planes[name] for name in _GPU_PHASES if name in seen.planes]
    if not known.any() or block is None or _empty(block) or (seen.on_gpu and not gpu):
        return None
    shown, own = _filled(block), seen.planes["self"]
    late = or_zero(seen.planes["delay"] if seen.on_gpu or _empty(own) else own)
    if phase == "input" and gpu:
        busy = np.sum([_filled(one) for one in gpu], axis=0) - or_zero(seen.planes["wait"])  # for others: no work
        shown = np.minimum(shown, np.maximum(seen.period - busy, 0.0))
    if phase == "input" and seen.queued is not None:
        shown = shown * (1.0 - seen.queued[:, None])
    which = np.isin(seen.ranks, list(named))
    more = np.zeros_like(shown)
    if which.any() and not which.all():
        more[which] = np.maximum(shown[which] - lower_median(shown[~which], axis=0), 0.0)
    left = late - more
    return float((left.max(axis=0) - (late - shown).max(axis=0))[known].mean())


def _filled(block: Floats) -> Floats:
    """[R, S] with the rank's mean where a step was not timed: few steps of a GPU are."""
    known = ~np.isnan(block)
    mean = np.where(known, block, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return np.where(known, block, mean[:, None])
