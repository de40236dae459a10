"""Robust statistics over [rank x step] blocks; NaN is a missing observation."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Floats

#: Scales a median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826
#: A median's standard error is this many times a mean's, for normal noise.
MEDIAN_COST = 1.2533
#: From here on one rank's own value moves the median of all by nothing worth leaving it out for.
_CROWD = 32


def median(block: Floats, axis: int | None = None) -> Floats:
    """Median of what is known; NaN where nothing is. numpy's own takes several times as long where anything is NaN."""
    if block.size == 0:
        return np.asarray(np.full(np.delete(np.array(block.shape), axis if axis is not None else 0), np.nan))
    if not np.isnan(block).any():
        return np.asarray(np.median(block, axis=axis))
    return _of_known(block.ravel() if axis is None else np.moveaxis(block, axis, 0))


def _of_known(block: Floats, *, lower: bool = False) -> Floats:
    """[...] of [N, ...]: the median, or lower median, of what is known in each column, NaN of nothing."""
    ordered = np.sort(block, axis=0)  # NaN goes last
    known = np.sum(~np.isnan(ordered), axis=0)[None]
    below, above = (np.take_along_axis(ordered, np.maximum(known - one, 0) // 2, axis=0)[0] for one in (1, 0))
    return np.asarray(np.where(lower | (known[0] % 2 == 1), below, (below + above) / 2))


def lower_median(block: Floats, axis: int) -> Floats:
    """A value that at least half of those known reach: of two, the lower, where their mean is neither's."""
    return _of_known(np.moveaxis(block, axis, 0), lower=True)


def mean(block: Floats) -> Floats:
    """[R] mean of each row's known values; NaN where it has none."""
    known = ~np.isnan(block)
    count = known.sum(axis=1)
    total = np.where(known, block, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def average(values: Floats) -> float:
    """Mean of the known values; NaN where there is none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def percentile(values: Floats, percent: float) -> float:
    """Percentile of the known values; NaN where there is none."""
    known = values[~np.isnan(values)]
    return float(np.percentile(known, percent)) if known.size else float("nan")


def peers_median(block: Floats) -> Floats:
    """[R, K] median of the *other* ranks in each column: what each rank is compared with.

    Leaving oneself out matters with few ranks: of two, the median of both would hide half of any difference.
    """
    count = block.shape[0]
    if count < 2:
        return np.full_like(block, np.nan)
    if count > _CROWD:
        return np.broadcast_to(median(block, axis=0), block.shape)
    if np.isnan(block).any():
        return np.stack([median(np.delete(block, r, axis=0), axis=0) for r in range(count)])
    order = np.argsort(block, axis=0, kind="stable")
    ranked = np.take_along_axis(block, order, axis=0)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(count)[:, None], axis=0)
    low, high = (count - 2) // 2, (count - 1) // 2
    lower = np.where(place > low, ranked[low], ranked[min(low + 1, count - 1)])
    upper = np.where(place > high, ranked[high], ranked[min(high + 1, count - 1)])
    return np.asarray((lower + upper) / 2)


def spread(values: Floats) -> float:
    """Robust standard deviation of a few values: MAD scaled, or half the range where fewer than four are left."""
    known = values[~np.isnan(values)]
    if len(known) < 2:
        return 0.0
    if len(known) < 4:
        return float((known.max() - known.min()) / 2)
    return float(MAD_TO_SIGMA * np.median(np.abs(known - np.median(known))))


def time_blocks(length: int) -> list[slice]:
    """Cut a run of steps into 4 to 16 blocks of about equal length, as long as there are steps for it."""
    count = int(np.clip(length // 8, min(4, length), 16))
    edges = np.linspace(0, length, count + 1).astype(int)
    return [slice(a, b) for a, b in itertools.pairwise(edges) if b > a]


def block_medians(series: Floats) -> Floats:
    """[..., B] medians of the time blocks of the last axis."""
    return np.stack([median(series[..., cut], axis=-1) for cut in time_blocks(series.shape[-1])], axis=-1)


def standard_error(series: Floats) -> float:
    """Standard error of a series' typical level, from how its block medians scatter: safe for slow drifts too."""
    blocks = block_medians(series)
    known = blocks[~np.isnan(blocks)]
    if len(known) < 2:
        return float("inf")
    within = (
        MAD_TO_SIGMA * float(median(np.abs(series - median(series)))) * MEDIAN_COST / np.sqrt(np.sum(~np.isnan(series)))
    )
    return max(spread(known) * MEDIAN_COST / float(np.sqrt(len(known))), float(within))


def sums_by_step(block: Floats, starts: Array) -> Floats:
    """[R, S] sums of the columns of each step, which begin at the columns ``starts``; NaN counts as nothing."""
    return np.asarray(np.add.reduceat(np.nan_to_num(block), starts, axis=1))
