"""Robust statistics over [rank x step] blocks; NaN is a missing observation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from hindmost_judge.types import Array, Floats, Ints

#: Scales a median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826
#: A median's standard error is this many times a mean's, for normal noise.
MEDIAN_COST = 1.2533
#: From this many ranks on, one rank's own value hardly moves the median of all, so it is not left out.
CROWD = 32
#: Ranks of which fewer do not show how much healthy ones differ, and so many that more would add nothing.
FEW_RANKS, SAMPLE = 4, 512
#: Steps of which fewer show no usual time.
ENOUGH_STEPS = 20


def median(block: Floats, axis: int | None = None) -> Floats:
    """Median of what is known; NaN where nothing is. To the last bit numpy's own, in a part of its time."""
    if block.size == 0:
        return np.asarray(np.full(np.delete(np.array(block.shape), axis if axis is not None else 0), np.nan))
    block = block if block.dtype.kind == "f" else block.astype(np.float64)
    if axis is None or block.ndim == 1:
        return _of_line(block.ravel())
    if alike(block):
        return np.full(np.delete(np.array(block.shape), axis), block.flat[0])
    if np.isnan(block.min()):
        return _of_known(np.moveaxis(block, axis, 0))
    return _middle(np.ascontiguousarray(np.moveaxis(block, axis, -1)))


def alike(block: Floats) -> bool:
    """Whether all values are known and one and the same, as work and most phases of a job are; most others show at
    their corners that they are not."""
    return block.size > 0 and block.flat[0] == block.flat[-1] and bool((block == block.flat[0]).all())


def or_zero(block: Floats) -> Floats:
    """A copy with nothing in place of what is missing: ``np.nan_to_num``, whose six passes few blocks need."""
    return block.copy(order="K") if np.isfinite(block.sum()) else np.nan_to_num(block)


#: Up to this many values are sorted, more are only partitioned: sorting a few is faster.
_SORTED = 256


def _of_line(values: Floats) -> Floats:
    """The median of one line's known values."""
    if len(values) <= _SORTED:
        ordered = values.copy()
        ordered.sort()  # NaN goes last
        known = int(ordered.searchsorted(np.nan)) if math.isnan(ordered[-1]) else len(ordered)
        return _between(ordered, known) if known else np.asarray(np.nan)
    unknown = np.isnan(values)
    return _middle(values[~unknown] if unknown.any() else values) if not unknown.all() else np.asarray(np.nan)


