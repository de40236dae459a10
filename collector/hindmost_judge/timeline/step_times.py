"""When each step began and ended, so that samples and intervals find the step that they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.types import Array, Floats, Ints


def bounds(found: Blocks, start: Floats | None) -> Floats:
    """[S + 1] when each step began on the job clock, and when the last ended; empty where unknown.

    ``start`` [R, S] holds the marked times. A GPU's clock is some ms off the job's, which is nothing at the rate of
    samples.
    """
    if start is None and found.joined is not None:
        start = found.joined.start[:, found.starts]
    if start is None or np.isnan(start).all():
        return np.empty(0)
    begins = _without_gaps(median(start, axis=0), found.steps, found.step_ns)
    return np.maximum.accumulate(np.append(begins, begins[-1] + np.nan_to_num(found.step_ns)))


def _without_gaps(times: Floats, steps: Ints, usual: float) -> Floats:
    """[..., S] when something happened in each step, where of the same ones nothing is known in all rows: of a job that
    runs, collectives of the newest step are there before its mark. Steps between known ones are as long as each other,
    those beyond as usual."""
    known = ~np.isnan(times.reshape(-1, len(steps))[0])
    if known.all() or not known.any():
        return times
    at, seen = steps[known], times[..., known]
    right = np.minimum(np.searchsorted(at, steps), len(at) - 1)
    left = np.where(at[right] <= steps, right, np.maximum(right - 1, 0))
    share = (steps - at[left]) / np.maximum(at[right] - at[left], 1) * (left < right)
    inside = seen[..., left] + (seen[..., right] - seen[..., left]) * share
    beyond = np.minimum(steps - at[0], 0) + np.maximum(steps - at[-1], 0)
    return np.asarray(inside + beyond * np.nan_to_num(usual))


def _lacking_alike(gaps: Array) -> list[Ints]:
    """Rows of [R, S] with gaps, those with the same ones together: mostly some lack the newest step."""
    rows = np.flatnonzero(gaps.any(axis=1))
    bits = np.packbits(gaps[rows], axis=1)
    kind = np.unique(bits.view(f"S{bits.shape[1]}").ravel(), return_inverse=True)[1]
    order = np.argsort(kind, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(kind[order])) + 1) if len(rows) else []


def ends(found: Blocks, start: Floats | None, duration: Floats | None) -> Floats:
    """[R, S] when each rank's steps ended on the job clock, as ``start`` and ``duration`` [R, S] were marked.

    Without columns where that is unknown.
    """
    if start is not None and duration is not None:
        told = start + duration
    elif found.joined is not None and not found.joined.gpu_time:
        last = np.append(found.starts[1:], found.joined.columns) - 1
        told = (found.joined.start + found.joined.duration)[:, last]
    else:
        return np.empty((len(found.ranks), 0))
    usual = found.step_ns
    for alike in _lacking_alike(np.isnan(told)):
        told[alike] = _without_gaps(told[alike], found.steps, usual)
    return np.empty((len(found.ranks), 0)) if np.isnan(told).any() else told
