"""Verdicts where there are fewer CPUs than ranks: on the binding that causes it, and on slow ranks there.

Ranks bound to fewer CPUs than they are wait for each other in the run queue: what they queue is taken from their delay
before ranks are compared, and costs what a replay without it saves. Where all CPUs are shared, ranks are named that
need more CPU time, or are late for a reason other than scheduling. The kernel accounts for that: time in which a thread
neither ran nor queued is sleep, or blocking; a thread of its process that it waited for would have used CPU time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hindmost_judge.blocks import Blocks, CpuBinding, Sharing, Slowdown, Stalls
from hindmost_judge.causes import cpu_sharing, cpu_wait, table
from hindmost_judge.detect import intermittent, straggler
from hindmost_judge.model import Run
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import average, mean, median, or_zero
from hindmost_judge.types import Array, Floats, Ints
from hindmost_judge.usage import CpuUse
from hindmost_judge.verdict import advice, wording
from hindmost_judge.verdict.intermittent import of_stalls
from hindmost_judge.verdict.schema import AT_LEAST, ESTIMATE, Verdict
from hindmost_judge.verdict.slow_ranks import of_slowdowns, right
from hindmost_judge.verdict.whole_job import balanced, costing
from hindmost_judge.verdict.wording import ms, names, percent, telling_on_shared_cpus
from hindmost_judge.whatif import savings
from hindmost_judge.whatif.savings import BY_ITSELF, step_delay

#: Extra CPU time against the cohort where ranks share CPUs; caches and clock rates alone make about 10 % (of the
#: peers').
_MIN_DEMAND = 0.15
#: The same for a transient slowdown: sharing a core can double a step's CPU time (of the peers').
_MIN_DEMAND_FOR_A_WHILE = 1.0

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
    fixed: Floats = blocks.intervals.copy()
    fixed[rows] -= cpu_wait.queued_in_segments(queued[rows], rows, blocks)
    shown = float((step_delay(blocks, blocks.intervals) - step_delay(blocks, fixed)).mean())
    cost = shown + cpu_wait.queued_in_collectives(blocks, rows, shares)
    in_part = len(rows) < len(blocks.ranks)
    waited = float(np.mean(cpu_wait.queued_in_all(blocks, shares)[rows]))
    found = _verdict_on_binding(run, blocks, bound, rows, waited, cost, settings)
    found = [replace(one, shown_ms=shown / 1e6 if in_part else 0.0) for one in found]
    if not in_part or not found:
        return found, blocks
    delay: Floats = blocks.delay.copy()
    delay[rows] -= np.clip(queued[rows], 0.0, np.maximum(or_zero(delay[rows]), 0.0))
    late = np.maximum(blocks.intervals[rows], 0.0)
    fixed[rows] = blocks.intervals[rows] - np.minimum(cpu_wait.queued_in_segments(queued[rows], rows, blocks), late)
    return found, replace(blocks, delay=delay, intervals=fixed)


def _verdict_on_binding(
    run: Run, blocks: Blocks, bound: Sequence[CpuBinding], rows: Ints, waited: float, cost: float, settings: Settings
) -> list[Verdict]:
    period = average(blocks.period)
    if not cost >= settings.min_effect * period:
        return []
    ranks = tuple(sorted(blocks.ranks[rows].tolist()))
    listed = [str(one) for one in bound[:_LISTED]]
    more = [f"{len(bound) - _LISTED} more such bindings"] if len(bound) > _LISTED else []
    whom = "the other" if len(bound) == 1 and bound[0].ranks == 2 else "the others"
    return [
        costing(
            *(blocks, 0, len(blocks.steps), min(cost, period)),
            kind="oversubscribed",
            ranks=ranks,
            cause="cpu_contention",
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
#: A rank takes so many times its CPU time where that is worth a word.
_STRETCHED = 1.5
#: A stall is computing if CPU time is this share of it; else it is queueing, which computing has to join.
_COMPUTED = 0.5
#: A rank that delays the others by a smaller share of the step is not reported: the scheduler's turns alone make that.
_COUNTS = 0.05
#: A rank that needs more CPU time in this share of the steps needs it for its own work: others rarely use a core that
#: long.
_THROUGHOUT = 0.75
#: Samples of a process do not say in which part of a step its CPU time is used.
_IN_SAMPLES = 0.7
#: With fewer steps the largest share of the waiting may be chance: a few long turns of the scheduler are most of it.
_ENOUGH = 30


def asking_most(blocks: Blocks, settings: Settings) -> list[Verdict]:
    """The rank that makes the others wait most, if its own work is longer, where delays are too noisy to name one.

    Work is CPU demand, or else time off the CPU without queueing. Containers, cpusets and other programs share CPUs
    without a node's CPU count showing it.
    """
    found, _ = _of_needs(blocks, settings)
    if not found and cpu_sharing.between_collectives(blocks):
        slept, _ = _verdicts_on_sleep(blocks, [], 1.0, settings)
        found = [one.verdict for one in slept if one.verdict.kind == "straggler"]  # delays show stalls well enough
    most = int(blocks.ranks[int(np.argmax(or_zero(blocks.caused).mean(axis=1)))])
    return found if found and most in found[0].ranks else []


def on_shared_cpus(
    shared: Sharing, late: list[Verdict], stalls: list[Stalls], blocks: Blocks, settings: Settings
) -> tuple[list[Verdict], list[str]]:
    """The ranks that need more than their peers and those that slept; else those ``late``, or in ``stalls``, for
    another known reason."""
    asking, notes = _of_needs(blocks, settings, whole_steps=True)
    if not cpu_sharing.between_collectives(blocks):
        come_late = {rank for verdict in late for rank in verdict.ranks}
        asking = [one for one in asking if come_late.issuperset(one.ranks)]
    slept, hidden = _verdicts_on_sleep(blocks, late, shared.cpus / shared.ranks, settings)
    asking = asking if asking or slept else _asking_in_samples(blocks, settings)
    longest = {rank: each.ns for each in slept for rank in each.verdict.ranks}
    asking = [  # not those that were each off the CPU without queueing for longer
        one for one in asking if any((one.cost_ms_per_step or 0.0) * 1e6 > longest.get(rank, 0.0) for rank in one.ranks)
    ]
    by_sleep = [one.verdict for one in slept if not _in(asking, one.verdict.ranks)]
    found = [*(_bounded(one, blocks, shared) for one in asking), *(_at_most(one, blocks, shared) for one in by_sleep)]
    how = dict.fromkeys(["CPU time"] * bool(asking) + ["time off the CPU"] * bool(by_sleep))
    sentence = f"{shared}: ranks are compared by {' and '.join(how)}, not by who arrives last"
    if not found:
        found = [_at_most(verdict, blocks, shared) for verdict in late if verdict.cause not in _SCHEDULING]
        left = sorted({rank for verdict in late if verdict.cause in _SCHEDULING for rank in verdict.ranks})
        sentence = f"{shared}: {names(left)} late, perhaps because of that" if left else str(shared)
    more = [verdict for verdict in other_stalls(found, stalls, blocks, settings) if verdict.cause not in _SCHEDULING]
    return found + [verdict for verdict in more if not _in(by_sleep, verdict.ranks)], [*notes, *hidden, sentence]


def _bounded(one: Verdict, blocks: Blocks, shared: Sharing) -> Verdict:
    """The verdict on ranks that need more CPU time, at most at what any fix saves; else with what a ms of it may take.

    While a rank computes longer, those that wait for it may keep the CPUs busy, and so do other processes. Then each ms
    of CPU time takes as long as the others' does; else it takes a ms.
    """
    most, times = _at_most(one, blocks, shared), cpu_sharing.cpu_pace(blocks)
    if most is not one or one.cost_is == ESTIMATE or not times >= _STRETCHED:
        return most
    line = f"COST is the least: on these full CPUs 1 ms of CPU time costs 1 to {times:.0f} ms"
    return replace(one, cost_is=AT_LEAST, evidence=(*one.evidence, line))


def other_stalls(found: list[Verdict], stalls: list[Stalls], blocks: Blocks, settings: Settings) -> list[Verdict]:
    """Verdicts on stalls next to those ``found``: not on turns that ranks which need more CPU wait for."""
    stalls = [one for one in stalls if not _in_the_queue(one, found, blocks)]
    verdicts = of_stalls(stalls, blocks, settings)
    return [verdict for verdict in verdicts if verdict.cause not in _SCHEDULING or not _in(found, verdict.ranks)]


def _in(verdicts: list[Verdict], ranks: tuple[int, ...]) -> bool:
    return any(not set(verdict.ranks).isdisjoint(ranks) for verdict in verdicts)


def _in_the_queue(one: Stalls, found: list[Verdict], blocks: Blocks) -> bool:
    """Whether ranks named for more computing stall in the run queue, as more computing makes them.

    Then they compute little more in their stalls than in their other steps.
    """
    computing = {rank for verdict in found if verdict.cause == "compute" for rank in verdict.ranks}
    cpu = cpu_sharing.cpu_time(blocks)
    if cpu is None or not computing.issuperset(blocks.ranks[list(one.rows)].tolist()):
        return False
    others = np.setdiff1d(np.arange(len(blocks.steps)), one.stalled)
    more = (table.excess_of(cpu, row, one.stalled) - table.excess_of(cpu, row, others) for row in one.rows)
    return all(each < _COMPUTED * one.delay for each in more)


def _of_needs(blocks: Blocks, settings: Settings, whole_steps: bool = False) -> tuple[list[Verdict], list[str]]:
    """Verdicts of ranks that need more than their peers, by more than caches and clocks can make."""
    needs = cpu_sharing.on_needs(blocks, whole_steps)
    if needs is None:
        return [], []
    usual, steps = float(median(needs.self_time)), len(needs.steps)

    def least(slowdown: Slowdown) -> float:
        throughout = slowdown.stop - slowdown.first >= _THROUGHOUT * steps
        return usual * (_MIN_DEMAND if throughout else _MIN_DEMAND_FOR_A_WHILE)

    slowdowns = [
        slowdown
        for slowdown in straggler.find(needs, settings, shared=True)
        if slowdown.delay >= least(slowdown) and not needs.works_alone([slowdown.row])
    ]
    found, notes = of_slowdowns(slowdowns, needs, settings)
    found = [replace(one, evidence=(*one.evidence, *_later_by(one, blocks, needs))) for one in found]
    return [replace(one, shown_ms=None) for one in found], notes  # needs are no delay, which may show any part


def _later_by(one: Verdict, blocks: Blocks, needs: Blocks) -> list[str]:
    """How much later these ranks are than by what they need, and what of that they wait for a CPU."""
    queue, found = blocks.parts.get("self_runqueue"), []
    columns = np.arange(*savings.span_of(one, blocks))
    for row in np.flatnonzero(np.isin(blocks.ranks, one.ranks)).tolist():
        whose = f"rank {int(blocks.ranks[row])}: " if len(one.ranks) > 1 else ""
        late, need = (average(of.delay[row, columns]) for of in (blocks, needs))
        queued = 0.0 if queue is None else table.excess_of(queue, row, columns)
        found += wording.later_by(whose, late, need, queued)
    return found


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


def no_rank_named(
    shared: Sharing,
    blocks: Blocks,
    settings: Settings,
    use: Callable[[], Mapping[str, CpuUse]] = dict,
    fewer: str = "fewer ranks per node",
) -> Verdict:
    """The verdict without a name: inconclusive if ranks wait for an unknown reason, since none can be cleared; else how
    even the ranks are. ``use`` says of nodes who uses their CPUs; asked only where that decides what to do. ``fewer``
    is how to start as many ranks as there are CPUs."""
    row, columns = wording.waited_for_most(blocks), np.arange(len(blocks.steps))
    queued = row is not None and _queued(blocks, row, columns, settings)
    much = row is not None and float(np.nan_to_num(blocks.caused[row]).mean()) >= _COUNTS * blocks.step_ns
    if row is None or queued or not much or len(columns) < _ENOUGH:
        needs = cpu_sharing.on_needs(blocks)
        found = balanced(blocks, savings.imbalance_cost(blocks), settings, needs, queued=queued)
        if not found.advice:
            return found
        first = f"{shared}: any of them can be late by that"
        advice = telling_on_shared_cpus(use(), fewer)
        then, *others = found.evidence
        return replace(found, evidence=(f"{first}. {then[0].upper()}{then[1:]}", *others), advice=advice)
    why = table.explain(blocks, row, columns, settings)
    evidence = wording.waited_for(blocks, row, str(shared), average(blocks.delay[row]), why)
    return Verdict(kind="insufficient_data", evidence=tuple(evidence), advice=telling_on_shared_cpus(use(), fewer))


def _asking_in_samples(blocks: Blocks, settings: Settings) -> list[Verdict]:
    """The verdict on a rank that nearly always comes last, if its process uses more CPU time than any other's.

    Others may use some of theirs on waiting, which only makes the difference smaller. Empty where CPU time between
    collectives says more.
    """
    row, used = wording.waited_for_most(blocks), blocks.gauge("cpu")
    if row is None or used is None or cpu_wait.on_gpus(blocks) or cpu_sharing.cpu_time(blocks) is not None:
        return []
    last = float(mean(blocks.last)[row])
    period, most = average(blocks.period), float(np.max(np.delete(used, row)))
    more = float(used[row]) - most
    enough = last >= _THROUGHOUT and len(blocks.steps) >= _ENOUGH
    if not (enough and more >= max(_MIN_DEMAND * most, settings.min_effect)):  # NaN too
        return []
    each = f"rank {int(blocks.ranks[row])} {ms(used[row] * period)}, others at most {ms(most * period)}"
    return [
        costing(
            *(blocks, 0, len(blocks.steps), more * period),
            kind="straggler",
            ranks=(int(blocks.ranks[row]),),
            cause="compute",
            confidence=_IN_SAMPLES,
            cost_is=AT_LEAST,
            evidence=(f"CPU time of its process per step: {each}", f"it is last in {percent(last)} of collectives"),
        )
    ]


def _queued(blocks: Blocks, row: int, columns: Ints, settings: Settings) -> bool:
    """Whether a rank's longer wait for a CPU, beyond that for more computing, is what makes it late: that is known,
    and the scheduler's doing."""
    queue = blocks.parts.get("self_runqueue", blocks.parts.get("runqueue"))
    if queue is None or np.isnan(queue[row, columns]).all():
        return False
    late = average(blocks.delay[row, columns])
    beyond = table.excess_of(queue, row, columns) - table.queued_with(blocks, row, columns)
    return beyond >= settings.min_explained * late


