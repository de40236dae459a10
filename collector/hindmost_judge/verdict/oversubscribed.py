"""Verdicts where there are fewer CPUs than ranks: on the binding that causes it, and on slow ranks there.

Ranks bound to fewer CPUs than they are, though their node has more, wait for each other in the run queue. None of
them is slow for that: what they queue is taken from their delay before ranks are compared. It costs what a replay
without that wait saves.

Where all CPUs are shared, ranks are named that need more CPU time, or are late for a reason other than scheduling.
The scheduler makes a different rank late now and then; that is no rank's fault. Where its effect cannot be separated
from a slow rank, the verdict is inconclusive: none is named, and none cleared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes import cpu_sharing, cpu_wait, late_off_cpu, table
from hindmost_judge.detect import straggler
from hindmost_judge.stats.robust import average, median
from hindmost_judge.verdict import advice, wording
from hindmost_judge.verdict.intermittent import of_stalls
from hindmost_judge.verdict.schema import Verdict
from hindmost_judge.verdict.slow_ranks import of_habits
from hindmost_judge.verdict.whole_job import balanced, since
from hindmost_judge.verdict.wording import ms, names
from hindmost_judge.whatif import residual, savings
from hindmost_judge.whatif.savings import stretched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.causes.late_off_cpu import Slept
    from hindmost_judge.findings import Bound, Habit, Sharing, Stalls
    from hindmost_judge.model import Run
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Floats, Ints

#: Bindings that the evidence lists.
_LISTED = 3
#: Affinity and queues are facts; that nothing else made the ranks queue is not.
_SURE = 0.95


def bound_to_few_cpus(run: Run, blocks: Blocks, settings: Settings) -> tuple[list[Verdict], Blocks]:
    """The verdict, if any, and the blocks in which some ranks' delay no longer holds what they queued.

    Where all ranks are bound so, their blocks stay: they are judged by what each of them needs.
    """
    bound = cpu_sharing.bound(run)
    rows = np.flatnonzero(np.isin(blocks.ranks, [rank for one in bound for rank in one.members]))
    queued = cpu_wait.queued_by_main(blocks) if len(rows) else None
    if queued is None:
        return [], blocks
    shares = cpu_wait.behind_each_other(bound, blocks)
    queued = queued * shares[:, None]
    fixed: Floats = blocks.segments.copy()
    fixed[rows] -= cpu_wait.queued_in_segments(queued[rows], rows, blocks)
    shown = float((stretched(blocks, blocks.segments) - stretched(blocks, fixed)).mean())
    cost = shown + cpu_wait.queued_in_collectives(blocks, rows, shares)
    some = len(rows) < len(blocks.ranks)
    waited = float(np.mean(cpu_wait.queued_in_all(blocks, shares)[rows]))
    found = _verdict_on_binding(run, blocks, bound, rows, waited, cost, settings)
    found = [replace(one, shown_ms=shown / 1e6 if some else 0.0) for one in found]
    if not some or not found:
        return found, blocks
    excess: Floats = blocks.excess.copy()
    excess[rows] -= np.clip(queued[rows], 0.0, np.maximum(np.nan_to_num(excess[rows]), 0.0))
    late = np.maximum(blocks.segments[rows], 0.0)
    fixed[rows] = blocks.segments[rows] - np.minimum(cpu_wait.queued_in_segments(queued[rows], rows, blocks), late)
    return found, replace(blocks, excess=excess, segments=fixed)


def _verdict_on_binding(
    run: Run, blocks: Blocks, bound: Sequence[Bound], rows: Ints, waited: float, cost: float, settings: Settings
) -> list[Verdict]:
    period = average(blocks.period)
    if not cost >= settings.min_effect * period:
        return []
    ranks = tuple(sorted(blocks.ranks[rows].tolist()))
    listed = [str(one) for one in bound[:_LISTED]]
    more = [f"{len(bound) - _LISTED} more such bindings"] if len(bound) > _LISTED else []
    whom = "the other" if len(bound) == 1 and bound[0].ranks == 2 else "the others"
    return [
        Verdict(
            kind="oversubscribed",
            ranks=ranks,
            cause="cpu_contention",
            since_step=since(blocks, 0),
            cost_ms_per_step=min(cost, period) / 1e6,
            cost_ratio=min(cost / period, 1.0),
            confidence=_SURE,
            explained=1.0,
            evidence=(
                f"{listed[0]}: each waits {ms(waited)} per step for {whom}",
                *listed[1:],
                *more,
                f"none of {names(ranks)} has more work than the others",
            ),
            advice=advice.of_binding(run, bound),
        )
    ]


#: Causes that are the scheduler's doing where ranks share CPUs.
_SCHEDULING = ("cpu_contention", "unknown")
#: A stall is computing if CPU time is this share of it; else it is queueing, which computing has to join.
_COMPUTED = 0.5
#: A rank that delays the others by a smaller share of the step is not reported: the scheduler's turns alone make that.
_COUNTS = 0.05
#: A rank that needs more CPU time in this share of the steps needs it for its own work: others rarely use a core that
#: long.
_THROUGHOUT = 0.75
#: With fewer steps the largest share of the waiting may be chance: a few long turns of the scheduler are most of it.
_ENOUGH = 30


def asking_most(blocks: Blocks, settings: Settings) -> list[Verdict]:
    """The rank with more CPU demand that makes the others wait most, where delays alone are too noisy to name one.

    Containers and cpusets share CPUs without a node's CPU count showing it.
    """
    found, _ = _of_needs(blocks, settings)
    most = int(blocks.ranks[int(np.argmax(np.nan_to_num(blocks.caused).mean(axis=1)))])
    return found if found and most in found[0].ranks else []


def on_shared_cpus(
    shared: Sharing, late: list[Verdict], stalls: list[Stalls], blocks: Blocks, settings: Settings
) -> tuple[list[Verdict], list[str]]:
    """The ranks that need more than their peers and those that slept; else those ``late``, or in ``stalls``, for
    another known reason."""
    asking, notes = _of_needs(blocks, settings, whole_steps=True)
    if not cpu_sharing.between_collectives(blocks):
        come_late = {rank for one in late for rank in one.ranks}
        asking = [one for one in asking if come_late.issuperset(one.ranks)]
    slept, hidden = late_off_cpu.verdicts(blocks, late, shared, settings)
    asking = [one for one in asking if not _rather_slept(one, slept)]
    by_sleep = [one.verdict for one in slept if not _in(asking, one.verdict.ranks)]
    found = [_at_most(one, blocks, shared) for one in [*asking, *by_sleep]]
    told = str(shared)
    if not found:
        found = [_at_most(one, blocks, shared) for one in late if one.cause not in _SCHEDULING]
        by_itself = {one.ranks for one in found}
        told += _not_named([one for one in late if one.ranks not in by_itself], blocks, settings)
    stalls = [one for one in stalls if not _in_the_queue(one, found, blocks)]
    more = [one for one in of_stalls(stalls, blocks, settings) if one.cause not in _SCHEDULING]
    return found + [one for one in more if not _in(by_sleep, one.ranks)], [*notes, *hidden, told]


def _in(verdicts: list[Verdict], ranks: tuple[int, ...]) -> bool:
    """Whether these name any of the ranks."""
    return any(not set(one.ranks).isdisjoint(ranks) for one in verdicts)


def _rather_slept(one: Verdict, slept: list[Slept]) -> bool:
    """Whether each of these ranks, which need more CPU time, was off the CPU without queueing for longer than that."""
    longest = {rank: each.ns for each in slept for rank in each.verdict.ranks}
    return all((one.cost_ms_per_step or 0.0) * 1e6 <= longest.get(rank, 0.0) for rank in one.ranks)


def _in_the_queue(one: Stalls, found: list[Verdict], blocks: Blocks) -> bool:
    """Whether ranks named for more computing stall in the run queue: more computing has that effect there."""
    told = {rank for verdict in found if verdict.cause == "compute" for rank in verdict.ranks}
    cpu = cpu_sharing.cpu_time(blocks)
    if cpu is None or not told.issuperset(blocks.ranks[list(one.rows)].tolist()):
        return False
    return all(table.excess_of(cpu, row, one.stalled) < _COMPUTED * one.excess for row in one.rows)


def _of_needs(blocks: Blocks, settings: Settings, whole_steps: bool = False) -> tuple[list[Verdict], list[str]]:
    """Verdicts of ranks that need more than their peers, by more than caches and clocks can make."""
    needs = cpu_sharing.on_needs(blocks, whole_steps)
    if needs is None:
        return [], []
    usual, steps = float(median(needs.own)), len(needs.steps)

    def least(habit: Habit) -> float:
        throughout = habit.stop - habit.first >= _THROUGHOUT * steps
        return usual * (settings.min_demand if throughout else settings.min_demand_for_a_while)

    habits = [habit for habit in straggler.find(needs, settings, shared=True) if habit.excess >= least(habit)]
    found, notes = of_habits(habits, needs, settings)
    return [replace(one, shown_ms=None) for one in found], notes  # needs are no delay, which may show any part


def _at_most(verdict: Verdict, blocks: Blocks, shared: Sharing) -> Verdict:
    """No fix makes a step shorter than the CPU time that its ranks need, spread over all the CPUs they share.

    In whole steps some CPU time may be spent on waiting: it bounds the ranks that need more, and not those that
    slept.
    """
    if verdict.cause != "compute" and not cpu_sharing.between_collectives(blocks):
        return verdict
    cpu = cpu_sharing.cpu_time(blocks)
    least = float(median(cpu)) * shared.ranks / shared.cpus if cpu is not None else 0.0
    most = max(max(blocks.step_ns, average(blocks.period)) - least, 0.0) / 1e6
    if verdict.cost_ms_per_step is None or verdict.cost_ratio is None or verdict.cost_ms_per_step <= most:
        return verdict
    ratio = verdict.cost_ratio * most / verdict.cost_ms_per_step
    return replace(verdict, cost_ms_per_step=most, cost_ratio=ratio)


def _not_named(late: list[Verdict], blocks: Blocks, settings: Settings) -> str:
    """Which of these were seen to queue for a CPU, and which are unknown, as a verdict on all steps would say."""
    queued: list[int] = []
    unknown: list[int] = []
    for one in late:
        columns = np.arange(*residual.span(one, blocks))
        for rank in one.ranks:
            row = int(np.flatnonzero(blocks.ranks == rank)[0])
            (queued if _queued(blocks, row, columns, settings) else unknown).append(rank)
    return late_off_cpu.not_named(queued, unknown)


def nobody(shared: Sharing, blocks: Blocks, settings: Settings) -> Verdict:
    """The verdict without a name: inconclusive if ranks wait for an unknown reason, since none can be cleared; else how
    even the ranks are."""
    row, columns = wording.waited_for_most(blocks), np.arange(len(blocks.steps))
    queued = row is not None and _queued(blocks, row, columns, settings)
    much = row is not None and float(np.nan_to_num(blocks.caused[row]).mean()) >= _COUNTS * blocks.step_ns
    if row is None or queued or not much or len(columns) < _ENOUGH:
        return balanced(blocks, savings.waste(blocks), settings, cpu_sharing.on_needs(blocks), queued=queued)
    why = table.explain(blocks, row, columns, settings)
    evidence = wording.waited_for(blocks, row, str(shared), average(blocks.excess[row]), why)
    return Verdict(kind="insufficient_data", evidence=tuple(evidence), advice=wording.TELLING_ON_SHARED_CPUS)


def _queued(blocks: Blocks, row: int, columns: Ints, settings: Settings) -> bool:
    """Whether a rank's longer wait for a CPU is what makes it late: that is known, and the scheduler's doing."""
    queue = blocks.parts.get("self_runqueue", blocks.parts.get("runqueue"))
    if queue is None or np.isnan(queue[row, columns]).all():
        return False
    late = average(blocks.excess[row, columns])
    return table.excess_of(queue, row, columns) >= settings.min_explained * late
