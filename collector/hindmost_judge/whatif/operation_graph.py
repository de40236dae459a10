"""A pipelined job as a graph of operations, replayed: with what was measured, with all alike, with one worker repaired.

After "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25): compute keeps its measured
time, communication its transfer part (end minus the latest start in its group), launch delays go; the ideal takes one
mean per kind of computing and one median per kind of transfer. Sequences of uneven length make a micro-batch longer in
every stage and both directions, a slow worker all its micro-batches in its own stage. Lost computing is split among
workers as each computes longer than at the ideal; lost transfers belong to no worker. Hosts are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hindmost_judge.detect.straggler import extreme
from hindmost_judge.encoding import codes
from hindmost_judge.model import Run, Table
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import MAD_TO_SIGMA, median, median_error, spread
from hindmost_judge.timeline.cohorts import beyond_peers, sole_peers
from hindmost_judge.types import Array, Floats, Ints
from hindmost_judge.verdict import advice, summary
from hindmost_judge.verdict.schema import RankRow, Report, Verdict, Waste, WhatIf
from hindmost_judge.verdict.wording import against, ms, names, percent
from hindmost_judge.whatif.replay import Events
from hindmost_judge.whatif.waste import waste_rows

#: Of each end of a message the stages on from its own to the sender's.
_PAIRED = {"forward-send": 0, "forward-recv": -1, "backward-send": 0, "backward-recv": 1}
#: Columns that the ends of one transfer share, besides the step.
_SHARED = {
    **dict.fromkeys(_PAIRED, ("dp", "stage", "seq")),
    **dict.fromkeys(("grads-reduce-scatter", "params-all-gather"), ("stage", "seq")),
    "embedding-grads-all-reduce": ("dp", "seq"),
    "optimizer-clip-main-grad": (),
}
_COMPUTING = {"forward-compute": "forward", "backward-compute": "backward"}
_TRANSFER = "sync"


@dataclass(frozen=True)
class Graph:
    """Operations sorted by worker and start.

    ``events`` are when all is there that an operation, or all ends of a transfer, need, and the ends of steps;
    ``before`` [E] is the operation whose end each edge is. ``cost`` [N] ns is what an operation itself took and
    ``ideal`` [N] what it takes with all alike; ``replica`` and ``batch`` [N] are whose micro-batch it belongs to and
    which. ``phase`` [N]: empty of what is no part of the tables.
    """

    step: Ints
    rank: Ints
    stage: Ints
    op: Ints
    phase: Array
    events: Events
    before: Ints
    cost: Floats
    ideal: Floats
    replica: Ints
    batch: Ints

    @cached_property
    def work(self) -> Array:
        """[N] which operations are forward or backward."""
        return np.isin(self.phase, list(_COMPUTING.values()))

    @cached_property
    def measured(self) -> float:
        """Ns of the mean step as it was."""
        return self.replay(self.cost)

    def saving(self, which: Array, cost: Floats) -> float:
        """Ns by which the mean step is shorter with those of the operations [N] at this ``cost`` [N]."""
        return self.measured - self.replay(np.where(which, cost, self.cost))

    def replay(self, cost: Floats) -> float:
        """Mean ns of a step when every operation starts as soon as what it needs is there."""
        return float(self.events.times(cost[self.before])[len(cost) :].mean())


def build(operations: Table) -> Graph:
    """The graph of a run's operations; steps are numbered anew from 0."""
    order = np.lexsort((operations["start_ns"], operations["rank"], operations["step"]))
    table = {name: column[order] for name, column in operations.items()}
    step = np.unique(table["step"], return_inverse=True)[1]
    op, names = codes(table["op"])
    group = _groups(table, step, op, names)
    start = table["start_ns"].astype(np.float64)
    cost = _cost(start, table["duration_ns"].astype(np.float64), group)
    ideal = cost.copy()
    for one in range(len(names)):
        mask = op == one
        ideal[mask] = np.median(cost[mask]) if (group[mask] >= 0).any() else cost[mask].mean()
    phases = np.array([_COMPUTING.get(name, "") for name in names])[op]
    before, after = _order(step, table["rank"], [names[one] for one in op], table["seq"].tolist())
    each = np.arange(len(op))
    needs = np.where(group < 0, each, group)
    ends = (needs, len(op) + step)
    return Graph(
        step=step,
        rank=table["rank"].astype(np.int64),
        stage=table["stage"].astype(np.int64),
        op=op,
        phase=np.where((phases == "") & (group >= 0), _TRANSFER, phases),
        events=Events(len(op) + int(step.max()) + 1, [(needs[before], needs[after]), ends]),
        before=np.append(before, each),
        cost=cost,
        ideal=ideal,
        replica=table["dp"].astype(np.int64),
        batch=(table["micro_batch"] if "micro_batch" in table else table["seq"]).astype(np.int64),
    )


