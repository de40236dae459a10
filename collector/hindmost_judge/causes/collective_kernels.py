"""How much slower a GPU computes while the kernel of a collective waits on it for other ranks.

Such a kernel occupies some of the GPU's processors and polls its peers without a pause. A rank that is early for a
collective computes slower until the last rank has come, and loses a part of its lead. The others are then early by less
than the last rank's extra computing. On H200s the loss was a fifth to a third of the time that kernels waited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median

if TYPE_CHECKING:
    from hindmost_judge.types import Array, Floats

#: Largest loss that counts: NCCL's kernels use a quarter of a GPU's processors at most.
_MOST = 0.5
#: The loss per ms of waiting is known if its standard error is no larger than this, and it is this many times that
#: error.
_SURE, _BEYOND_CHANCE = 0.1, 2.0

#: … and if this many places of a step show it, each in most steps. Where ranks queue at most places, only long
#: computing is visible after a long wait.
_PLACES, _MOSTLY = 5, 0.5


def taken_off(start: Floats, took: Floats, lost: float) -> Floats:
    """[R, N, P] ns: starts of a step's collectives, less what was ``lost`` during the earlier ones that took
    ``took``."""
    fixed: Floats = start.copy()
    fixed[:, :, 1:] -= lost * np.cumsum(np.nan_to_num(_waited(took))[:, :, :-1], axis=2)
    return fixed


def slower(start: Floats, took: Floats, free: Array) -> float:
    """Ms by which computing takes longer for each ms that an overlapped collective waits; 0 where that does not show.

    ``start`` and ``took`` [R, N, P] ns are of a step's collectives, which a rank began as soon as it was ready where
    ``free``. A longer time after a longer wait shows the effect, from step to step. A rank that begins a collective
    early waits longer, and for that alone takes longer until the next; so the wait before it is used instead.
    """
    waited = _waited(took)
    shown = free[:, :, 1:-1] & free[:, :, 2:]
    if int(np.sum(shown.mean(axis=(0, 1)) > _MOSTLY)) < _PLACES:
        return 0.0
    alone = np.where(shown, np.diff(start, axis=2)[:, :, 1:], np.nan)
    longer, beside, before = (_beyond_usual(values) for values in (alone, waited[:, :, 1:-1], waited[:, :, :-2]))
    known = ~np.isnan(longer + beside + before)
    longer, beside, before = longer[known], beside[known], before[known]
    together = float(before @ beside)
    if not together > 0:
        return 0.0
    found = float(before @ longer) / together
    unsure = float(np.sqrt((before**2) @ (longer - found * beside) ** 2)) / together
    return min(found, _MOST) if unsure < _SURE and found > _BEYOND_CHANCE * unsure else 0.0


def _waited(took: Floats) -> Floats:
    return np.asarray(took - np.fmin.reduce(took, axis=0))


def _beyond_usual(values: Floats) -> Floats:
    return np.asarray(values - median(values, axis=1)[:, None])
