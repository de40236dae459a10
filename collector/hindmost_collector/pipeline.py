"""The report on a run that is a graph of operations: slow workers by stage, uneven stages, both costed by replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector import graph, summary
from hindmost_collector.robust import peers_median
from hindmost_collector.verdict import RankRow, Report, Verdict, WhatIf
from hindmost_collector.wording import advice, ms, names

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Floats
    from hindmost_collector.graph import Graph
    from hindmost_collector.model import Run
    from hindmost_collector.settings import Settings

_WORK = ("forward-compute", "backward-compute")


def judge(run: Run, settings: Settings) -> Report:
    """Name slow workers among those of one stage; where stages differ and their workers do not, name nobody."""
    built = graph.build(run.operations)
    measured, ideal = built.replay(built.cost), built.replay(built.ideal)
    ranks, stages, work = _work(built)
    usual = _peers(stages, work)
    slow = np.flatnonzero(work - usual >= max(settings.min_effect, settings.min_effect_of_few) * usual)
    found = [_straggler(built, measured, ranks[slow], work[slow], usual[slow], settings)] if len(slow) else []
    found += [_uneven(built, measured, stages, np.delete(np.arange(len(work)), slow), work, settings)]
    verdicts = [verdict for verdict in found if verdict is not None]
    what_if = WhatIf(
        slowdown=measured / ideal,
        wasted_ratio=1 - ideal / measured,
        step_ms=measured / 1e6,
        ideal_step_ms=ideal / 1e6,
    )
    if not verdicts:
        verdicts = [
            Verdict("balanced", evidence=(f"the slowest stage and worker cost less than {settings.min_cost:.1%}",))
        ]
    return Report(
        job=summary.job(run, None),
        verdicts=tuple(sorted(verdicts, key=lambda verdict: -(verdict.cost_ratio or 0.0))),
        ranks=tuple(RankRow(rank=int(rank), self_ms=float(own) / 1e6) for rank, own in zip(ranks, work, strict=True)),
        what_if=what_if,
        notes=(
            f"Were all operations of a kind alike, a step would take {ms(ideal)}: S = {measured / ideal:.3f}.",
            *run.notes,
        ),
    )


def _is_work(built: Graph) -> Array:
    return np.isin(built.op, [one for one, name in enumerate(built.names) if name in _WORK])


def _work(built: Graph) -> tuple[Array, Array, Floats]:
    """Ranks, the stage of each, and its forward and backward ns a step."""
    held = _is_work(built)
    ranks, row = np.unique(built.rank, return_inverse=True)
    stages = np.zeros(len(ranks), np.int64)
    stages[row] = built.stage
    steps = int(built.step.max()) + 1
    return ranks, stages, np.bincount(row[held], weights=built.cost[held], minlength=len(ranks)) / steps


def _peers(stages: Array, work: Floats) -> Floats:
    """[R] what the other replicas of a worker's stage take; its own where it has none."""
    usual: Floats = work.copy()
    for stage in np.unique(stages):
        members = np.flatnonzero(stages == stage)
        if len(members) > 1:
            usual[members] = peers_median(work[members][:, None])[:, 0]
    return usual


def _saving(built: Graph, measured: float, held: Array) -> float:
    """Ns a step that the job gains with the work of these operations as in the ideal."""
    return measured - built.replay(np.where(held, built.ideal, built.cost))


def _straggler(
    built: Graph, measured: float, slow: Array, work: Floats, usual: Floats, settings: Settings
) -> Verdict | None:
    gain = _saving(built, measured, _is_work(built) & np.isin(built.rank, slow))
    if gain < settings.min_cost * measured:
        return None
    ranks = tuple(int(rank) for rank in slow)
    told = f"forward and backward of {names(ranks)} take {ms(float(work.max()))} a step"
    return Verdict(
        kind="straggler",
        ranks=ranks,
        cause="compute",
        since_step=0,
        cost_ms_per_step=gain / 1e6,
        cost_ratio=gain / measured,
        confidence=0.95,
        explained=1.0,
        evidence=(f"{told}, those of the same stage elsewhere {ms(float(usual.max()))}",),
        advice=tuple(advice("compute", list(ranks))),
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
    gain = _saving(built, measured, _is_work(built) & np.isin(built.stage, heavy))
    if gain < settings.min_cost * measured:
        return None
    which = "stage " + " and ".join(str(int(stage)) for stage in heavy)
    return Verdict(
        kind="uneven_workload",
        cause="workload",
        since_step=0,
        cost_ms_per_step=gain / 1e6,
        cost_ratio=gain / measured,
        confidence=0.95,
        explained=1.0,
        evidence=(f"{which} works {ms(float(level.max()))} a step on every replica, the typical stage {ms(usual)}",),
        advice=(f"move layers away from {which}: nobody in it is slow, it has more to do",),
    )