def _groups(table: Table, step: Ints, op: Ints, names: list[str]) -> Ints:
    """[N] which operations are one transfer, seen from its several ends; -1 for computing."""
    transfers = [name.replace("recv", "send") for name in names]
    key = np.zeros((5, len(op)), np.int64)
    key[:2] = step, np.array([transfers.index(name) for name in transfers])[op]
    for one, name in enumerate(names):
        ends = op == one
        for row, column in enumerate(_SHARED.get(name, ()), 2):
            key[row, ends] = table[column][ends] + (_PAIRED.get(name, 0) if column == "stage" else 0)
    _, first, which = np.unique(key, axis=1, return_index=True, return_inverse=True)
    return np.where(np.isin(op, [one for one, name in enumerate(names) if name in _SHARED]), first[which.ravel()], -1)


def _cost(start: Floats, duration: Floats, group: Ints) -> Floats:
    """[N] duration of computing, and of a transfer what it took after the last of its group had come."""
    cost: Floats = duration.copy()
    mask = group >= 0
    if not mask.any():
        return cost
    latest = np.full(int(group.max()) + 1, -np.inf)
    np.maximum.at(latest, group[mask], start[mask])
    cost[mask] = np.maximum(start[mask] + duration[mask] - latest[group[mask]], 0.0)
    return cost


#: What follows the pipeline on a worker waits for its sends and receives to be over.
_AFTER_PIPELINE = ("gc", "layernorm-grads-all-reduce", "grads-reduce-scatter")


def _order(step: Ints, rank: Array, names: list[str], seq: list[int]) -> tuple[Ints, Ints]:
    """[E] operations and what each of them is followed by on its worker.

    Computing and the operations of all replicas follow one another; each direction of sends and of receives is a
    stream of its own, parallel to computing. A send follows the computing of its micro-batch, and computing its
    receive.
    """
    edges: list[tuple[int, int]] = []
    bounds = np.flatnonzero((np.diff(step) != 0) | (np.diff(rank) != 0)) + 1
    for first, stop in zip([0, *bounds.tolist()], [*bounds.tolist(), len(step)], strict=True):
        of_worker = {(names[i], seq[i]): i for i in range(first, stop)}
        last: dict[str, int] = {}
        for i in range(first, stop):
            way, _, what = names[i].partition("-")
            stream = names[i] if names[i] in _PAIRED else ""
            partner = {"send": (f"{way}-compute", seq[i]), "compute": (f"{way}-recv", seq[i])}.get(what)
            found = [last.get(stream), of_worker.get(partner) if partner else None]
            if names[i] in _AFTER_PIPELINE:
                found += [one for other, one in last.items() if other]
            edges += [(before, i) for before in found if before is not None]
            last[stream] = i
    before, after = np.array(edges, np.int64).reshape(-1, 2).T
    return before, after


#: A replica's micro-batches are persistently longer if they are longer by this many standard errors: then its host may
#: be slow.
_USUAL = 5.0
#: Least replicas and stages together: with two replicas of two stages, a long micro-batch in one looks like a fast
#: worker in the other.
_TELL = 5
#: Least micro-batches of a replica before their lengths are judged.
_ENOUGH = 8
#: Rounds in which the usual time of a stage and the micro-batch lengths refine each other; later rounds change little.
_TIMES = 3


def _micro_batch_lengths(built: Graph) -> Floats:
    """[N] by what factor the work of each operation is longer than usual for its micro-batch; 1 of what is no work."""
    found = np.ones(len(built.cost))
    indices = np.flatnonzero(built.work & (built.cost > 0))
    stages, replicas = len(np.unique(built.stage[indices])), len(np.unique(built.replica[indices]))
    if stages < 2 or stages + replicas < _TELL:
        return found
    kind = built.op[indices] * (int(built.stage.max()) + 1) + built.stage[indices]
    batch = np.stack([built.step[indices], built.replica[indices], built.batch[indices]])
    _, first, which = np.unique(batch, axis=1, return_index=True, return_inverse=True)
    which = which.ravel()
    replica, length = built.replica[indices][first], np.ones(len(first))
    if np.bincount(replica).max() < _ENOUGH:
        return found
    for _ in range(_TIMES):
        usual = _of_each(kind, built.cost[indices] / length[which])
        length = _of_each(which, built.cost[indices] / usual[kind])
    found[indices] = (length / _slowdown(length, replica))[which]
    return found