def _middle(values: Floats) -> Floats:
    count = values.shape[-1]
    if count <= _SORTED:
        return _between(np.sort(values, axis=-1), count)
    parted = np.partition(values, count // 2, axis=-1)  # about one place: about two it takes seven times as long
    above = parted[..., count // 2]
    return np.asarray(above if count % 2 else (parted[..., : count // 2].max(axis=-1) + above) / 2)


def _between(ordered: Floats, count: int) -> Floats:
    """The middle, or the mean of the two middle ones, of the first ``count`` of the last axis."""
    above = ordered[..., count // 2]
    return np.asarray(above if count % 2 else (ordered[..., count // 2 - 1] + above) / 2)


def _of_known(block: Floats, *, lower: bool = False) -> Floats:
    """[...] of [N, ...]: the median, or lower median, of what is known in each column, NaN of nothing."""
    ordered = np.sort(block, axis=0)  # NaN goes last
    known = np.sum(~np.isnan(ordered), axis=0)[None]
    below, above = (np.take_along_axis(ordered, np.maximum(known - one, 0) // 2, axis=0)[0] for one in (1, 0))
    return np.asarray(np.where(lower | (known[0] % 2 == 1), below, (below + above) / 2))


def lower_median(block: Floats, axis: int) -> Floats:
    """A value that at least half of those known reach: of two, the lower, where their mean is neither's."""
    return _of_known(np.moveaxis(block, axis, 0), lower=True)


def quantile(block: Floats, share: float) -> Floats:
    """[...] of [..., N]: the quantile of what is known, NaN of nothing. ``np.nanquantile``, all lines at once."""
    ordered = np.sort(block, axis=-1)  # NaN goes last
    place = np.maximum(np.sum(~np.isnan(ordered), axis=-1, keepdims=True) - 1, 0) * share
    below = place.astype(np.int64)
    above = np.minimum(below + 1, block.shape[-1] - 1)
    low, high = (np.take_along_axis(ordered, one, axis=-1)[..., 0] for one in (below, above))
    part = (place - below)[..., 0]
    return np.asarray(np.where(part > 0, low + (high - low) * part, low))


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
    """Percentile of the known values; NaN where there is none. To the last bit numpy's own, in a tenth of its time."""
    ordered = np.sort(values, axis=None)  # NaN goes last
    last = int(ordered.searchsorted(np.nan)) - 1
    if last < 0:
        return float("nan")
    place = last * (percent / 100)
    below = int(place)
    low, high, part = float(ordered[below]), float(ordered[min(below + 1, last)]), place - below
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


def with_peers(row: int, ranks: int, most: int) -> Array:
    """A row, first, and those of its peers: all, or of many fewer than twice ``most``, from all over the job."""
    others = np.delete(np.arange(ranks), row)
    return np.append(row, others[:: max(len(others) // most, 1)])


def peers_median(block: Floats) -> Floats:
    """[R, K] what each rank is compared with: the middle one of an odd number of ranks.

    Of an even number, oneself is left out: of two, the median of both would hide half of any difference. Of an odd
    number it is the middle of all: a mean of two peers, one of them late, would make healthy ranks seem ahead.
    """
    count = block.shape[0]
    if count < 2:
        return np.full_like(block, np.nan)
    if count > CROWD:
        return np.broadcast_to(median(block, axis=0), block.shape)
    ranked = np.sort(block, axis=0)  # NaN goes last
    known = np.sum(~np.isnan(block), axis=0)
    low = np.maximum(known - 1, 0) // 2
    lower, upper = (np.take_along_axis(ranked, one[None], axis=0) for one in (low, np.minimum(low + 1, count - 1)))
    alone = (known == 1) & ~np.isnan(block)
    return np.where(alone, np.nan, np.where((known % 2 == 1) | (block > lower), lower, upper))


def of_cohorts(block: Floats, cohort: Ints, of: Callable[[Floats], Floats | float]) -> Floats:
    """[R, ...] what ``of`` makes of the rows of each ``cohort`` [R], put where these are."""
    found = np.empty_like(block)
    for one in np.unique(cohort):
        found[cohort == one] = of(block[cohort == one])
    return found


def others_median(block: Floats) -> Floats:
    """[R, K] median of the *other* ranks: a late rank's distance from it has no bias."""
    count = block.shape[0]
    if count > CROWD or count % 2 == 0:
        return peers_median(block)
    return np.stack([median(np.delete(block, r, axis=0), axis=0) for r in range(count)])


def others_level(levels: Floats, row: int) -> float:
    """What is typical of the other ranks, of [R]."""
    return float(median(np.delete(levels, row)))


def spread(values: Floats) -> float:
    """Robust standard deviation of a few values: MAD scaled, or half the range where fewer than four are left."""
    known = values[~np.isnan(values)]
    if len(known) < 2:
        return 0.0
    if len(known) < 4:
        return float((known.max() - known.min()) / 2)
    if len(known) > _BLOCKS:
        return float(MAD_TO_SIGMA * median(np.abs(known - median(known))))
    ordered = sorted(known.tolist())  # of so few, numpy's calls take longer than Python's
    level = _middle_of(ordered)
    return MAD_TO_SIGMA * _middle_of(sorted([abs(one - level) for one in ordered]))


def _middle_of(ordered: list[float]) -> float:
    """The middle of some values in order, or the mean of the two middle ones."""
    above = ordered[len(ordered) // 2]
    return above if len(ordered) % 2 else (ordered[len(ordered) // 2 - 1] + above) / 2


#: Most time blocks of a run of steps.
_BLOCKS = 16


@lru_cache(256)
def time_blocks(length: int) -> tuple[slice, ...]:
    """Cut a run of steps into 4 to 16 blocks of about equal length, as long as there are steps for it."""
    count = int(np.clip(length // 8, min(4, length), _BLOCKS))
    edges = np.linspace(0, length, count + 1).astype(int)
    return tuple(slice(a, b) for a, b in itertools.pairwise(edges))


@lru_cache(256)
def _cells(length: int) -> tuple[Array, Array]:
    """[B, W] the steps of each time block, ``length`` where a block has less than the longest; and [B] their counts."""
    begin, stop = (np.array([getattr(cut, end) for cut in time_blocks(length)])[:, None] for end in ("start", "stop"))
    steps = begin + np.arange(int((stop - begin).max()))
    return np.where(steps < stop, steps, length), (stop - begin)[:, 0]


def block_medians(series: Floats) -> Floats:
    """[..., B] medians of the time blocks of the last axis."""
    if series.ndim == 1 and len(series) > 0:
        cells, known = _cells(len(series))
        padded = np.full(len(series) + 1, np.nan)
        padded[:-1] = series
        ordered = padded[cells]
        ordered.sort(axis=1)  # NaN goes last
        if math.isnan(series.sum()):
            known = np.sum(~np.isnan(ordered), axis=1)
        row = np.arange(len(ordered))
        return np.asarray((ordered[row, (known - 1) // 2] + ordered[row, known // 2]) / 2)
    steps = np.ascontiguousarray(np.moveaxis(series, -1, 0))
    return np.stack([median(steps[cut], axis=0) for cut in time_blocks(len(steps))], axis=-1)


def standard_error(series: Floats, level: float | None = None) -> float:
    """Standard error of a series' median (its ``level``) by how its block medians scatter: safe for slow drifts too."""
    blocks = block_medians(series)
    known = blocks[~np.isnan(blocks)]
    if len(known) < 2:
        return float("inf")
    return max(spread(known) * MEDIAN_COST / math.sqrt(len(known)), float(median_error(series, level)))


def median_error(values: Floats, level: float | None = None) -> Floats:
    """Standard error of the median (``level``) along the last axis, where values are independent of each other."""
    apart = np.abs(values - (median(values, axis=-1)[..., None] if level is None else level))
    return np.asarray(MAD_TO_SIGMA * MEDIAN_COST * median(apart, axis=-1) / np.sqrt(np.sum(~np.isnan(values), axis=-1)))


def sums_by_step(block: Floats, starts: Array) -> Floats:
    """[R, S] sums of the columns of each step, which begin at the columns ``starts``; NaN counts as nothing."""
    return np.asarray(np.add.reduceat(or_zero(block), starts, axis=1))
