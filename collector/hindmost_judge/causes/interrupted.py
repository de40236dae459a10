"""How long a rank is interrupted between a step's collectives, at a different place in each step.

A host that has to wait for a CPU launches nothing for some ms, anywhere in the step. Its GPU, which runs what is
launched at once, stops between two collectives, and the others queue there. In the next step it stops elsewhere, so
that no place shows it in most steps. The same interval in the rank's own fastest steps is what it has to compute; in
a step with more work that is scaled by what most of its intervals take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median, peers_median, with_peers
from hindmost_judge.timeline.join import QUEUED_NS

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.findings import Habit
    from hindmost_judge.timeline.join import Grid
    from hindmost_judge.types import Floats, Ints

#: A rank's fastest steps are this share of its steps.
_FASTEST = 0.1
#: An interrupted interval takes this share more than in those, and more by this share of a step.
_LONGER, _LEAST = 1.0, 0.01
#: Steps needed to know the fastest.
_ENOUGH = 20
#: Ranks compared with: enough for a typical value, whatever the size of the job.
_SAMPLE = 64


def longer(blocks: Blocks, habit: Habit) -> float:
    """Ns a step by which a slow rank is interrupted longer than its typical peer between a step's collectives.

    As far as the others wait for it; without what that is a part of, where its delay is of a place after the first."""
    grid, steps = blocks.joined, habit.steps()
    if not blocks.overlapped or grid is None or grid.gathers.any() or np.isnan(grid.start).all():
        return 0.0
    counts = np.diff(np.append(blocks.starts, grid.columns))[steps]
    usual = int(np.bincount(counts).argmax())
    alike = steps[counts == usual]
    if usual < 2 or len(alike) < _ENOUGH:
        return 0.0
    where = blocks.starts[alike][:, None] + np.arange(usual)
    rows = with_peers(habit.row, len(grid.ranks), _SAMPLE)
    late = _late(grid, rows, where)
    stood = _stood(grid, rows, where, late, blocks.step_ns)
    told = max(habit.excess - float(median(late[0, :, 0])), 0.0)
    return max(float(stood[0] - median(stood[1:])) - told, 0.0)


def _late(grid: Grid, rows: Ints, where: Ints) -> Floats:
    """[R, N, P] ns by which these ranks came later than their typical peer."""
    duration = grid.duration[:, where]
    return np.asarray((peers_median(duration.reshape(len(duration), -1)).reshape(duration.shape) - duration)[rows])


def _stood(grid: Grid, rows: Ints, where: Ints, late: Floats, step_ns: float) -> Floats:
    """[R] ns a step that these ranks were interrupted while others waited, ``late`` [R, N, P] as they came."""
    start, stop = grid.start[rows][:, where], (grid.start + grid.duration)[rows][:, where]
    gap = start[:, :, 1:] - stop[:, :, :-1]
    gap = np.where(gap > QUEUED_NS, gap, np.nan)  # who queues itself was ready before
    known = ~np.isnan(gap).all(axis=1)
    usual = np.full(known.shape, np.nan)
    usual[known] = np.nanquantile(np.moveaxis(gap, 1, 2)[known], _FASTEST, axis=1)
    pace = np.fmax(median(gap / usual[:, None], axis=2), 1.0)
    due = usual[:, None] * pace[:, :, None]
    still = (gap > (1 + _LONGER) * due) & (gap - due > _LEAST * step_ns)
    seen = np.where(still, np.clip(np.fmin(gap - due, late[:, :, 1:]), 0.0, None), 0.0)
    return np.asarray(seen.sum(axis=2).mean(axis=1))
