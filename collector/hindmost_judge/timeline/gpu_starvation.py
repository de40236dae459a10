"""How long GPUs of a pipeline idled because their hosts had launched no more: from the enqueue time of each operation.

A kernel that begins as soon as it is launched found nothing queued before it. If the interval before it took longer
than with work queued throughout, the GPU waited for its host for the difference. That is no work of its stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median

if TYPE_CHECKING:
    from hindmost_judge.timeline.schedule import Schedule
    from hindmost_judge.types import Array, Floats, Ints
    from hindmost_judge.whatif.pipeline_replay import Bubbles

#: A kernel began at its launch if its wait exceeds its rank's shortest by at most this time (ns), or this share of a
#: step's work; earlier launches may begin after it was launched.
_AT_ONCE_NS, _AT_ONCE = 100_000.0, 0.02
#: Clocks of GPU and host drift apart by tens of us a second: the shortest wait is taken over this many steps.
_WINDOW = 25
#: Steps with queued work that give the usual length of an interval; with fewer, this percentile of its lengths does.
_ENOUGH, _SHORT = 5, 10


def find(order: Schedule, built: Bubbles, role: Ints, shape: tuple[int, ...]) -> Floats | None:
    """[R, S] ns, the ``shape``; ``None`` where enqueue times were not recorded.

    An interval that was rarely seen with queued work is taken to be no longer than for a rank of the same ``role`` [R]
    that had work queued.
    """
    if order.enqueue is None or np.isnan(order.enqueue).all():
        return None
    waited = order.start - order.enqueue
    in_step = float(np.bincount(built.row, median(built.work, axis=1)).max())
    at_once = _at_once(order, waited, max(_AT_ONCE_NS, _AT_ONCE * in_step))
    queued = np.where(at_once, np.nan, built.work)
    known = (~at_once).sum(axis=1) >= _ENOUGH
    told = np.where(known, median(queued, axis=1), np.nan)
    usual = np.where(known, told, np.fmin(np.percentile(built.work, _SHORT, axis=1), _of_peers(told, built, role)))
    idle = np.where(at_once, np.maximum(built.work - usual[:, None], 0.0), 0.0)
    found = np.zeros(shape)
    np.add.at(found, (order.row[:, None], order.steps[None, :]), idle)
    return found


def _of_peers(told: Floats, built: Bubbles, role: Ints) -> Floats:
    """[N] the known times ``told`` [N] of that interval for the typical rank of the cohort, of two the quicker.

    NaN where no rank of the same ``role`` [R] has it."""
    alike = role[built.row] * (int(built.place.max()) + 1) + built.place
    lacking = np.zeros(int(alike.max()) + 1, bool)
    lacking[alike[np.isnan(told)]] = True
    asked = np.flatnonzero(lacking[alike])
    which = np.unique(alike[asked], return_inverse=True)[1].ravel()
    order = np.lexsort((told[asked], which))  # NaN goes last
    known = np.bincount(which, ~np.isnan(told[asked])).astype(np.int64)
    first = np.searchsorted(which[order], np.arange(len(known)))
    found = np.full(len(told), np.nan)
    found[asked] = told[asked][order][first + np.maximum(known - 1, 0) // 2][which]
    return found


def _at_once(order: Schedule, waited: Floats, soon: float) -> Array:
    """[N, G] which operations began as soon as they were launched: within so many ns."""
    found = np.zeros(waited.shape, bool)
    windows = np.array_split(np.arange(waited.shape[1]), max(waited.shape[1] // _WINDOW, 1))
    first = np.flatnonzero(np.diff(order.row, prepend=-1))
    counts = np.diff(np.append(first, len(order.row)))
    for steps in windows:
        least = np.fmin.reduceat(np.fmin.reduce(waited[:, steps], axis=1), first)
        found[:, steps] = waited[:, steps] - np.repeat(least, counts)[:, None] <= soon
    return found
