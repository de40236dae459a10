"""How long each step of a job took, and how long of that the typical rank waited in collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median, sums_by_step
from hindmost_judge.timeline import cohorts, join, phases

if TYPE_CHECKING:
    from hindmost_judge.model import Table
    from hindmost_judge.timeline.join import Grid
    from hindmost_judge.types import Array, Floats, Ints

#: Ranks sampled for the typical waiting time.
_SAMPLE = 512
#: Groups of ranks whose steps are longer by this factor are not part of the others' steps.
_OWN_PACE = 1.1


def of_steps(joined: Grid, starts: Ints, numbers: Ints, table: Table) -> Floats:
    """[S] step time: from the end of one step's collectives to the next's on a GPU's clock, else from the marks.

    Hosts run ahead of their GPUs, so that the time between two marks of a host is not the time a step takes.
    """
    told = phases.pivot(table, joined.ranks, numbers, "duration_ns")
    if told is not None and (not joined.gpu_time or np.isnan(joined.start).all()):
        return _slowest(told, joined)
    end = joined.start + joined.duration
    ends = end[:, np.append(starts[1:], joined.columns) - 1]
    lengths = np.full(ends.shape, np.nan)
    lengths[:, 1:] = np.diff(ends, axis=1)
    lengths[:, 1:][:, _left_out(numbers)] = np.nan
    return _slowest(lengths, joined)


def _left_out(numbers: Ints) -> Array:
    """[S - 1] whether steps are missing before each but the first, as in a torn segment.

    The time since the last one that is there is then no step's."""
    apart = np.diff(numbers)
    return np.asarray(apart > np.median(apart)) if len(apart) else np.zeros(0, bool)


def typical_wait(joined: Grid, starts: Ints) -> Floats:
    """[S] ns that the typical rank waits for others in a step."""
    waits = np.maximum(joined.duration - join.shortest(joined), 0.0)[:: max(len(joined.ranks) // _SAMPLE, 1)]
    return median(sums_by_step(waits, starts), axis=0)


def _slowest(lengths: Floats, joined: Grid) -> Floats:
    """[S] how long the typical rank's steps are [R, S]; with sets that train in parallel, those of the slowest."""
    which, typical = cohorts.that_meet(joined), median(lengths, axis=0)
    if (which == which[0]).all():
        return typical
    each = [median(lengths[which == one], axis=0) for one in np.unique(which)]
    slowest = max(each, key=lambda one: float(np.nan_to_num(median(one))))
    return slowest if median(slowest) > _OWN_PACE * median(typical) else typical
