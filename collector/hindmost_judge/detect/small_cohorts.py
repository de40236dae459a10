"""Two of three replicas late at once: each hides half of the other's delay, and most of a smaller one's.

With two others to compare with, a rank is set against the mean of both. Once one of the three is known to be late,
only the two others show what is usual; once two are, the third.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.detect import straggler, uneven
from hindmost_judge.timeline import pipelined

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks, Habit
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Array, Floats, Ints

#: Cohorts of three. In a larger one a single late rank does not move the median; in a cohort of two there is no third
#: rank.
_THREE = 3
#: Two of three ranks, each set against the mean of the other two, differ by this many times their real difference.
_TIMES = 1.5


def set_apart(blocks: Blocks, settings: Settings) -> Blocks:
    """The blocks of a pipeline with such ranks as late as they are; the same where no two of three are late at once."""
    if blocks.pipeline is None or not _threes(blocks.role):
        return blocks
    known = _habits(blocks, settings)
    rows = {habit.row for habit in known}
    late = {int(blocks.role[row]) for row in rows}
    beside = _beside(blocks, known, [1])
    hidden = _habits(beside, settings) if beside is not blocks else []
    hidden = [one for one in hidden if one.row not in rows and blocks.role[one.row] in late]
    return _beside(blocks, [*known, *hidden], [1, 2] if hidden else [2])


def _habits(blocks: Blocks, settings: Settings) -> list[Habit]:
    return straggler.find(uneven.levelled(blocks, settings, uneven.uncounted(blocks, settings)), settings)


def _threes(role: Ints) -> list[Ints]:
    """Rows of each cohort of three."""
    names, often = np.unique(role, return_counts=True)
    return [np.flatnonzero(role == name) for name in names[often == _THREE]]


def _beside(blocks: Blocks, habits: list[Habit], counts: list[int]) -> Blocks:
    """The same with ranks of three set against who is not late, where so many of these are late at once."""
    late = np.zeros(blocks.excess.shape, bool)
    for habit in habits:
        late[habit.row, habit.first : habit.stop] = True
    for rows in _threes(blocks.role):
        during = late[rows] & np.isin(late[rows].sum(axis=0), counts)
        if during.any():
            blocks = _of_role(blocks, rows, during)
    return blocks


def _of_role(blocks: Blocks, rows: Ints, late: Array) -> Blocks:
    """The same with these three ``rows`` compared otherwise where some of them are ``late`` [3, S]."""
    pipeline = blocks.pipeline
    assert pipeline is not None  # noqa: S101 - set_apart() has looked
    excess = blocks.excess.copy()
    excess[rows] = _compared(excess[rows], late)
    work = pipeline.excess.copy()
    of_rows = np.array([np.flatnonzero(pipeline.row == row) for row in rows])
    work[of_rows] = _compared(work[of_rows], late[:, None, pipeline.steps])
    return replace(pipelined.by(blocks, replace(pipeline, excess=work)), excess=excess)


def _compared(excess: Floats, late: Array) -> Floats:
    """[3, …] delay: with one late rank, of the other two against each other; with two, of these against the third."""
    rest, count = np.where(late, 0.0, excess).sum(axis=0), late.sum(axis=0)
    beside_third = np.where(late, (excess - rest) / _TIMES, 0.0)
    beside_other = np.where(late, excess, (2 * excess - rest) / _TIMES)
    return np.where(count == _THREE - 1, beside_third, np.where(count == 1, beside_other, excess))