#: Threads that used less than this part of the rank's fair share of CPUs while it was late were not runnable.
_RUNNABLE = 0.5
#: Least steps with that measurement: of five stalls the median holds even if two have another cause.
_ENOUGH_STEPS = 5
#: Causes that do not tell what a rank did while it was off the CPU.
_OFF_CPU = ("cpu_contention", "unknown", "compute")
#: A rank that sleeps for this many times its cost does so largely while others queue for a CPU.
_QUEUED_MEANWHILE = 1.25


def _find_off_cpu(blocks: Blocks, row: int, columns: Array, fair_share: float) -> tuple[float, float] | None:
    """Ns a step for which a rank's main thread neither ran nor queued in these steps (indices), and ns of CPU that its
    other threads used; ``None`` where it may have queued for a CPU, or is unmeasured."""
    blocked = cpu_wait.off_cpu_in_step(blocks, row, columns)
    known = ~np.isnan(blocked) & ~np.isnan(blocks.delay[row, columns])
    rate = blocks.gauge("cpu", columns)
    if np.sum(known) < _ENOUGH_STEPS or rate is None or np.isnan(rate[row]):
        return None
    slept, late = float(median(blocked[known])), float(median(blocks.delay[row, columns][known]))
    others = _of_other_threads(blocks, row, columns[known], rate)
    if slept < cpu_wait.MOSTLY_OFF_CPU * late or not others < _RUNNABLE * late * fair_share:
        return None
    return slept, others