def _of_each(which: Ints, values: Floats) -> Floats:
    """Lower median of the values of each number; of two stages, one of them slow, it is the other's."""
    order = np.lexsort((values, which))
    first = np.searchsorted(which[order], np.arange(int(which.max()) + 2))
    middle = np.minimum((first[:-1] + np.maximum(first[1:] - 1, first[:-1])) // 2, len(values) - 1)
    return np.asarray(values[order][middle])


def _slowdown(length: Floats, replica: Ints) -> Floats:
    """[M] by what factor all micro-batches of a replica are longer, where that is no chance; 1 where it may be."""
    found, usual = np.ones(len(length)), float(median(length))
    for one in np.unique(replica):
        of_one = length[replica == one] / usual
        level = float(median(of_one))
        if abs(level - 1) > _USUAL * median_error(of_one):
            found[replica == one] = level
    return found


def _waste(built: Graph, ideal: float, verdicts: Sequence[Verdict]) -> Waste:
    """The tables, ms of the mean step, which with all alike takes ``ideal`` ns."""
    lost = (built.measured - ideal) / 1e6
    causes: dict[str, float] = {}
    for verdict in verdicts:
        cause = verdict.cause or "unknown"
        causes[cause] = causes.get(cause, 0.0) + (verdict.cost_ms_per_step or 0.0)
    causes = _within(lost, causes)
    names = (*_COMPUTING.values(), _TRANSFER)
    saved = {name: max(built.saving(built.phase == name, built.ideal), 0.0) / 1e6 for name in names}
    phases = _within(lost, saved)
    computing = sum(phases[name] for name in _COMPUTING.values())
    by_rank, by_stage = (_shared(built, of, computing) for of in (built.rank, built.stage))
    step_ms = built.measured / 1e6
    return Waste(
        lost_ms=lost,
        rest_ms=lost - sum(causes.values()),
        by_rank=waste_rows(by_rank, step_ms),
        by_stage=waste_rows(by_stage, step_ms),
        by_cause=waste_rows(causes, step_ms),
        by_phase=waste_rows(phases, step_ms),
    )


def _within(lost: float, found: dict[str, float]) -> dict[str, float]:
    """The same, scaled down where the parts add up to more than was lost: together they save less than separately."""
    total = sum(found.values())
    return {name: ms * min(lost / total, 1.0) for name, ms in found.items()} if total > 0 else found


def _shared(built: Graph, of: Array, ms: float) -> dict[str, float]:
    """So many ms shared among workers, or ``of`` [N] stages: as each worker computes longer than at the ideal."""
    _, first, row = np.unique(built.rank, return_index=True, return_inverse=True)
    more = np.maximum(np.bincount(row, np.where(built.work, built.cost - built.ideal, 0.0)), 0.0)
    names, which = np.unique(of[first], return_inverse=True)
    shares = np.bincount(which, more) / max(more.sum(), 1e-30)
    return dict(zip(map(str, names.tolist()), (ms * shares).tolist(), strict=True))


def judge_operations(run: Run, settings: Settings) -> Report:
    """Name slow workers among those of one stage; where stages differ and their workers do not, name none."""
    built = build(run.operations)
    ideal = min(built.replay(built.ideal), built.measured)
    length = _micro_batch_lengths(built)
    swing = float(MAD_TO_SIGMA * np.median(np.abs(length[built.work] - 1)))  # a standard deviation
    uneven = swing >= settings.min_uneven
    ranks, stages, work = _work(built, built.cost)
    own = work.mean(axis=1)
    each = _work(built, built.cost / length)[2]
    slow, usual = _slow(stages, each, settings), (each - beyond_peers(each, stages)).mean(axis=1)
    healthy = np.delete(np.arange(len(work)), slow)
    alike = built.ideal * np.where(built.work, length / length[built.work].mean(), 1.0) if uneven else built.ideal
    late = _straggler(built, ranks[slow], each[slow].mean(axis=1), usual[slow], alike, settings)
    found = [advice.on(late, run) if late is not None else None]
    found += [_uneven_stages(built, stages, healthy, own, settings)]
    found += [_uneven_batches(built, length, swing, settings)] if uneven else []
    verdicts = [verdict for verdict in found if verdict is not None]
    slowdown = built.measured / ideal
    what_if = WhatIf(
        slowdown=slowdown,
        wasted_ratio=1 - ideal / built.measured,
        step_ms=built.measured / 1e6,
        ideal_step_ms=ideal / 1e6,
        waste=_waste(built, ideal, verdicts),
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
        notes=(f"with equal operations on all workers a step takes {ms(ideal)}: S = {slowdown:.3f}", *run.notes),
    )


def _steps(run: Run) -> dict[str, Any]:
    """How many steps were recorded, and how long they took, ms, each from its first operation's start to its last's
    end."""
    start, took = (run.operations[name].astype(np.float64) for name in ("start_ns", "duration_ns"))
    number, which = np.unique(run.operations["step"], return_inverse=True)
    begin, end = np.full((2, len(number)), np.nan)
    known = (start >= 0) & (took >= 0)
    np.fmin.at(begin, which[known], start[known])
    np.fmax.at(end, which[known], (start + took)[known])
    length = (end - begin)[~np.isnan(end - begin)] / 1e6
    if not len(length):
        return {"steps": len(number)}
    p50, p99 = np.percentile(length, (50, 99)).tolist()
    return {"steps": len(number), "step_ms": {"p50": p50, "p99": p99, "mean": float(length.mean())}}


def _work(built: Graph, cost: Floats) -> tuple[Array, Array, Floats]:
    """Ranks, the stage of each, and [R, S] ns of its forward and backward in each step at this cost."""
    ranks, row = np.unique(built.rank, return_inverse=True)
    stages = np.zeros(len(ranks), np.int64)
    stages[row] = built.stage
    steps = int(built.step.max()) + 1
    place = (row * steps + built.step)[built.work]
    sums: Floats = np.bincount(place, weights=cost[built.work], minlength=len(ranks) * steps).astype(np.float64)
    return ranks, stages, sums.reshape(len(ranks), steps)


def _slow(stages: Array, work: Floats, settings: Settings) -> Array:
    """Rows of workers that are slower than the other replicas of their stage, beyond the spread of healthy ones."""
    beyond = beyond_peers(work, stages)
    usual = (work - beyond).mean(axis=1)
    level = beyond.mean(axis=1) / usual
    late = np.flatnonzero(level >= max(settings.min_effect, settings.min_effect_of_few))
    peers = sole_peers(stages)[late]  # ahead by what those are behind, which says nothing of themselves
    healthy = np.delete(level, [*late, *peers[peers >= 0]])
    differ = (spread(healthy) if len(healthy) > 1 else settings.min_effect) * extreme(len(level))
    chance = beyond[late].std(axis=1) / usual[late] / np.sqrt(work.shape[1])
    least = np.maximum(settings.min_spread_ratio * differ, settings.min_z * chance)
    return np.asarray(late[level[late] >= least])


def _straggler(
    built: Graph, slow: Array, work: Floats, usual: Floats, alike: Floats, settings: Settings
) -> Verdict | None:
    gain = built.saving(built.work & np.isin(built.rank, slow), alike) if len(slow) else 0.0
    if gain <= 0 or gain < settings.min_cost * built.measured:
        return None
    ranks = tuple(int(rank) for rank in slow)
    evidence = against("forward and backward", names(ranks), float(work.max()), float(usual.max()))
    return _verdict(built, gain, evidence, kind="straggler", ranks=ranks, cause="compute", confidence=0.95)


def _uneven_stages(built: Graph, stages: Array, healthy: Array, work: Floats, settings: Settings) -> Verdict | None:
    """Work that is longer in one stage, alike on all its workers."""
    names_of = np.unique(stages[healthy])
    level = np.array([np.median(work[healthy][stages[healthy] == stage]) for stage in names_of])
    usual = float(np.median(level))
    heavy = names_of[level > settings.uneven_stage * usual]
    gain = built.saving(built.work & np.isin(built.stage, heavy), built.ideal) if len(heavy) else 0.0
    if gain <= 0 or gain < settings.min_cost * built.measured:
        return None
    which = "stage " + " and ".join(str(int(stage)) for stage in heavy)
    works = f"work per step: {which} {ms(float(level.max()))} on every replica, the typical stage {ms(usual)}"
    remedy = (f"move layers away from {which}",)
    return _verdict(built, gain, works, kind="uneven_workload", cause="workload", confidence=0.95, advice=remedy)


def _uneven_batches(built: Graph, length: Floats, swing: float, settings: Settings) -> Verdict | None:
    """Micro-batches that take all stages longer than others do: by ``swing`` of a usual one."""
    gain = built.saving(built.work, built.cost / length)
    if gain < settings.min_effect * built.measured:
        return None
    differ = f"micro-batches differ by {percent(swing)} in time, on all stages; no worker is slow for it"
    remedy = ("give micro-batches equal work: sort or pack by length",)
    return _verdict(built, gain, differ, kind="uneven_workload", cause="workload", confidence=0.9, advice=remedy)


def _verdict(built: Graph, gain: float, why: str, **known: Any) -> Verdict:
    return Verdict(
        since_step=0,
        cost_ms_per_step=gain / 1e6,
        cost_ratio=gain / built.measured,
        explained=1.0,
        evidence=(why,),
        **known,
    )
