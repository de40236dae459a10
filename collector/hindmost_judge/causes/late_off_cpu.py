"""Late ranks whose delay was not made by the scheduler: the main thread was off the CPU without queueing for one.

Where ranks outnumber CPUs, a late rank may have waited for a CPU. The kernel accounts for that: time in which a thread
neither ran nor queued is sleep, or blocking by something else. Another thread of the process, for which it waited,
would have used CPU time meanwhile: at least its fair share, had it been runnable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes import cpu_sharing, cpu_wait
from hindmost_judge.detect import intermittent, straggler
from hindmost_judge.stats.robust import average, mean, median
from hindmost_judge.verdict.intermittent import of_stalls
from hindmost_judge.verdict.slow_ranks import of_habits
from hindmost_judge.verdict.wording import ms, names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.findings import Sharing, Stalls
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Array, Floats, Ints
    from hindmost_judge.verdict.schema import Verdict

#: Threads that used less than this part of the rank's fair share of CPUs while it was late were not runnable.
_GIVEN = 0.5
#: Least steps with that measurement: of five stalls the median holds even if two have another cause.
_ENOUGH = 5
#: Causes that do not tell what a rank did while it was off the CPU.
_UNTOLD = ("cpu_contention", "unknown", "compute")
#: If a fix alone saves less than this share of what it saves after the others are fixed, the report gives the latter.
_BY_ITSELF = 0.9
#: A rank that sleeps for this many times its cost does so largely while others queue for a CPU.
_QUEUED_MEANWHILE = 1.25


@dataclass(frozen=True)
class Asleep:
    """``slept`` ns a step: a main thread neither ran nor queued for so long; ``others`` ns of CPU of other threads."""

    slept: float
    others: float

    def __str__(self) -> str:
        return (
            f"its main thread slept or was blocked for {ms(self.slept)} per step;"
            f" its other threads used {ms(self.others)} of CPU"
        )


def find(blocks: Blocks, row: int, columns: Array, shared: Sharing) -> Asleep | None:
    """How a rank was off the CPU in these steps (indices); ``None`` where it may have queued for a CPU, or is
    unmeasured."""
    blocked = cpu_wait.off_cpu_in_step(blocks, row, columns)
    known = ~np.isnan(blocked) & ~np.isnan(blocks.excess[row, columns])
    rate = blocks.gauges(columns).get("cpu")
    if np.sum(known) < _ENOUGH or rate is None or np.isnan(rate[row]):
        return None
    slept, late = float(median(blocked[known])), float(median(blocks.excess[row, columns][known]))
    others = _of_other_threads(blocks, row, columns[known], rate)
    if slept < cpu_wait.MOSTLY_OFF_CPU * late or not others < _GIVEN * late * shared.cpus / shared.ranks:
        return None
    return Asleep(slept, others)


def _of_other_threads(blocks: Blocks, row: int, columns: Array, rate: Floats) -> float:
    """Ns of CPU time a step that a rank's process used, less its main thread's.

    In unmeasured collectives the main thread is taken to use as large a part as the typical peer's process. ``rate``
    [R] are processes' CPU s/s.
    """
    ran = average(cpu_wait.main_cpu_time(blocks)[row, columns])
    left = float(rate[row]) * average(_lasted(blocks, row)[columns]) - ran
    if cpu_wait.between_collectives(blocks):
        inside = mean((blocks.wait + blocks.transfer)[:, columns])
        theirs = rate * average(blocks.period[columns]) - mean(cpu_wait.main_cpu_time(blocks)[:, columns])
        part = float(median(np.delete(theirs / np.maximum(inside, 1.0), row)))
        left -= float(np.nan_to_num(np.clip(part, 0.0, 1.0) * inside[row]))
    return max(left, 0.0)


def _lasted(blocks: Blocks, row: int) -> Floats:
    """[S] ns of a rank's steps: of its own, where it marks them, for groups that never meet have each their pace."""
    return blocks.period if blocks.took is None else blocks.took[row]


@dataclass(frozen=True)
class Slept:
    """A verdict on ranks, ``rows`` in the blocks, that were off the CPU without queueing for at least ``ns`` in each
    step.

    ``columns`` are the steps (indices)."""

    verdict: Verdict
    rows: list[int]
    columns: Ints
    ns: float


def verdicts(blocks: Blocks, late: list[Verdict], shared: Sharing, settings: Settings) -> tuple[list[Slept], list[str]]:
    """Ranks that the scheduler did not delay, found by their off-CPU time without queueing, and notes on those without
    cost.

    The delay hardly shows them where others queue for CPUs. Where ranks have different needs, only those that are
    ``late`` anyway are examined.
    """
    off = cpu_sharing.off_the_cpu(blocks)
    if off is None:
        shown = [_shown(one, [], blocks, shared) for one in late if one.cause == "unknown"]
        return [one for one in shown if one is not None], []
    habits = straggler.find(off, settings, shared=True)
    stalls = intermittent.find(off, settings, habits)
    habits = intermittent.without_stalls(habits, stalls, off, settings)
    saving = partial(_saved_by, np.nan_to_num(blocks.excess))
    rows = {habit.row for habit in habits}
    stalls = [one for one in stalls if rows.isdisjoint(one.rows)]
    found = [*of_habits(habits, off, settings)[0], *of_stalls(stalls, off, settings, saving)]
    shown = [_shown(one, stalls, off, shared) for one in found]
    return _at_a_cost([one for one in shown if one is not None], off, blocks, settings)


