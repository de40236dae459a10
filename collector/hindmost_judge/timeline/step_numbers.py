"""Numbers of unmarked steps, consistent across the windows of a running job: old steps leave a window, the rest keep
theirs.

Counted from a window's begin, a step would have another number in each window, and an onset would move with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.model import Counted, rows
from hindmost_judge.stats.robust import median

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.model import Run
    from hindmost_judge.settings import Settings
    from hindmost_judge.timeline.join import Grid
    from hindmost_judge.types import Floats, Ints

#: The newest steps may be incomplete: the step that anchors the count has this many after it.
_AFTER = 3


def as_before(number: Ints, joined: Grid, before: Counted | None) -> Ints:
    """Step numbers [K] of collectives, -1 for those of none, that go on from those of the window before.

    Where that shares no step with this one so many lie between as have passed at the typical pace.
    """
    inside = np.flatnonzero(number >= 0)
    if before is None or not len(inside):
        return number
    numbers, first = np.unique(number[inside], return_index=True)
    began = _began(joined, inside[first])
    length = float(median(np.diff(began))) if len(began) > 1 else float("nan")
    if not (np.isfinite(began).any() and length > 0):
        return number
    at = int(np.nanargmin(np.abs(began - before.start_ns)))
    since = before.step + round((float(began[at]) - before.start_ns) / length)
    shift = max(since - int(numbers[at]), -int(numbers[0]))
    return np.where(number >= 0, number + shift, number)


def of(run: Run, blocks: Blocks | None, settings: Settings) -> Counted | None:
    """One of the newest steps, as it was counted; ``None`` where steps are marked, nothing tells when they began, or
    they are too few to be sure of: what repeats within one may have been taken for a step."""
    if blocks is None or blocks.joined is None or len(blocks.steps) < settings.min_steps:
        return None
    if rows(run.steps) or (blocks.joined.step >= 0).any():
        return None
    began = _began(blocks.joined, blocks.starts)
    known = np.flatnonzero(np.isfinite(began))[: -_AFTER or None]
    return Counted(int(blocks.steps[known[-1]]), float(began[known[-1]])) if len(known) else None


def _began(joined: Grid, columns: Ints) -> Floats:
    """[S] when the first rank came to each of these collectives, ns; NaN where none was seen to."""
    return np.asarray(np.fmin.reduce(joined.start[:, columns], axis=0), np.float64)
