"""The full delay of a rank, where collectives overlapped with computing show only a part of it.

A rank with more work is late for the first collective by what it computed until then, and for the step's end by all of
it; the length of the steps shows how much of the work is behind the delays. A slow GPU is slow in all of a step, of
which forward and the start of backward show. Changes from one step to the next do not scale like that: a stall is over
when it shows, and the noise of n times as much computing is larger by the root of n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hindmost_judge.blocks import Blocks, Slowdown, WorkDelay
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import MAD_TO_SIGMA, median, or_zero, percentile
from hindmost_judge.types import Floats
from hindmost_judge.whatif.savings import without_slowdowns

#: Slopes tried, from the visible one to a whole step for one more step's work.
_SLOPES = 40
#: A persistently slow rank may be later at the step's end by these factors of its visible delay: a third of computing
#: is visible.
_USUAL_FACTORS = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.25, 2.5, 3.0)
#: The remaining scatter of the steps must fall to this share, or the work does not explain their length.
_BETTER = 0.95


def work_delay_of(blocks: Blocks, more: Floats, typical: Floats, settings: Settings) -> WorkDelay | None:
    """The delay due to ``more`` work [R, S], in shares of a usual step's; ``None`` where steps do not grow with it.

    ``typical`` [S] is the surplus of the typical rank's work over its usual, which lengthens the step, too. Where it is
    negative, the most loaded rank's surplus counts from there; without that, steps would seem to grow too little.
    """
    late = or_zero(blocks.delay)
    each = shown(late, more, overlapped=blocks.overlapped)
    seen = float(median(each))
    if not blocks.overlapped or not 0 < seen < blocks.step_ns:
        return None
    rest = late - each * more
    level = median(rest, axis=1)[:, None]
    level = level - median(level)
    slowdown = np.where(level >= settings.min_effect * blocks.step_ns, level, 0.0)
    left = {
        (slope, times): _scatter(blocks.period - (rest + (times - 1) * slowdown + slope * (more + typical)).max(axis=0))
        for slope in np.linspace(seen, blocks.step_ns, _SLOPES)
        for times in _USUAL_FACTORS
    }
    slope, times = min(left, key=lambda one: left[one])
    if not left[slope, times] < _BETTER * min(left[seen, factor] for factor in _USUAL_FACTORS):
        return None
    return WorkDelay(more, float(slope), each / float(slope), times)


#: A delay, or a change of it, beyond this many standard deviations has another reason than the work.
STALL = 5.0


def shown(late: Floats, more: Floats, *, overlapped: bool) -> Floats:
    """[R, 1] ns that each rank comes later for one more step's work, by what changes from one step to the next.

    With overlapped collectives a rank is seen at one place of the step, and of its work only what is before that;
    otherwise all work of all ranks is seen.
    """
    work, change = np.diff(more, axis=1), np.diff(or_zero(late), axis=1)
    most = STALL * MAD_TO_SIGMA * median(np.abs(change), axis=1)[:, None]
    both, squares = (work * np.clip(change, -most, most)).sum(axis=1), (work**2).sum(axis=1)
    if not overlapped:
        both, squares = np.full_like(both, both.sum()), np.full_like(squares, squares.sum())
    return np.asarray(np.maximum(both / np.maximum(squares, 1e-30), 0.0)[:, None])


def without(blocks: Blocks) -> Blocks:
    """The same with work of one size, where the delay due to work is known."""
    return _of_work(blocks, 0.0)


def as_seen(blocks: Blocks) -> Blocks:
    """The same with each rank as late as it shows."""
    return _of_work(blocks, blocks.work_delay.seen if blocks.work_delay is not None else 1.0)


def _of_work(blocks: Blocks, share: float | Floats) -> Blocks:
    """The same with such a share of the delay due to work."""
    due = blocks.work_delay
    if due is None:
        return blocks
    return replace(blocks, intervals=blocks.intervals + (share - 1) * due.ns, work_delay=None)


def _scatter(lengths: Floats) -> float:
    """Standard deviation of what is known, the longest and shortest twentieth at their border."""
    known = lengths[~np.isnan(lengths)]
    return float(np.clip(known, percentile(known, 5), percentile(known, 95)).std()) if len(known) else float("inf")


def scaled(blocks: Blocks, slowdowns: Sequence[Slowdown], scale: float) -> Floats:
    """[R, K] delays of the replay that is to be taken ``scale`` times, with what is fully known at its size then.

    That is a delay due to uneven work; where it is known, little else is transient. Otherwise a transient is, which is
    what differs from a rank's usual delay, with its ``slowdowns`` fixed.
    """
    if blocks.work_delay is not None:
        return _of_work(blocks, 1 / scale).intervals
    if scale <= 1.0:
        return blocks.intervals
    rest = without_slowdowns(blocks, slowdowns)
    passes = rest - median(rest, axis=1)[:, None]
    noise = STALL * MAD_TO_SIGMA * float(median(np.abs(passes)))
    at_scale = passes + (np.sqrt(scale) - 1) * np.clip(passes, -noise, noise)
    return np.asarray(blocks.intervals - passes + at_scale / scale)
