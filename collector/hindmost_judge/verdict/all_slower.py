"""All ranks, or most of them, slow at once: no rank is behind the typical one, and yet the job is slower than it was.

All ranks: the length of the steps shows it, which rises within a few steps and stays. Most ranks: the typical rank is
slow, and only the few others stand out, ahead; steps become longer if most ranks become slow, and no shorter if a few
become fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.detect import straggler
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import ENOUGH_STEPS, median
from hindmost_judge.types import Floats
from hindmost_judge.verdict.schema import STOPS, UNSURE, Slowed, Verdict
from hindmost_judge.verdict.whole_job import costing, until
from hindmost_judge.verdict.wording import are, called, duration, ms, names, percent
from hindmost_judge.whatif import savings

#: A change of less of a step is within what clocks and temperature do to any job.
_STEPS_LONGER = 0.05
#: All but this share, in per cent, of the longer steps are longer than all but as many of the others.
_OVERLAP = 10
#: So many steps at the border are already, or still, within this share of the change at their side's level.
_BORDER, _SHARP = 8, 0.25
#: A phase is reported if it grew by this share of the step's growth.
_PART = 0.1
_QUEUE = ("runqueue", "self_runqueue")
#: Waits for a CPU are why steps are longer from this part of it on.
_MOST = 0.5
#: Measures of what a rank did in its phases.
_WITHIN = {
    **dict.fromkeys(("cpu", "self_cpu"), "CPU time"),
    **dict.fromkeys(_QUEUE, "waiting for a CPU"),
    "self_blocked": "off the CPU",
}
#: The work grew in about the ratio in which steps did, if by this share of it or more.
_BY_WORK = 0.5


def find_slowed(blocks: Blocks, found: Sequence[Verdict]) -> Slowed | None:
    """Since when all steps are longer, without what verdicts cost, and which parts of them; ``None`` where they are
    not."""
    known = [verdict for verdict in found if verdict.kind not in ("balanced", "input_bound", "host_bound")]
    if len(blocks.ranks) == 1:  # it lacks only peers
        known = [verdict for verdict in known if verdict.kind != "insufficient_data"]
    if any(one.kind in (*STOPS, "insufficient_data") for one in known):
        return None
    period = savings.residual_period(blocks, known)
    span = slowed_period(period)
    if span is None or not savings.began_apart(blocks, known, span.start, span.stop):
        return None
    first, stop = span.start, span.stop
    was, now = _levels(period, span)
    if was <= 0:  # verdicts cost more than these steps take: what is left of them says nothing
        return None
    phases = {name: _grew(block, span) for name, block in blocks.parts.items() if name.startswith("gpu_")}
    if not phases or not max(phases.values()) >= _PART * (now - was):
        phases = {name: _grew(block, span) for name, block in blocks.parts.items()}
    more = None
    if blocks.work is not None:
        less, work = _levels(median(blocks.work, axis=0), span)
        share = work / less - 1 if less > 0 else float("nan")
        more = share if share >= _BY_WORK * (now / was - 1) else None  # makes steps about as much longer
    return Slowed(
        since_step=int(blocks.steps[first]),
        until_step=until(blocks, stop),
        step_ms=now / 1e6,
        was_ms=was / 1e6,
        phases_ms={name: grew / 1e6 for name, grew in phases.items() if grew >= _PART * (now - was)},
        more_work=more,
    )


def slowed_note(slowed: Slowed | None, found: Sequence[Verdict]) -> list[str]:
    """The sentence on it next to verdicts ``found``, without what they cost; that on a job slow for good says it."""
    if slowed is None or with_slowed(found, slowed) != list(found):
        return []
    since, until = slowed.since_step, slowed.until_step
    when = f"since step {since} steps take" if until is None else f"steps {since} to {until} took"
    named = any(verdict.cost_ms_per_step and verdict.kind not in ("input_bound", "host_bound") for verdict in found)
    rest = ", COST not counted" if named else ""
    longer = f"{duration(slowed.step_ms)} instead of {duration(slowed.was_ms)} on every rank{rest}"
    return ["; ".join([f"{when} {longer}", *_why(slowed)])]


def _why(slowed: Slowed) -> list[str]:
    largest = sorted(slowed.phases_ms.items(), key=lambda one: -one[1])
    phases, within = (
        ", ".join([f"{_WITHIN.get(name) or called(name)} {ms(grew * 1e6)}" for name, grew in part][:3])
        for part in ([one for one in largest if (one[0] in _WITHIN) is inside] for inside in (False, True))
    )
    grown = f"{phases}; of that {within}" if phases and within else phases or within
    why = [f"longer: {grown}"] if grown else []
    if slowed.more_work is not None:
        why.append(f"a step has {percent(slowed.more_work)} more items since then")
    return why


def with_slowed(found: Sequence[Verdict], slowed: Slowed | None) -> list[Verdict]:
    """A job without a slow rank, or of one rank, that became slower for good, and why."""
    if slowed is None or slowed.until_step is not None:
        return list(found)
    why = _why(slowed)
    queued = max(slowed.phases_ms.get(name, 0.0) for name in _QUEUE) >= _MOST * (slowed.step_ms - slowed.was_ms)
    advice = f"find what changed at step {slowed.since_step}: data, clocks, other jobs on the nodes"
    if queued:
        advice = f"find what has used the CPUs since step {slowed.since_step}"
    return [
        replace(one, evidence=(*why, *one.evidence), advice=(advice, *(one.advice if one.kind != "balanced" else ())))
        if one.kind in ("balanced", "insufficient_data")
        else one
        for one in found
    ]


def slowed_period(period: Floats) -> slice | None:
    """The one segment of steps, not from the start, that are longer than all others by a sharp and lasting rise."""
    if np.isnan(period).any() or len(period) < 2 * ENOUGH_STEPS:
        return None
    low, high = np.percentile(period, [_OVERLAP, 100 - _OVERLAP])
    for _ in range(2):
        above = period > (low + high) / 2
        if above.all() or not above.any():
            return None
        low, high = float(median(period[~above])), float(median(period[above]))
    sums = np.concatenate([[0.0], np.cumsum(np.clip(period - (low + high) / 2, low - high, high - low))])
    least = np.minimum.accumulate(sums)
    stop = int(np.argmax(sums - least))
    span = slice(int(np.argmin(sums[: stop + 1])), stop)
    enough = min(span.start, span.stop - span.start) >= ENOUGH_STEPS
    if not enough:
        return None
    was, now = _levels(period, span)
    outside = np.delete(period, np.arange(len(period))[span])
    apart = np.percentile(period[span], _OVERLAP) > np.percentile(outside, 100 - _OVERLAP)
    return span if apart and now - was >= _STEPS_LONGER * was and _sharp(period, span) else None


def _sharp(period: Floats, span: slice) -> bool:
    """Whether it rises, and falls where it does, between two steps, not in the course of many."""
    was, now = _levels(period, span)
    little = _SHARP * (now - was)
    first, stop = span.start, span.stop
    calm = [period[first - _BORDER : first]] + ([period[stop : stop + _BORDER]] if stop < len(period) else [])
    slow = [period[first : first + _BORDER], period[stop - _BORDER : stop]]
    return all(median(one) < was + little for one in calm) and all(median(one) > now - little for one in slow)


def _levels(values: Floats, span: slice) -> tuple[float, float]:
    return float(median(np.delete(values, np.arange(len(values))[span]))), float(median(values[span]))


def _grew(block: Floats, span: slice) -> float:
    """Ns a step by which a phase grew on every rank: the least of all that is known; 0 where nothing is."""
    rest = np.delete(block, np.arange(block.shape[1])[span], axis=1)
    more = median(block[:, span], axis=1) - median(rest, axis=1)
    return float(np.nanmin(more)) if not np.isnan(more).all() else 0.0


#: Ranks ahead by less of a step are what healthy ranks differ by, with a batch or an optimizer's part a little smaller.
_AHEAD = 0.05
#: Ranks that are ahead since the same few steps are so for one reason.
_TOGETHER = 8
#: Steps must surely have become longer by this share of what the few are ahead: the rest may be hidden by transfers.
_OF_LEAD = 0.5


@dataclass(frozen=True)
class Majority:
    """The few ``ahead`` of ``ranks`` in steps [first, stop) by index, and by how much steps grew then (``None``: from
    the start)."""

    first: int
    stop: int
    ranks: tuple[int, ...]
    ahead: tuple[int, ...]
    by_ns: float
    step_ns: float
    change: savings.StepTimeChange | None


def find_majority(blocks: Blocks, settings: Settings) -> Majority | None:
    """The few ranks that are ahead of most others, persistently and for the same steps; ``None`` where none are."""
    if blocks.pipeline is not None or len(blocks.ranks) < 3:
        return None
    strict = replace(settings, min_effect=_AHEAD, min_effect_of_few=_AHEAD)
    slowdowns = straggler.find(replace(blocks, delay=-blocks.delay), strict)
    rows = sorted(set(range(len(blocks.ranks))) - {slowdown.row for slowdown in slowdowns})
    if not slowdowns or 2 * len(slowdowns) >= len(blocks.ranks):
        return None
    begun, ended = [slowdown.first for slowdown in slowdowns], [slowdown.stop for slowdown in slowdowns]
    if max(np.ptp(begun), np.ptp(ended)) > _TOGETHER:
        return None
    first, stop = int(np.median(begun)), int(np.median(ended))
    change = None
    by_ns = float(np.median([slowdown.delay for slowdown in slowdowns]))
    if (first, stop) != (0, len(blocks.steps)):
        change = savings.observed_change(blocks, slice(first, stop))
        if change is None or change.longer - 2 * change.noise < _OF_LEAD * by_ns:
            return None  # steps as long as before: the few became faster
    ranks, ahead = (tuple(sorted(int(blocks.ranks[row]) for row in of)) for of in (rows, [h.row for h in slowdowns]))
    return Majority(first, stop, ranks, ahead, by_ns, float(median(blocks.period)), change)


def majority_verdict(most: Majority, change: savings.StepTimeChange, alone: Verdict | None, blocks: Blocks) -> Verdict:
    """The verdict on most ranks, which became slow; ``alone`` is that on one of them against the few ahead, if any."""
    steps = f"steps became {ms(change.longer)} longer; {are(most.ahead, f'waits {ms(most.by_ns)} more in each')}"
    cause = alone.cause if alone is not None and alone.cause else "unknown"
    of_one = [f"rank {alone.ranks[0]} against these: {line}" for line in alone.evidence] if alone is not None else []
    return costing(
        *(blocks, most.first, most.stop, change.longer),
        kind="straggler",
        ranks=most.ranks,
        cause=cause,
        confidence=0.9,
        explained=alone.explained if alone is not None else None,
        partial=alone.partial if alone is not None else None,
        evidence=(f"{len(most.ranks)} of {len(blocks.ranks)} ranks became slow together: {steps}", *of_one),
        shown_ms=0.0,
    )


def with_majority(balanced: Verdict, most: Majority) -> Verdict:
    """The verdict that names no rank, with what is known of the few ahead; it clears none."""
    by = f"{ms(most.by_ns)} per step ({percent(most.by_ns / most.step_ns)})"
    who = are(most.ahead, f"is {by} faster than the other {len(most.ranks)}")
    has = "it has" if len(most.ahead) == 1 else "they have"
    evidence = (f"{who}: {has} less work, or these are slow", *balanced.evidence)
    advice = f"compare batches and clocks of {names(most.ahead)} with those of the others"
    return replace(balanced, confidence=UNSURE, evidence=evidence, advice=(advice,))
