"""Verdicts of ranks that stall now and then: one for those that stall together for one cause, each at what it adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hindmost_judge.blocks import Blocks, Slowdown, Stalls
from hindmost_judge.causes import cpu_wait, table
from hindmost_judge.causes.table import Cause
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import average, or_zero
from hindmost_judge.timeline.cohorts import behind_early_ranks
from hindmost_judge.types import Floats, Ints
from hindmost_judge.verdict import wording
from hindmost_judge.verdict.schema import Verdict
from hindmost_judge.verdict.whole_job import costing
from hindmost_judge.whatif import savings
from hindmost_judge.whatif.hidden_delay import as_seen
from hindmost_judge.whatif.savings import BY_ITSELF, imbalance_cost, stall_saving, without_slowdowns, without_stalls

#: [S] ns that the repair of these rows in these steps saves.
Saving = Callable[[Blocks, Sequence[int], Ints], Floats]
#: Reasons for longer computing, which differ in what the typical rank does meanwhile.
_OF_GPU = ("compute", "gpu_throttle", "gpu_contention", "workload")
#: Ranks stall together that share so much of the steps in which either does.
_TOGETHER = 0.5


def of_stalls(
    stalls: list[Stalls],
    blocks: Blocks,
    settings: Settings,
    saving: Saving = stall_saving,
    slowdowns: Sequence[Slowdown] = (),
) -> list[Verdict]:
    """Verdicts of ranks that stall now and then, where that costs enough to act on, by ``saving``.

    Ranks late by ``slowdowns`` are fixed before, and so are ranks whose stalls save more: among ranks that are late in
    the same steps, fixing any one alone saves nothing.
    """
    if any(one.widespread for one in stalls):  # against early peers; a pipeline's replay knows their median
        delay, intervals = (behind_early_ranks(or_zero(one), blocks.cohort) for one in (blocks.delay, blocks.intervals))
        blocks = replace(blocks, delay=delay, intervals=intervals if blocks.pipeline is None else blocks.intervals)
    left = _grouped([(one, cause_of(blocks, one, stalls, settings)) for one in stalls])
    own: Blocks = blocks
    found: list[Verdict] = []
    blocks = replace(blocks, intervals=without_slowdowns(blocks, slowdowns)) if slowdowns else blocks
    before = sorted({int(blocks.ranks[slowdown.row]) for slowdown in slowdowns})
    while left:
        saved = [saving(blocks, one.rows, one.stalled) for one, _ in left]
        most = int(np.argmax([float(one.sum()) for one in saved]))
        (one, cause), seen = left.pop(most), saved[most]
        by_itself = saving(own, one.rows, one.stalled) if before else seen
        conditional_on = before if float(by_itself.mean()) < BY_ITSELF * float(seen.mean()) else []
        rest = blocks
        for other, _ in left:
            rest = _repaired(rest, other)
        in_all = saving(rest, one.rows, one.stalled)
        verdict = _verdict(one, cause, seen, in_all, conditional_on, _repaired(rest, one), settings)
        if verdict is not None:
            found.append(verdict)
            blocks = _repaired(blocks, one)
            before = sorted({*before, *verdict.ranks})
    return found


def _repaired(blocks: Blocks, one: Stalls) -> Blocks:
    """The same with none of its ranks late in its steps."""
    return replace(blocks, intervals=without_stalls(blocks, one.rows, one.stalled))


def cause_of(blocks: Blocks, one: Stalls, stalls: list[Stalls], settings: Settings) -> Cause:
    """What makes a rank stall; where most of its peers do, against the others."""
    if one.widespread:
        others = [row for other in stalls for row in other.rows if row not in one.rows]
        parts = {name: part.copy() for name, part in blocks.parts.items()}
        for part in parts.values():
            part[others] = np.nan
        found = table.explain(replace(blocks, parts=parts), one.rows[0], one.stalled, settings)
        # What the GPU's samples and the work say is set against the typical rank, which stalls, too.
        return replace(found, cause="unknown", partial="compute") if found.cause in _OF_GPU else found
    return _ran_meanwhile(blocks, one, table.explain(blocks, one.rows[0], one.stalled, settings), settings)


#: A process that ran for up to this many times the delay that its stalls show computed in them; GPUs hide the rest.
_HIDDEN = 2.0


def _ran_meanwhile(blocks: Blocks, one: Stalls, why: Cause, settings: Settings) -> Cause:
    """The cause of stalls, with computing for an unknown one if the rank's process used as much more CPU as it stalls.

    That much more than any peer's, over the whole run: samples are too few to show single stalls.
    """
    rates, row = blocks.gauge("cpu"), one.rows[0]
    if why.cause != "unknown" or rates is None:
        return why
    more = float(rates[row] - np.max(np.delete(rates, row))) * float(np.nansum(blocks.period))
    stalled = one.delay * len(one.stalled)
    if not settings.min_explained * stalled <= more <= _HIDDEN * stalled:
        return why
    shares = (("compute", more / len(one.stalled)),)
    return replace(why, cause="compute", explained=min(more / stalled, 1.0), partial=None, shares_ns=shares)


def _grouped(each: list[tuple[Stalls, Cause]]) -> list[tuple[Stalls, Cause]]:
    """Ranks with one cause as one: where that is unknown, those that stall in the same steps, or whose fellows do."""
    found: list[tuple[Stalls, Cause]] = []
    waiting = list(each)
    while waiting:
        together = [waiting.pop(0)]
        for one in together:  # which grows meanwhile
            together += [other for other in waiting if _are_one(one, other)]
            waiting = [other for other in waiting if not _are_one(one, other)]
        stalls = [one for one, _ in together]
        stalled = np.unique(np.concatenate([one.stalled for one in stalls]))
        rows = tuple(row for one in stalls for row in one.rows)
        share = min(sum(one.share for one in stalls), 1.0)
        largest = max(stalls, key=lambda one: one.delay)
        found.append((replace(largest, rows=rows, stalled=stalled, share=share), together[0][1]))
    return found


def _are_one(one: tuple[Stalls, Cause], other: tuple[Stalls, Cause]) -> bool:
    """Whether both have one cause, and begin and end about together, as far as the longest pause of either tells."""
    (first, cause), (second, its_cause) = (one[0].stalled, one[1].cause), (other[0].stalled, other[1].cause)
    pause = max(int(np.diff(stalled).max(initial=0)) for stalled in (first, second))
    apart = max(abs(int(first[at]) - int(second[at])) for at in (0, -1))
    if cause != its_cause or apart > pause:
        return False
    both, either = len(np.intersect1d(first, second)), len(np.union1d(first, second))
    return cause != "unknown" or both >= _TOGETHER * either


def _verdict(
    one: Stalls, cause: Cause, seen: Floats, in_all: Floats, conditional_on: list[int], rest: Blocks, settings: Settings
) -> Verdict | None:
    """The verdict on ranks whose repair saves ``seen`` [S] ns, ``in_all`` once all others are repaired; ``rest`` is
    what is left then. ``None`` where that is too little.
    """
    saved = seen * cause.beyond
    grew, total = savings.longer_when(rest, one.stalled), float(saved.sum())
    if one.widespread and rest.overlapped and grew is not None and total > 0:
        saved = saved * max(grew[0] * len(one.stalled) / total, 1.0)  # during backward most of the delay does not show
    shown, worth = (max(float(each.mean()), float(in_all.mean())) for each in (seen, saved))
    without_owner = settings.min_share_of_waste * (shown + imbalance_cost(as_seen(rest)))
    least = settings.effect(len(rest.ranks)) * average(rest.period)
    if worth < least or shown < without_owner:
        return None
    first = int(one.stalled[0])
    # From the start, unless that is longer ago than any two stalls.
    span = np.arange(0 if first <= int(np.diff(one.stalled).max(initial=0)) else first, len(rest.steps))
    gain = float(saved[span].mean())
    if cause.cause == "input":  # workers of those that wait catch up meanwhile: their full queues hide what they need
        change = savings.observed_change(rest, slice(int(span[0]), len(rest.steps)), longest=np.inf)
        replayed, gain = gain, gain if change is None else change.cost(gain, gain, None)
        if worth * gain < least * replayed:
            return None
    held_up = cpu_wait.held_up_transfers(rest, list(one.rows), span, gain) if cause.cause == "cpu_contention" else 0.0
    ranks = tuple(sorted(int(rest.ranks[row]) for row in one.rows))
    return costing(
        *(rest, int(span[0]), len(rest.steps), gain + held_up),
        kind="intermittent",
        ranks=ranks,
        cause=cause.cause,
        shown_ms=float(seen[span].mean()) / 1e6,
        given=tuple(one for one in conditional_on if one not in ranks),
        confidence=float(np.clip(one.explained_share or one.share, 0.5, 0.99)),
        explained=cause.explained,
        partial=cause.partial,
        evidence=(
            *wording.stalls(rest, one, cause, (gain + held_up) * len(span), int(span[0])),
            *wording.held_up(held_up),
        ),
        on_host=rest.lanes is not None and cause.cause == "compute",
    )