def _of_other_threads(blocks: Blocks, row: int, columns: Array, rate: Floats) -> float:
    """Ns of CPU time a step that a rank's process used, less its main thread's.

    In unmeasured collectives the main thread is taken to use as large a part as the typical peer's process. ``rate``
    [R] are processes' CPU s/s.
    """
    ran = average(cpu_wait.main_cpu_time(blocks)[row, columns])
    lasted = blocks.period if blocks.took is None else blocks.took[row]  # groups that never meet have each their pace
    left = float(rate[row]) * average(lasted[columns]) - ran
    if cpu_wait.between_collectives(blocks):
        inside = mean((blocks.wait + blocks.transfer)[:, columns])
        theirs = rate * average(blocks.period[columns]) - mean(cpu_wait.main_cpu_time(blocks)[:, columns])
        part = float(median(np.delete(theirs / np.maximum(inside, 1.0), row)))
        left -= float(np.nan_to_num(np.clip(part, 0.0, 1.0) * inside[row]))
    return max(left, 0.0)


@dataclass(frozen=True)
class _Slept:
    """A verdict on ranks, ``rows`` in the blocks, that were off the CPU without queueing for at least ``ns`` in each
    step.

    ``columns`` are the steps (indices)."""

    verdict: Verdict
    rows: list[int]
    columns: Ints
    ns: float