def _shown(one: Verdict, stalls: list[Stalls], off: Blocks, shared: Sharing) -> Slept | None:
    """The verdict with what shows that no scheduler made its ranks late; ``None`` where that is not shown of all."""
    rows = np.flatnonzero(np.isin(off.ranks, one.ranks)).tolist()
    first, stop = np.searchsorted(off.steps, [one.since_step or 0, one.until_step or off.steps[-1] + 1])
    columns = next((each.stalled for each in stalls if sorted(each.rows) == rows), np.arange(first, stop))
    ns = min(average(off.excess[row, columns]) for row in rows)
    if one.cause not in _UNTOLD:  # what it did meanwhile was measured
        return Slept(one, rows, columns, ns)
    found = [find(off, row, columns, shared) for row in rows]
    shown = [each for each in found if each is not None]
    if one.cause != "unknown" or len(shown) < len(found):
        return None
    told = str(min(shown, key=lambda each: each.slept))
    return Slept(replace(one, evidence=(*one.evidence, told)), rows, columns, ns)


def _at_a_cost(found: list[Slept], off: Blocks, blocks: Blocks, settings: Settings) -> tuple[list[Slept], list[str]]:
    """Those with a cost: others run while a rank sleeps, and a rank that sleeps while others queue delays no rank."""
    kept, notes = [], []
    for one in found:
        others = [each for each in found if each is not one]
        alone, in_all = _saved(blocks, off, [one]), _saved(blocks, off, found) - _saved(blocks, off, others)
        given = float(alone.sum()) < _BY_ITSELF * float(in_all.sum())
        saved = in_all if given else alone
        span = slice(int(one.columns[0]) if one.verdict.since_step else 0, int(one.columns[-1]) + 1)
        cost = float(saved[span].mean())
        each = one.ns * len(one.columns) / (span.stop - span.start)
        if cost < settings.min_effect * average(blocks.period[span]):
            notes.append(f"{names(one.verdict.ranks)} slept {ms(each)} per step while others waited for a CPU: no cost")
            continue
        told = replace(
            one.verdict,
            cost_ms_per_step=cost / 1e6,
            cost_ratio=cost / average(blocks.period[span]),
            shown_ms=None,
            given=tuple(sorted(rank for each in others for rank in each.verdict.ranks)) if given else (),
            evidence=(*one.verdict.evidence, *_meanwhile(each, cost)),
        )
        kept.append(replace(one, verdict=told))
    return kept, notes


def _saved(blocks: Blocks, off: Blocks, found: list[Slept]) -> Floats:
    """[S] ns by which steps are shorter had none of these slept."""
    late = np.nan_to_num(blocks.excess)
    fixed = late
    for one in found:
        fixed = _awake(fixed, off, one.rows, one.columns)
    return np.asarray(late.max(axis=0) - fixed.max(axis=0))


def _saved_by(late: Floats, off: Blocks, rows: Sequence[int], columns: Ints) -> Floats:
    """[S] ns by which steps are shorter had these rows of [R, S] ns not slept in them."""
    return np.asarray(late.max(axis=0) - _awake(late, off, rows, columns).max(axis=0))


def _awake(late: Floats, off: Blocks, rows: Sequence[int], columns: Ints) -> Floats:
    """How late ranks are without what these were off the CPU for: the latest then is as late as others make it."""
    fixed: Floats = late.copy()
    for row in rows:
        fixed[row, columns] -= np.maximum(np.nan_to_num(off.excess[row, columns]), 0.0)
    return fixed


def _meanwhile(slept: float, cost: float) -> list[str]:
    """Why a rank that sleeps for so many ns a step costs fewer."""
    if slept < _QUEUED_MEANWHILE * cost:
        return []
    return [f"{ms(cost)} of these {ms(slept)} per step cost time: in the rest other ranks use its CPU"]


def not_named(queued: list[int], unknown: list[int]) -> str:
    """Which ranks came late, and why none is named where they share CPUs; continues a sentence that says they do.

    The ``queued`` ranks waited for a CPU for as long as they were late; for the others that is unknown.
    """
    late = [f"{names(queued)} late because of that"] if queued else []
    if unknown:
        late.append(f"{names(unknown)} late, perhaps because of that (no other cause was measured)")
    return f": {'; '.join(late)}" if late else ""
