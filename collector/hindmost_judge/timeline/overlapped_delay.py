"""Delay of a rank at collectives that overlap with its computing, where one delay shows in all that follow it.

The largest counts, at the place in the step where a rank is typically latest, so that noise is not collected over all
places. Where the others merely queue behind their previous collective they were ready long before, and the delay is not
visible. The same holds after a rank held all of them up earlier in that step: they do not wait for what is late then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median, spread
from hindmost_judge.timeline import join

if TYPE_CHECKING:
    from hindmost_judge.types import Array, Floats, Ints

#: Ranks sampled to see whether all queue: enough for a typical value, whatever the size of the job.
_SAMPLE = 512
#: A rank is late from this many times the usual difference between ranks on.
_LATE = 4.0
#: A place that a smaller share of the steps has, such as the collective of an evaluation, is not a rank's usual place.
_USUAL = 0.25
#: A rank whose delay nowhere reaches this share of the latest rank's shows only its noise at its own place.
_NOWHERE = 0.25


def find(late: Floats, own: Floats, starts: Ints) -> Floats:
    """[R, S] how late each rank was.

    ``late`` [R, K] is how much later than its peers a rank came for each collective, ``own`` [R, K] its time since
    the end of the one before; ``starts`` [S] are the first collectives of the steps. Where no rank's self time is
    known, the first place counts that shows half of the largest.
    """
    position = np.arange(late.shape[1]) - np.repeat(starts, np.diff(np.append(starts, late.shape[1])))
    places = [position == place for place in range(position.max() + 1)]
    level = np.maximum(late, 0.0) if len(places) > 1 else late
    # Means, for a rank that is late in a part of the run only has a median of nothing at every place.
    typical = np.stack([np.nan_to_num(level[:, held]).mean(axis=1) for held in places], axis=1)
    typical[:, [held.sum() < _USUAL * len(starts) for held in places]] = 0.0
    gaps = np.array([float(median(own[:, held])) for held in places])
    if np.isnan(gaps[1:]).all():
        where = np.argmax(typical >= np.maximum(typical.max(axis=1, keepdims=True), 0.0) / 2, axis=1)
        return _at(late, _of_the_latest(where, typical, _late(typical)), starts)
    free = np.nan_to_num(gaps, nan=np.inf) > join.QUEUED_NS
    who, typical = _late(typical), np.where(free, typical, -np.inf)
    where = _of_the_latest(np.argmax(typical, axis=1), typical, who)
    return _seen(late, own, _at(late, where, starts), where, who, starts)


def _of_the_latest(where: Ints, typical: Floats, who: Array) -> Ints:
    """[R] the places; where half of the ranks are late, ranks that are late nowhere get the place of the latest rank.

    They are ahead of the median there, and level where no rank is late. Each at a place of its own, healthy ranks would
    seem to differ by that.
    """
    most = typical.max(axis=1)
    nowhere = ~who & (most < _NOWHERE * most.max())
    if 2 * np.sum(~nowhere) < len(typical) - 1:
        return where
    return np.where(nowhere, where[np.argmax(most)], where)


def _at(late: Floats, where: Ints, starts: Ints) -> Floats:
    """[R, S] of [R, K] at one place of the step for each rank, or the step's last."""
    return np.take_along_axis(late, _columns(where, starts, late.shape[1]), axis=1)


def _columns(where: Ints, starts: Ints, count: int) -> Ints:
    return np.asarray(np.minimum(starts[None, :] + where[:, None], np.append(starts[1:], count)[None, :] - 1))


def _is_free(own: Floats) -> Array:
    """[K] whether the typical rank computed before a collective, and did not queue behind the one before."""
    gaps = median(own[:: max(len(own) // _SAMPLE, 1)], axis=0)
    return np.asarray(np.nan_to_num(gaps, nan=np.inf) > join.QUEUED_NS)


def _late(typical: Floats) -> Array:
    """[R] whether a rank is late anywhere in the step by more than ranks differ there."""
    differ = np.array([spread(place) for place in typical.T])
    return np.asarray((typical > median(typical, axis=0) + _LATE * differ).any(axis=1))


def _seen(late: Floats, own: Floats, found: Floats, where: Ints, who: Array, starts: Ints) -> Floats:
    """The visible delays; less what the last rank computes faster than usual there.

    For late ranks, in steps in which their own place shows nothing: what the best other place shows, and what they
    usually add from there on.
    """
    free = _is_free(own)
    columns = _columns(np.arange(where.max() + 1), starts, len(free))  # [P, S]
    shows = free[columns]
    for place in np.flatnonzero(~shows.all(axis=1)):
        rows, steps = np.flatnonzero(who & (where == place)), np.flatnonzero(~shows[place])
        others, calm = np.flatnonzero(shows[:, steps].all(axis=1)), columns[:, shows[place]]
        if not len(rows) or not calm.size or not len(others):
            continue
        there = np.stack([_mean(late[np.ix_(rows, columns[one, steps])]) for one in others])
        best = others[np.argmax(there, axis=0)]
        latest = {other: np.fmax.reduce(late[:, columns[other, steps]], axis=0) for other in set(best.tolist())}
        for row, other in zip(rows.tolist(), best.tolist(), strict=True):
            usual, before = (float(np.nan_to_num(late[row, calm[one]]).mean()) for one in (place, other))
            between = slice(other + 1, place + 1)
            is_last = late[row, columns[other, steps]] >= latest[other]
            faster = np.where(is_last, _faster(own[row], calm[between], columns[between, steps]), 0.0)
            seen = late[row, columns[other, steps]] + np.maximum(usual - before - faster, 0.0)
            found[row, steps] = np.fmax(found[row, steps], seen)
    return found


def _faster(own: Floats, calm: Ints, columns: Ints) -> Floats:
    """[N] ns by which a rank takes less at these places [P, N] of a step than it usually does there [P, M]; never more.

    In these steps the reason for its delay in others may be over. A rank that is not last may have computed while it
    waited.
    """
    less = median(own[calm], axis=1)[:, None] - own[columns]
    return np.asarray(np.maximum(np.nan_to_num(less).sum(axis=0), 0.0))


def _mean(block: Floats) -> Floats:
    """[R] mean of each row; what is missing counts as nothing."""
    return np.asarray(np.nan_to_num(block).mean(axis=1))