def _verdicts_on_sleep(
    blocks: Blocks, late: list[Verdict], fair_share: float, settings: Settings
) -> tuple[list[_Slept], list[str]]:
    """Ranks that the scheduler did not delay, found by their off-CPU time without queueing, and notes on those without
    cost. ``fair_share`` is how many CPUs each rank may use.

    The delay hardly shows them where others queue for CPUs. Where ranks have different needs, only those that are
    ``late`` anyway are examined.
    """
    off = cpu_sharing.off_the_cpu(blocks)
    if off is None:
        shown = [_shown_off_cpu(verdict, [], blocks, fair_share) for verdict in late if verdict.cause == "unknown"]
        return [one for one in shown if one is not None], []
    slowdowns = straggler.find(off, settings, shared=True)
    stalls = intermittent.find(off, settings, slowdowns)
    slowdowns = intermittent.beyond_stalls(slowdowns, stalls, off, settings)

    def saving(off: Blocks, rows: Sequence[int], columns: Ints) -> Floats:
        return _saved_awake(blocks, off, [(rows, columns)])

    rows = {slowdown.row for slowdown in slowdowns}
    stalls = [stall for stall in stalls if rows.isdisjoint(stall.rows)]
    found = [*of_slowdowns(slowdowns, off, settings)[0], *of_stalls(stalls, off, settings, saving)]
    shown = [_shown_off_cpu(one, stalls, off, fair_share) for one in found]
    return _at_a_cost([one for one in shown if one is not None], off, blocks, settings)


