"""How much slower a GPU computes while the kernel of a collective waits on it for other ranks.

Such a kernel holds some of the GPU's processors and asks its peers without a pause. Whoever comes early for a
collective thus computes slower until the last rank has come, and loses a part of its lead: the others are earlier by
less than what the last rank computes longer. On H200s it was a fifth to a third of the time that kernels waited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.robust import median

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Floats

#: A kernel that waits takes no more of a GPU than this: NCCL's use a quarter of its processors at most.
_MOST = 0.5
#: What one ms of waiting takes is known where chance makes it no less sure than this, and it is this many times that.
_SURE, _BEYOND_CHANCE = 0.1, 2.0

#: … and where so many places of a step show what computing takes there, in most steps: where ranks queue at most of
#: them, only computing that takes long is seen after a long wait.
_PLACES, _MOSTLY = 5, 0.5


def taken_off(start: Floats, took: Floats, lost: float) -> Floats:
    """[R, N, P] ns: starts of a step's collectives, less what was ``lost`` beside those before that took ``took``."""
    fixed: Floats = start.copy()
    fixed[:, :, 1:] -= lost * np.cumsum(np.nan_to_num(_waited(took))[:, :, :-1], axis=2)
    return fixed


def slower(start: Floats, took: Floats, free: Array) -> float:
    """Ms that computing takes longer for each that a collective waits beside it, 0 where that does not show.

    ``start`` and ``took`` [R, N, P] ns of a step's collectives, which a rank began as soon as it was ready where
    ``free``. What is longer after a longer wait shows it, from step to step. Whoever begins a collective early waits
    longer and takes longer until the next by that alone, so that the wait before it is asked instead.
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
