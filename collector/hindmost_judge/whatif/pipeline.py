"""The report on a run that is a graph of operations: slow workers by stage, uneven stages, both costed by replay."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hindmost_judge.detect.straggler import extreme
from hindmost_judge.stats.robust import MAD_TO_SIGMA, spread
from hindmost_judge.timeline.cohorts import beyond_peers, only_peers
from hindmost_judge.verdict import advice, summary
from hindmost_judge.verdict.schema import RankRow, Report, Verdict, WhatIf
from hindmost_judge.verdict.wording import against, ms, names, percent
from hindmost_judge.whatif import micro_batches, operation_graph, operation_graph_waste

if TYPE_CHECKING:
    from hindmost_judge.model import Run
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Array, Floats
    from hindmost_judge.whatif.operation_graph import Graph

_WORK = ("forward-compute", "backward-compute")


def judge(run: Run, settings: Settings) -> Report:
    """Name slow workers among those of one stage; where stages differ and their workers do not, name none."""
    built = operation_graph.build(run.operations)
    measured = built.replay(built.cost)
    ideal = min(built.replay(built.ideal), measured)
    length = micro_batches.lengths(built, _is_work(built))
    uneven = _swing(built, length) >= settings.min_swing
    ranks, stages, work = _work(built, built.cost)
    own = work.mean(axis=1)
    each = _work(built, built.cost / length)[2]
    slow, usual = _slow(stages, each, settings), (each - _beyond(stages, each)).mean(axis=1)
    healthy, alike = np.delete(np.arange(len(work)), slow), _alike(built, length) if uneven else built.ideal
    late = _straggler(built, measured, ranks[slow], each[slow].mean(axis=1), usual[slow], alike, settings)
    found = [advice.on(late, run) if late is not None else None]
    found += [_uneven(built, measured, stages, healthy, own, settings)]
    found += [_uneven_lengths(built, measured, length, settings)] if uneven else []
    verdicts = [verdict for verdict in found if verdict is not None]
    what_if = WhatIf(
        slowdown=measured / ideal,
        wasted_ratio=1 - ideal / measured,
        step_ms=measured / 1e6,
        ideal_step_ms=ideal / 1e6,
        waste=operation_graph_waste.find(built, measured, ideal, verdicts),
    )
    if not verdicts:
        verdicts = [
            Verdict("balanced", evidence=(f"the slowest stage and worker cost less than {percent(settings.min_cost)}",))
        ]
    return Report(
        job=replace(summary.job(run, None), **_steps(run)),
        verdicts=tuple(sorted(verdicts, key=lambda verdict: -(verdict.cost_ratio or 0.0))),
        ranks=tuple(RankRow(rank=int(rank), self_ms=float(own) / 1e6) for rank, own in zip(ranks, own, strict=True)),
        what_if=what_if,
        notes=(
            f"with equal operations on all workers a step takes {ms(ideal)}: S = {measured / ideal:.3f}",
            *run.notes,
        ),
    )


def _steps(run: Run) -> dict[str, Any]:
    """How many steps were recorded, and how long they took, ms, each from its first operation's start to its last's
    end."""
    number, which = np.unique(run.operations["step"], return_inverse=True)
    start, took = (run.operations[name].astype(np.float64) for name in ("start_ns", "duration_ns"))
    known = (start >= 0) & (took >= 0)
    begin, end = np.full(len(number), np.inf), np.full(len(number), -np.inf)
    np.minimum.at(begin, which[known], start[known])
    np.maximum.at(end, which[known], (start + took)[known])
    length = (end - begin)[np.isfinite(end - begin)] / 1e6
    if not len(length):
        return {"steps": len(number)}
    p50, p99 = (float(one) for one in np.percentile(length, (50, 99)))
    return {"steps": len(number), "step_ms": {"p50": p50, "p99": p99, "mean": float(length.mean())}}


def _is_work(built: Graph) -> Array:
    return np.isin(built.op, [one for one, name in enumerate(built.names) if name in _WORK])


def _work(built: Graph, cost: Floats) -> tuple[Array, Array, Floats]:
    """Ranks, the stage of each, and [R, S] ns of its forward and backward in each step at this cost."""
    held = _is_work(built)
    ranks, row = np.unique(built.rank, return_inverse=True)
    stages = np.zeros(len(ranks), np.int64)
    stages[row] = built.stage
    steps = int(built.step.max()) + 1
    place = (row * steps + built.step)[held]
    sums: Floats = np.bincount(place, weights=cost[held], minlength=len(ranks) * steps).astype(np.float64)
    return ranks, stages, sums.reshape(len(ranks), steps)


def _beyond(stages: Array, work: Floats) -> Floats:
    """[R, S] how far a worker is above the other replicas of its stage; 0 where it has none."""
    return beyond_peers(work, stages)


def _slow(stages: Array, work: Floats, settings: Settings) -> Array:
    """Rows of workers that are slower than the other replicas of their stage, beyond the spread of healthy ones."""
    beyond = _beyond(stages, work)
    usual = (work - beyond).mean(axis=1)
    level = beyond.mean(axis=1) / usual
    late = np.flatnonzero(level >= max(settings.min_effect, settings.min_effect_of_few))
    suspects = [*late.tolist(), *only_peers(stages, late.tolist())]
    healthy = np.delete(level, suspects)
    differ = (spread(healthy) if len(healthy) > 1 else settings.min_effect) * extreme(len(level))
    chance = beyond[late].std(axis=1) / usual[late] / np.sqrt(work.shape[1])
    least = np.maximum(settings.min_spread_ratio * differ, settings.min_z * chance)
    return np.asarray(late[level[late] >= least])


def _alike(built: Graph, length: Floats) -> Floats:
    """[N] what operations take with all workers alike, each micro-batch as long as it is."""
    return built.ideal * np.where(_is_work(built), length / length[_is_work(built)].mean(), 1.0)


def _swing(built: Graph, length: Floats) -> float:
    """By what share the typical micro-batch is longer or shorter than usual: a standard deviation."""
    return float(MAD_TO_SIGMA * np.median(np.abs(length[_is_work(built)] - 1)))


def _saving(built: Graph, measured: float, held: Array, alike: Floats) -> float:
    """Ns a step that the job gains with these operations ``alike``."""
    return measured - built.replay(np.where(held, alike, built.cost))


def _straggler(
    built: Graph, measured: float, slow: Array, work: Floats, usual: Floats, alike: Floats, settings: Settings
) -> Verdict | None:
    gain = _saving(built, measured, _is_work(built) & np.isin(built.rank, slow), alike) if len(slow) else 0.0
    if gain < settings.min_cost * measured:
        return None
    ranks = tuple(int(rank) for rank in slow)
    return Verdict(
        kind="straggler",
        ranks=ranks,
        cause="compute",
        since_step=0,
        cost_ms_per_step=gain / 1e6,
        cost_ratio=gain / measured,
        confidence=0.95,
        explained=1.0,
        evidence=(against("forward and backward", names(ranks), float(work.max()), float(usual.max())),),
    )


def _uneven(
    built: Graph, measured: float, stages: Array, healthy: Array, work: Floats, settings: Settings
) -> Verdict | None:
    """Work that is longer in one stage, alike on all its workers."""
    names_of = np.unique(stages[healthy])
    level = np.array([np.median(work[healthy][stages[healthy] == stage]) for stage in names_of])
    usual = float(np.median(level))
    heavy = names_of[level > settings.uneven_stage * usual]
    if len(heavy) == 0:
        return None
    gain = _saving(built, measured, _is_work(built) & np.isin(built.stage, heavy), built.ideal)
    if gain < settings.min_cost * measured:
        return None
    which = "stage " + " and ".join(str(int(stage)) for stage in heavy)
    works = f"work per step: {which} {ms(float(level.max()))} on every replica, the typical stage {ms(usual)}"
    return _uneven_work(gain, measured, 0.95, works, f"move layers away from {which}")


def _uneven_lengths(built: Graph, measured: float, length: Floats, settings: Settings) -> Verdict | None:
    """Micro-batches that take all stages longer than others do."""
    gain = measured - built.replay(built.cost / length)
    if gain < settings.min_effect * measured:
        return None
    swing = _swing(built, length)
    differ = f"micro-batches differ by {percent(swing)} in time, on all stages; no worker is slow for it"
    return _uneven_work(gain, measured, 0.9, differ, "give micro-batches equal work: sort or pack by length")


def _uneven_work(gain: float, measured: float, confidence: float, why: str, remedy: str) -> Verdict:
    """The verdict that ``gain`` ns of the ``measured`` step are lost to work of unlike size, in all steps."""
    return Verdict(
        kind="uneven_workload",
        cause="workload",
        since_step=0,
        cost_ms_per_step=gain / 1e6,
        cost_ratio=gain / measured,
        confidence=confidence,
        explained=1.0,
        evidence=(why,),
        advice=(remedy,),
    )
