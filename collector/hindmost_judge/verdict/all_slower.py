"""All ranks slow at once, from some step on: none is behind, and yet the job is slower than it was.

The delays show nothing of it; the length of the steps does: it rises within a few steps and stays. A slow or an
occasional rise is not reported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median
from hindmost_judge.verdict.schema import STOPS, Slowed, Verdict
from hindmost_judge.verdict.whole_job import until
from hindmost_judge.verdict.wording import ms, percent
from hindmost_judge.whatif import residual

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.types import Floats

#: Steps on each side of the onset, before these are two levels and not a few odd steps.
_ENOUGH = 20
#: A change of less of a step is within what clocks and temperature do to any job.
_LONGER = 0.05
#: All but this share, in per cent, of the longer steps are longer than all but as many of the others.
_OVERLAP = 10
#: So many steps at the border are already, or still, within this share of the change at their side's level.
_BORDER, _SHARP = 8, 0.25
#: A phase is reported if it grew by this share of the step's growth.
_PART = 0.1
#: The work grew in about the ratio in which steps did, if by this share of it or more.
_BY_WORK = 0.5


def find(blocks: Blocks, found: Sequence[Verdict]) -> Slowed | None:
    """Since when all steps are longer, without what verdicts cost, and which parts of them; ``None`` where they are
    not."""
    known = [one for one in found if one.kind not in ("balanced", "input_bound", "host_bound")]
    if any(one.kind in (*STOPS, "insufficient_data") for one in known):
        return None
    period = residual.period(blocks, known)
    span = _longer(period)
    if span is None or not residual.apart(blocks, known, span.start, span.stop):
        return None
    first, stop = span.start, span.stop
    was, now = _levels(period, span)
    if was <= 0:  # verdicts cost more than these steps take: what is left of them says nothing
        return None
    phases = {name: _grew(block, span) for name, block in blocks.parts.items() if name.startswith("gpu_")}
    if not phases or not max(phases.values()) >= _PART * (now - was):
        phases = {name: _grew(block, span) for name, block in blocks.parts.items()}
    return Slowed(
        since_step=int(blocks.steps[first]),
        until_step=until(blocks, stop),
        step_ms=now / 1e6,
        was_ms=was / 1e6,
        phases_ms={name: grew / 1e6 for name, grew in phases.items() if grew >= _PART * (now - was)},
        more_work=_more_work(blocks, span, now / was - 1),
    )


def note(slowed: Slowed | None, found: Sequence[Verdict] = ()) -> list[str]:
    """The sentence on it next to verdicts ``found``, without what they cost; that on a job slow for good says it."""
    if slowed is None or (slowed.until_step is None and any(one.kind == "balanced" for one in found)):
        return []
    longer = slowed.step_ms / slowed.was_ms - 1
    when = f"at step {slowed.since_step}"
    if slowed.until_step is not None:
        when = f"from step {slowed.since_step} to {slowed.until_step}"
    levels = f"{ms(slowed.was_ms * 1e6)} before, {ms(slowed.step_ms * 1e6)} then"
    named = any(one.cost_ms_per_step and one.kind not in ("input_bound", "host_bound") for one in found)
    levels += ", without the cost of the verdicts" if named else ""
    steps = [f"steps became {percent(longer)} longer on all ranks {when} ({levels})"]
    return ["; ".join([*steps, *_why(slowed)])]


def _why(slowed: Slowed) -> list[str]:
    """Which phases grew, and whether the work did."""
    largest = sorted(slowed.phases_ms.items(), key=lambda one: -one[1])[:3]
    grown = ", ".join(f"{name.replace('gpu_', 'GPU ')} {ms(grew * 1e6)}" for name, grew in largest)
    why = [f"longer on every rank: {grown}"] if grown else []
    if slowed.more_work is not None:
        why.append(f"a step has {percent(slowed.more_work)} more samples or tokens since then")
    return why


def beside(found: Sequence[Verdict], slowed: Slowed | None) -> list[Verdict]:
    """A balanced job that became slower for good, and why."""
    if slowed is None or slowed.until_step is not None:
        return list(found)
    why, advice = _why(slowed), f"find what changed at step {slowed.since_step}: data, clocks, other jobs on the nodes"
    return [
        replace(one, evidence=(*why, *one.evidence), advice=(advice,)) if one.kind == "balanced" else one
        for one in found
    ]


def _longer(period: Floats) -> slice | None:
    """The one segment of steps, not from the start, that are longer than all others by a sharp and lasting rise."""
    if np.isnan(period).any() or len(period) < 2 * _ENOUGH:
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
    enough = min(span.start, span.stop - span.start) >= _ENOUGH
    return span if enough and _apart(period, span) and _sharp(period, span) else None


def _apart(period: Floats, span: slice) -> bool:
    was, now = _levels(period, span)
    outside = np.delete(period, np.arange(len(period))[span])
    shortest, longest = np.percentile(period[span], _OVERLAP), np.percentile(outside, 100 - _OVERLAP)
    return bool(shortest > longest and now - was >= _LONGER * was)


def _sharp(period: Floats, span: slice) -> bool:
    """Whether it rises, and falls where it does, between two steps, not in the course of many."""
    was, now = _levels(period, span)
    little = _SHARP * (now - was)
    first, stop = span.start, span.stop
    calm = [period[first - _BORDER : first]] + ([period[stop : stop + _BORDER]] if stop < len(period) else [])
    slow = [period[first : first + _BORDER], period[stop - _BORDER : stop]]
    return all(median(one) < was + little for one in calm) and all(median(one) > now - little for one in slow)


def _levels(values: Floats, span: slice) -> tuple[float, float]:
    """What is typical outside and inside."""
    return float(median(np.delete(values, np.arange(len(values))[span]))), float(median(values[span]))


def _grew(block: Floats, span: slice) -> float:
    """Ns a step by which a phase grew on every rank: the least of all that is known; 0 where nothing is."""
    rest = np.delete(block, np.arange(block.shape[1])[span], axis=1)
    more = median(block[:, span], axis=1) - median(rest, axis=1)
    return float(np.nanmin(more)) if not np.isnan(more).all() else 0.0


def _more_work(blocks: Blocks, span: slice, longer: float) -> float | None:
    """By which share a step's work grew, where that makes the steps about as much longer."""
    if blocks.work is None:
        return None
    was, now = _levels(median(blocks.work, axis=0), span)
    more = now / was - 1 if was > 0 else float("nan")
    return more if more >= _BY_WORK * longer else None