def _shown_off_cpu(one: Verdict, stalls: list[Stalls], off: Blocks, fair_share: float) -> _Slept | None:
    """The verdict with what shows that no scheduler made its ranks late; ``None`` where that is not shown of all."""
    rows = np.flatnonzero(np.isin(off.ranks, one.ranks)).tolist()
    first, stop = np.searchsorted(off.steps, [one.since_step or 0, one.until_step or off.steps[-1] + 1])
    columns = next((each.stalled for each in stalls if sorted(each.rows) == rows), np.arange(first, stop))
    ns = min(average(off.delay[row, columns]) for row in rows)
    if one.cause not in _OFF_CPU:  # what it did meanwhile was measured
        return _Slept(one, rows, columns, ns)
    found = [_find_off_cpu(off, row, columns, fair_share) for row in rows]
    shown = [each for each in found if each is not None]
    if one.cause != "unknown" or len(shown) < len(found):
        return None
    least = min(shown, key=lambda each: each[0])
    slept, others = map(ms, least)
    per = "in such a step" if one.kind == "intermittent" else "per step"
    sentence = f"its main thread slept or was blocked for {slept} {per}; its other threads used {others} of CPU"
    return _Slept(replace(one, evidence=(*one.evidence, sentence)), rows, columns, ns)


