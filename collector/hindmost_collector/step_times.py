"""When each step began and ended, so that samples and intervals find the step that they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector import phases
from hindmost_collector.robust import median

if TYPE_CHECKING:
    from hindmost_collector.align import Floats, Ints
    from hindmost_collector.blocks import Blocks
    from hindmost_collector.model import Table


def bounds(found: Blocks, table: Table) -> Floats:
    """[S + 1] when each step began on the job clock, and when the last ended; empty where nobody knows.

    A GPU's clock is some ms off the job's: nothing beside the pace of samples.
    """
    start = phases.pivot(table, found.ranks, found.steps, "start_ns")
    if start is None and found.joined is not None:
        start = found.joined.start[:, found.starts]
    if start is None or np.isnan(start).all():
        return np.empty(0)
    begins = _without_gaps(median(start, axis=0), found.steps, found.step_ns)
    return np.maximum.accumulate(np.append(begins, begins[-1] + np.nan_to_num(found.step_ns)))


def _without_gaps(times: Floats, steps: Ints, usual: float) -> Floats:
    """[S] when something happened in each step, where not all is known: of a job that runs, collectives of the newest
    step are there before its mark. Steps between known ones are as long as each other, those beyond as usual."""
    known = ~np.isnan(times)
    if known.all() or not known.any():
        return times
    at, seen = steps[known], times[known]
    inside = np.interp(steps, at, seen)
    beyond = np.minimum(steps - at[0], 0) + np.maximum(steps - at[-1], 0)
    return np.asarray(inside + beyond * np.nan_to_num(usual))


def ends(found: Blocks, table: Table) -> Floats:
    """[R, S] when each rank's steps ended on the job clock; of no columns where that cannot be told."""
    start = phases.pivot(table, found.ranks, found.steps, "start_ns")
    duration = phases.pivot(table, found.ranks, found.steps, "duration_ns")
    if start is not None and duration is not None:
        told = start + duration
    elif found.joined is not None and not found.joined.gpu_time:
        last = np.append(found.starts[1:], found.joined.columns) - 1
        told = (found.joined.start + found.joined.duration)[:, last]
    else:
        return np.empty((len(found.ranks), 0))
    usual = found.step_ns
    told = np.stack([_without_gaps(one, found.steps, usual) for one in told])
    return np.empty((len(found.ranks), 0)) if np.isnan(told).any() else told
