"""How late uneven work makes ranks in full, where collectives beside computing show a part of it only.

Whoever has more to compute is late for the first collective by what it computed until then, and for the step's end by
all of it; a slow input is as late for both. Replayed as it shows, uneven work would hide too little of the latter. How
long the steps are tells how much of the work is behind who is last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.robust import median

if TYPE_CHECKING:
    from hindmost_collector.align import Floats
    from hindmost_collector.blocks import Blocks
    from hindmost_collector.settings import Settings

#: Slopes tried between what shows and a whole step for a step's work more.
_SLOPES = 40
#: A rank slow by habit may be later at the step's end, too, by as many times what shows: a third of computing does.
_HABITS = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.25, 2.5, 3.0)
#: What is left of the steps' scatter must become less by this much, or the work has nothing to do with their length.
_BETTER = 0.95


@dataclass(frozen=True)
class Due:
    """``more`` work [R, S], as a share of a usual step's, makes late by so many times ``slope`` ns, of which a share
    ``seen`` shows. Ranks slow in computing by habit are later by so many ``times`` what shows.
    """

    more: Floats
    slope: float
    seen: float
    times: float

    @property
    def ns(self) -> Floats:
        """[R, S] by which work makes ranks late in full."""
        return np.asarray(self.slope * self.more)


def find(blocks: Blocks, more: Floats, settings: Settings) -> Due | None:
    """What ``more`` work [R, S], as a share of a usual step's, makes due; ``None`` where steps do not grow with it."""
    late = np.nan_to_num(blocks.excess)
    seen = float(np.sum(more * late) / max(float(np.sum(more**2)), 1e-30))
    if not blocks.overlapped or not 0 < seen < blocks.step_ns:
        return None
    rest = late - seen * more
    level = median(rest, axis=1)[:, None]
    level = level - median(level)
    habit = np.where(level >= settings.min_effect * blocks.step_ns, level, 0.0)
    left = {
        (slope, times): _scatter(blocks.period - (rest + (times - 1) * habit + slope * more).max(axis=0))
        for slope in np.linspace(seen, blocks.step_ns, _SLOPES)
        for times in _HABITS
    }
    slope, times = min(left, key=lambda one: left[one])
    if not left[slope, times] < _BETTER * min(left[seen, one] for one in _HABITS):
        return None
    return Due(more, float(slope), seen / float(slope), times)


def in_full(blocks: Blocks, due: Due | None) -> Blocks:
    """The same with each rank as late in the replay as its work makes it at the step's end."""
    if due is None:
        return blocks
    return replace(blocks, segments=blocks.segments + (1 - due.seen) * due.ns, due=due)


def scaled(blocks: Blocks, scale: float) -> Floats:
    """[R, K] excess of the replay that is to be taken ``scale`` times: that of work is known in full."""
    return blocks.segments if blocks.due is None else blocks.segments + (1 / scale - 1) * blocks.due.ns


def as_seen(blocks: Blocks) -> Blocks:
    """The same with work as late as it shows."""
    if blocks.due is None:
        return blocks
    return replace(blocks, segments=scaled(blocks, 1 / blocks.due.seen), due=None)


def without(blocks: Blocks) -> Blocks:
    """The same with work of one size, where it is known what work makes due."""
    return blocks if blocks.due is None else replace(blocks, segments=blocks.segments - blocks.due.ns, due=None)


def _scatter(lengths: Floats) -> float:
    """Standard deviation of what is known, the longest and shortest twentieth at their border."""
    known = lengths[~np.isnan(lengths)]
    return float(np.clip(known, *np.percentile(known, [5, 95])).std()) if len(known) else float("inf")
