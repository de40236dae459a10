"""The full delay of transient trouble, where the visible delay is a part of the longer computing.

A slow GPU is slow in all of a step, of which forward and the start of backward show: at the step's end its delay is
several times the visible one. Changes from one step to the next do not scale like that. A stall is over when it
shows. The noise of kernels differs in each interval: over n times as much computing it grows by the root of n. Among
thousands of ranks one always stalls: scaled up, its stall would hide most of what a fix saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import MAD_TO_SIGMA, median
from hindmost_judge.whatif import savings, work_explained_delay
from hindmost_judge.whatif.savings import repaired

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.findings import Habit
    from hindmost_judge.types import Floats, Ints


def scaled(blocks: Blocks, habits: Sequence[Habit], segments: Floats, scale: float) -> Floats:
    """[R, K] ``segments`` of a replay that is to be taken ``scale`` times, with transients at their size then.

    A transient is what differs from a rank's usual delay, with its ``habits`` fixed. Where uneven work is fully
    known, little else is transient.
    """
    if scale <= 1.0 or blocks.due is not None:
        return segments
    rest = repaired(blocks, habits)
    passes = rest - median(rest, axis=1)[:, None]
    noise = work_explained_delay.STALL * MAD_TO_SIGMA * float(median(np.abs(passes)))
    in_full = passes + (np.sqrt(scale) - 1) * np.clip(passes, -noise, noise)
    return np.asarray(segments - passes + in_full / scale)


#: At a step's end the others' noise hides up to about this share of a stall, as a share of the longer computing.
_HIDES = 0.05


def stalls_in_full(blocks: Blocks, stalled: Ints, seen: Floats, beyond: float) -> float:
    """How many times their visible delay, ``seen`` [S] ns, stalls cost if their computing is ``beyond`` times that
    delay.

    Where steps grew by less than the computing did, both estimates are weighted by their certainty: other delays in a
    stalled step hide some of the stall, and with few stalls it is unknown how much.
    """
    shown = float(median(seen[stalled]))
    if not (beyond > 1 and shown > 0):
        return beyond
    grew = savings.longer_when(blocks, stalled)
    if grew is None or grew[0] >= beyond * shown:
        return beyond
    longer, noise = grew
    unsure = _HIDES * beyond * shown
    return max(float((beyond * noise**2 + longer / shown * unsure**2) / (noise**2 + unsure**2)), 1.0)
