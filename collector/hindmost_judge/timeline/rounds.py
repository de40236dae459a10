"""Steps that gather parameters and reduce gradients several times over, in a round for each micro-batch.

One delay shows in all collectives that follow it, so a rank's largest delay counts. A layer's computing hides a delay
only up to its own length. A longer one is over when all have met: in the next round the others wait anew for the late
rank, for example for each micro-batch's input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median, peers_median
from hindmost_judge.timeline import overlapped_delay, overlapped_stalls

if TYPE_CHECKING:
    from hindmost_judge.timeline.join import Grid
    from hindmost_judge.types import Floats, Ints

#: Least collectives of a round: buckets of one size are not rounds.
_FEWEST = 4
#: Above this many micro-batches they are reported as this many.
_MOST = 64


def late(joined: Grid, own: Floats, starts: Ints) -> Floats:
    """[R, S] ns that each rank comes late in each step to collectives that overlap with its computing.

    ``own`` [R, K] is the time between its collectives, ``starts`` [S] the first of each step.
    """
    late_for = peers_median(joined.duration) - joined.duration
    found = _late(late_for, joined, own, starts)
    begins = _begins(joined, starts)
    if len(begins) == len(starts):
        return found
    more = np.maximum(np.nan_to_num(_late(late_for, joined, own, begins)) - _hidden(own, begins), 0.0)
    of_step = np.searchsorted(begins, starts)
    return found + np.add.reduceat(more, of_step, axis=1) - np.maximum.reduceat(more, of_step, axis=1)


def _late(late_for: Floats, joined: Grid, own: Floats, begins: Ints) -> Floats:
    """[R, N] ns that each rank comes late in each of the periods that begin at the columns ``begins`` [N].

    ``late_for`` [R, K] is how much later than its peers it came for each collective.
    """
    return overlapped_stalls.find(late_for, own, joined.start, begins, overlapped_delay.find(late_for, own, begins))


def _hidden(own: Floats, begins: Ints) -> float:
    """Ns that a layer computes during the collectives of another: the longest time between two that all ranks take."""
    position = np.arange(own.shape[1]) - np.repeat(begins, np.diff(np.append(begins, own.shape[1])))
    taken = [np.min(np.nan_to_num(median(own[:, position == place], axis=1))) for place in range(position.max() + 1)]
    return float(max(taken))


def _begins(joined: Grid, starts: Ints) -> Ints:
    """[N] where each round of each step begins; steps that are unlike most are one."""
    counts = np.diff(np.append(starts, joined.columns))
    usual = int(np.bincount(counts).argmax())
    alike = starts[counts == usual]
    first = joined.token[alike[0] : alike[0] + usual]
    gathers = joined.gathers[alike[0] : alike[0] + usual]
    for count in range(min(usual // _FEWEST, _MOST), 1, -1):
        each = usual // count
        mixed = gathers[:each].any() and not gathers[:each].all()
        if usual % count == 0 and mixed and (first.reshape(count, each) == first[:each]).all():
            same = alike[(joined.token[alike[:, None] + np.arange(usual)] == first).all(axis=1)]
            return np.union1d(starts, (same[:, None] + np.arange(0, usual, each)).ravel())
    return starts
