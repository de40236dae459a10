"""Which step each collective is of: by the pattern in which they repeat, or else by the steps that ranks marked.

Evaluation and logging between steps break a pattern. Then each rank says when its own steps began and ended, and when
it called: no clock is compared with another. A GPU's clock is not the host's, so this is for collectives that are timed
where they are called.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.model import UNMEASURED, rows
from hindmost_judge.stats.robust import median
from hindmost_judge.timeline import step_numbers, steps

if TYPE_CHECKING:
    from hindmost_judge.model import Counted, Table
    from hindmost_judge.timeline.join import Grid
    from hindmost_judge.types import Floats, Ints

#: Share of the marked steps that must make the same collectives for these to define a step.
_ALIKE = 0.8
#: A job with fewer marked steps has just begun: a pattern that repeats more often than these lies within a step.
_FEW = 10


def numbers(grid: Grid, own: Floats, table: Table, before: Counted | None = None) -> Ints:
    """Step number of every collective [K]; -1 for what belongs to none. ``own`` [R, K] ns is the time before each.

    ``table`` are the training steps of all ranks; where there are none numbers go on from those of the window before.
    """
    gap, marked = median(own, axis=0), len(np.unique(table["step"]))
    apart = not grid.gpu_time or bool(grid.peer_wait.any())  # a pipeline's gradients follow one another after it
    found = steps.infer(grid.token, gap, _marks(grid, table), apart=apart)
    if not marked:
        return step_numbers.as_before(found, grid, before)
    count = len(np.unique(found[found >= 0]))
    if marked < _FEW and count > 2 * (marked + 1):
        return np.full_like(found, -1)
    if count >= max(_ALIKE * marked, 1):
        return found
    called = _called_in(grid, table)  # what repeats is more than a step: an evaluation every so many of them
    return called if (called >= 0).any() else found


def _marks(grid: Grid, table: Table) -> steps.Marks | None:
    """The marked steps with the start times of the collectives; ``None`` where none are marked."""
    number, which = np.unique(table["step"], return_inverse=True) if rows(table) else (np.empty(0, np.int64), None)
    if which is None:
        return None
    start = np.full(len(number), np.inf)
    np.minimum.at(start, which, np.where(table["start_ns"] >= 0, table["start_ns"], np.inf).astype(np.float64))
    known = np.isfinite(start)
    return steps.Marks(number[known], np.maximum.accumulate(start[known]), median(grid.start, axis=0))


def _called_in(grid: Grid, table: Table) -> Ints:
    """[K] the marked step in which all ranks called; -1 for none, and for a step that makes others than usual."""
    nowhere = np.full(grid.columns, -1, np.int64)
    if grid.gpu_time or not rows(table):
        return nowhere
    found = np.stack([_of_rank(grid, row, table) for row in range(len(grid.ranks))])
    seen = ~np.isnan(grid.start)
    number = np.where(seen, found, -1).max(axis=0)
    number[(seen & (found != number)).any(axis=0)] = -1
    each = {int(step): tuple(grid.token[number == step].tolist()) for step in np.unique(number[number >= 0])}
    if not each:
        return nowhere
    usual, times = Counter(each.values()).most_common(1)[0]
    if times < _ALIKE * len(np.unique(table["step"])):
        return nowhere
    return np.where(np.isin(number, [step for step in each if each[step] == usual]), number, -1)


def _of_rank(grid: Grid, row: int, table: Table) -> Ints:
    """[K] the marked step within which this rank started each collective, -1 for none."""
    known = (table["start_ns"] >= 0) & (table["duration_ns"] != UNMEASURED)
    mine = np.flatnonzero((table["rank"] == grid.ranks[row]) & known)
    if len(mine) == 0:
        return np.full(grid.columns, -1, np.int64)
    mine = mine[np.argsort(table["start_ns"][mine], kind="stable")]
    start = table["start_ns"][mine].astype(np.float64)
    called = np.nan_to_num(grid.start[row], nan=-np.inf)
    place = np.searchsorted(start, called, side="right") - 1
    inside = (place >= 0) & (called < start[place] + table["duration_ns"][mine][place])
    return np.where(inside, table["step"][mine][place], -1).astype(np.int64)
