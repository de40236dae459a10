"""How long a host took over a step's batch, in traces of loops that no DataLoader of PyTorch feeds.

Between two steps such a host fetches its batch, and nothing it does there is in the trace; the first that a step gives
its GPU is the copy of that batch. Where it launches a kernel before, or meets others, the time is not only the batch's,
and unknown; where it waits for its GPU, that is no part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, Any]

#: What stands for a time that is not known.
_UNKNOWN = -1


def before_copies(
    begin: Array, end: Array, copies: Array, others: Array, waits: Sequence[tuple[float, float]]
) -> Array:
    """[S] us from each step's begin [S] to the launch of its first copy to the GPU, less what the host waited; -1 where
    that is unknown.

    ``copies`` and ``others`` are when its thread launched copies to the GPU, and when anything else was launched or
    collectives began; ``waits`` are start and length of its waits for the GPU, of which one may lie in another: the
    driver's within the runtime's.
    """
    first = _first_in(begin, end, copies)
    known = first < _first_in(begin, end, others)  # without any copy: infinite, as those may be
    ends = np.array([begin, np.where(known, first, begin)])
    worked = np.diff(ends - _waited_before(ends, waits), axis=0)[0]
    return np.asarray(np.where(known, np.maximum(worked, 0.0), _UNKNOWN))


def _waited_before(times: Array, waits: Sequence[tuple[float, float]]) -> Array:
    """How long one waited until each of these times, however many waits there were at once."""
    if not len(waits):
        return np.zeros(times.shape)
    start, length = np.array(waits).T
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate((start + length)[order])
    apart = np.flatnonzero(np.append(True, start[1:] > end[:-1]))
    start, end = start[apart], end[np.append(apart[1:], len(end)) - 1]
    before = np.append(0.0, np.cumsum(end - start))
    at = np.searchsorted(start, times, side="right")  # so many have begun, of which the last may go on
    return np.asarray(before[at] - np.where(at > 0, np.maximum(end[at - 1] - times, 0.0), 0.0))


def _first_in(begin: Array, end: Array, times: Array) -> Array:
    """[S] the first of these times in each step, infinite where there is none."""
    ordered = np.append(np.sort(times), np.inf)
    first = ordered[np.searchsorted(ordered, begin)]
    return np.asarray(np.where(first < end, first, np.inf))
