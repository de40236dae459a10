"""Stalls that overlapped collectives do not show at the place where a rank is usually latest.

A GPU may stall anywhere in backward, or in all of it. The others then queue behind the collective that it comes late
for. Later collectives do not show how late it is, and at earlier ones it is not late yet. Its self time from one
collective to the next, against the usual time there, does show it, as far as the others waited meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import MAD_TO_SIGMA, median
from hindmost_judge.timeline.join import QUEUED_NS

if TYPE_CHECKING:
    from hindmost_judge.types import Floats, Ints

#: An interval is longer than usual if it exceeds the usual by this many standard deviations of its scatter.
_LONGER = 6.0
#: A GPU that is slow throughout shows a third of its delay, its forward, by the first collective, and the cost adds the
#: rest. Beyond this many times the usual place's delay, it stalled elsewhere.
_MORE = 3.0
#: Ranks examined: those that are latest anywhere in a step.
_MOST = 16


def find(late: Floats, own: Floats, start: Floats, starts: Ints, found: Floats) -> Floats:
    """[R, S] how late each rank was: as ``found``, and in steps in which it stalled, by all of what it stalled.

    ``late`` [R, K] is how much later than its peers a rank came for each collective, ``own`` [R, K] its time since the
    end of the one before, ``start`` [R, K] on its own clock; ``starts`` [S] are the first collectives of the steps.
    """
    base = np.maximum(np.nan_to_num(found), 0.0)
    scatter = MAD_TO_SIGMA * float(median(np.abs(found - median(found, axis=1)[:, None])))
    rows = np.argsort(-np.nan_to_num(np.fmax.reduce(late, axis=1)), kind="stable")[:_MOST]
    stalled = _stalled(late[rows], own[rows], start[rows], starts)
    out: Floats = found.copy()
    out[rows] = np.where(stalled > _MORE * base[rows] + _LONGER * scatter, stalled, found[rows])
    return out


def _stalled(late: Floats, own: Floats, start: Floats, starts: Ints) -> Floats:
    """[N, S] ns by which each of these rows [N, K] was late beyond its own usual in each step.

    Sums all intervals that were longer, as far as the others waited for them. Without start times it is unknown since
    when the others wait at a place: the place with the largest delay counts.
    """
    step = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, late.shape[1])))
    place = np.arange(late.shape[1]) - starts[step]
    if np.isnan(start).all():
        return np.asarray(np.maximum.reduceat(_beyond_usual(late, place, step), starts, axis=1))
    free = np.nan_to_num(own) > QUEUED_NS
    took = np.full(late.shape, np.nan)
    took[:, 1:] = np.where(free[:, 1:] & free[:, :-1], np.diff(start, axis=1), np.nan)
    took[:, starts] = own[:, starts]  # the first follows what all waited for; later ones may follow others' delays
    longer = _beyond_usual(took, place, step)
    seen = np.clip(np.fmin(longer, np.nan_to_num(late)), 0.0, None)
    return np.asarray(np.add.reduceat(seen, starts, axis=1))


def _beyond_usual(took: Floats, place: Ints, step: Ints) -> Floats:
    """[N, K] ns beyond the row's median at the same place of the step, where that is more than it scatters by."""
    steps = int(step[-1]) + 1
    spot = place * steps + step
    block = np.full((len(took), (int(place.max()) + 1) * steps), np.nan)
    block[:, spot] = took
    of_place = block.reshape(len(took), -1, steps)
    more = of_place - median(of_place, axis=2)[:, :, None]
    scatter = MAD_TO_SIGMA * median(np.abs(more), axis=2)[:, :, None]
    found = np.where(np.nan_to_num(more) > _LONGER * scatter, more, 0.0)
    return np.asarray(found.reshape(len(took), -1)[:, spot])
