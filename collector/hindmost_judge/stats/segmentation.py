"""Segments of a series between which its level changes, and the noise that a change must exceed.

Steps of a host are not independent: what makes one longer makes the next one longer, too. So noise is measured on means
of batches of steps (Glynn and Whitt, "Estimating the asymptotic variance with batch means", 1991), from one batch to
the next, so that a change of the level counts once.
"""

from __future__ import annotations

import itertools

import numpy as np

from hindmost_judge.stats.robust import MAD_TO_SIGMA
from hindmost_judge.types import Floats, Ints

#: Steps around one that tell whether it is a stall; a change shows in most of them.
_NEIGHBOURS = 9
#: The fewest batches that show noise.
_MIN_BATCHES = 5
#: A single step counts for at most so many standard deviations: stalls are judged apart.
_MAX_DEVIATIONS = 4.0
#: Steps between two places at which the level may change, before each is found to the step.
_GRID = 8
#: A change must gain so many standard deviations squared: 4.5 sigma, for it may be anywhere.
_GAIN = 20.0


def clipped(series: Floats) -> Floats:
    """The series [S] without stalls: no step is farther from the steps around than a few standard deviations.

    Of those that are not exactly as before, which were filled in.
    """
    padded = np.pad(series, _NEIGHBOURS // 2, mode="edge")  # where a level changes, so does the median around
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, _NEIGHBOURS), axis=1)
    measured = np.diff(series, prepend=np.inf) != 0
    scale = MAD_TO_SIGMA * float(np.median(np.abs(series - around)[measured]))
    return np.asarray(np.clip(series, around - _MAX_DEVIATIONS * scale, around + _MAX_DEVIATIONS * scale))


def noise(series: Floats, *, drifts: bool = True) -> float:
    """Noise of a series [S], in its unit: the mean of n steps has this standard deviation, divided by sqrt(n).

    It is measured on batches of 1, 2, 4, … steps, and the largest value counts: steps that resemble their neighbours
    average out more slowly. What is exactly as before was filled in, and shows no noise. 0 of a series without changes,
    infinite of a single step. The longest batches, of which a change of the level spoils half the differences, only
    count for one that ``drifts``.
    """
    largest, batch = 0.0, 1
    while batch == 1 or len(series) // batch >= (_MIN_BATCHES if drifts else 2 * _MIN_BATCHES):
        count = len(series) // batch
        means = series[: count * batch].reshape(count, batch).mean(axis=1)
        changes = np.abs(np.diff(means)) if count > 1 else np.array([np.inf])
        apart = float(np.median(changes[changes > 0])) if changes.any() else 0.0
        largest = max(largest, MAD_TO_SIGMA * apart * float(np.sqrt(batch / 2)))
        batch *= 2
    return largest


def segments(series: Floats, sigma: float) -> list[int]:
    """Bounds [0, …, S] of the segments of a series [S] that has one level in each, with ``sigma`` its noise.

    First on a grid of steps, then each bound is moved to the exact step.
    """
    grid = np.append(np.arange(0, len(series) - _GRID // 2, _GRID), len(series))
    sums = np.append(0.0, np.cumsum(series))
    bounds: list[int] = grid[cheapest(sums[grid], grid, _GAIN * sigma**2)].tolist()
    for _ in range(2):
        for at in range(1, len(bounds) - 1):
            bounds[at] = _change(series, bounds[at - 1], bounds[at], bounds[at + 1])
    return bounds


def levels(series: Floats, *, drifts: bool = True) -> Floats:
    """[S] the mean, without stalls, of the segment that each step of a series [S] is in."""
    series = clipped(series)
    bounds = segments(series, max(noise(series, drifts=drifts), 1.0))
    return np.repeat([series[first:stop].mean() for first, stop in itertools.pairwise(bounds)], np.diff(bounds))


def cheapest(sums: Floats, at: Ints, price: float, shortest: int = 1) -> list[int]:
    """Indices of the places ``at`` [N] that cut a series, whose ``sums`` [N] up to these are given, into segments.

    They have the least sum of squares, each segment at a price and from one place to another ``shortest`` ones on.
    Source: optimal partitioning (Jackson et al., 2005).
    """
    best, came = np.full(len(at), -np.inf), np.zeros(len(at), np.int64)
    best[0] = 0.0
    for end in range(shortest, len(at)):
        begin = slice(end - shortest + 1)
        total = best[begin] + (sums[end] - sums[begin]) ** 2 / (at[end] - at[begin]) - price
        came[end] = most = int(np.argmax(total))
        best[end] = total[most]
    edges = [len(at) - 1]
    while edges[-1] > 0:
        edges.append(int(came[edges[-1]]))
    return edges[::-1]


def _change(series: Floats, first: int, about: int, stop: int) -> int:
    """Where near a place the level changes, between two others."""
    least, most = max(first + 1, about - _GRID), min(stop - 1, about + _GRID)
    if most <= least:
        return about
    sums = np.append(0.0, np.cumsum(series))
    at = np.arange(least, most + 1)
    left, right = (sums[at] - sums[first]) ** 2 / (at - first), (sums[stop] - sums[at]) ** 2 / (stop - at)
    return int(at[np.argmax(left + right)])