def _at_a_cost(found: list[_Slept], off: Blocks, blocks: Blocks, settings: Settings) -> tuple[list[_Slept], list[str]]:
    """Those with a cost: others run while a rank sleeps, and a rank that sleeps while others queue delays no rank."""
    counted, notes = [], []
    for one in found:
        others = [each for each in found if each is not one]
        every, rest = ([(each.rows, each.columns) for each in these] for these in (found, others))
        alone = _saved_awake(blocks, off, [(one.rows, one.columns)])
        in_all = _saved_awake(blocks, off, every) - _saved_awake(blocks, off, rest)
        conditional = float(alone.sum()) < BY_ITSELF * float(in_all.sum())
        saved = in_all if conditional else alone
        last = int(one.columns[-1]) + 1 if one.verdict.until_step is not None else len(off.steps)
        span = slice(int(one.columns[0]) if one.verdict.since_step else 0, last)
        cost = float(saved[span].mean())
        each = one.ns * len(one.columns) / (span.stop - span.start)
        if cost < settings.min_effect * average(blocks.period[span]):
            notes.append(f"{names(one.verdict.ranks)} slept {ms(each)} per step while others waited for a CPU: no cost")
            continue
        why = f"{ms(cost)} of these {ms(each)} per step cost time: in the rest other ranks are no earlier"
        costly = replace(
            one.verdict,
            cost_ms_per_step=cost / 1e6,
            cost_ratio=cost / average(blocks.period[span]),
            confidence=min(one.verdict.confidence or 0.0, _how_sure(saved, one, off, blocks, settings)),
            shown_ms=None,
            given=tuple(sorted(rank for each in others for rank in each.verdict.ranks)) if conditional else (),
            evidence=(*one.verdict.evidence, *([why] if each >= _QUEUED_MEANWHILE * cost else [])),
        )
        counted.append(replace(one, verdict=costly))
    return counted, notes


def _how_sure(saved: Floats, one: _Slept, off: Blocks, blocks: Blocks, settings: Settings) -> float:
    """How sure its cost, [S] ns, is: each of the ranks that share CPUs is last now and then, and would save that."""
    alike = replace(off, delay=np.broadcast_to(off.delay[one.rows].mean(axis=0), off.delay.shape))
    peers = np.setdiff1d(np.arange(len(off.ranks)), one.rows).tolist()
    by_chance = mean(np.array([_saved_awake(blocks, alike, [([row], one.columns)]) for row in peers]).T)
    more = (saved - len(one.rows) * by_chance)[one.columns]
    return right(average(more) / max(settings.min_z * float(more.std()) / np.sqrt(len(more)), 1.0))


def _saved_awake(blocks: Blocks, off: Blocks, slept: Sequence[tuple[Sequence[int], Ints]]) -> Floats:
    """[S] ns by which steps are shorter without what ``slept``, rows in steps, were off the CPU for.

    The latest then is as late as others make it."""
    late = or_zero(blocks.delay)
    fixed: Floats = late.copy()
    for rows, columns in slept:
        indices = np.ix_(np.array(rows), columns)
        fixed[indices] -= np.maximum(or_zero(off.delay[indices]), 0.0)
    return np.asarray(late.max(axis=0) - fixed.max(axis=0))
