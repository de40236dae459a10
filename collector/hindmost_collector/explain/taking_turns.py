"""Whether another process takes turns on a rank's GPU, where nothing but when its collectives began tells so.

Of a GPU that two processes share each has it for a slice of time, one or two ms, and then waits for as long. What is
computed between two collectives mostly takes as long as ever, and now and then a slice longer: at another place in each
step, several times in each, and at every place in some. Slow code is slow at the same places, and a stall is rare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.robust import MAD_TO_SIGMA, median

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Floats
    from hindmost_collector.timeline.blocks import Blocks

#: What takes longer than is usual at its place by this share, and by so many standard deviations, waited for a slice.
_SHARE, _BEYOND_CHANCE = 0.1, 6.0
#: … in nearly all steps, and at places where most of their time is computed, at none of them mostly: there it would be
#: the usual.
_STEPS, _PLACES, _MOSTLY = 0.9, 0.75, 0.5
#: The typical step is longer by this share than what is usual at its places: in recordings of shared GPUs by 0.09 to
#: 0.27, in 140 others by 0.03 at most, but where a host was starved and launched late.
_LONGER = 0.06
#: Places of a step that must be known.
_FEWEST = 5


def in_all(usual: Floats, took: Floats) -> Floats:
    """[P] what is ``usual`` at each place, as long in all as in the typical step of those that ``took`` [N, P] ns.

    What comes at another place in each step shows in the median of none.
    """
    return np.asarray(usual * _longer(usual, took))


def shown(usual: Floats, took: Floats) -> float:
    """Ns of a slice for which a GPU typically computes nothing; 0 where nobody takes turns on it."""
    known = ~np.isnan(usual)
    if np.sum(known) < _FEWEST or _longer(usual, took) < 1 + _LONGER:
        return 0.0
    more = (took - usual)[:, known]
    scatter = MAD_TO_SIGMA * median(np.abs(more), axis=0)
    waited = more > np.fmax(_SHARE * usual[known], _BEYOND_CHANCE * scatter)
    often = waited.mean(axis=0)
    there = float(usual[known][(often > 0) & (often < _MOSTLY)].sum())
    everywhere = there >= _PLACES * float(usual[known].sum())
    return float(median(more[waited])) if everywhere and waited.any(axis=1).mean() >= _STEPS else 0.0


def others_seen(blocks: Blocks, row: int, columns: Array) -> bool:
    """Whether memory that other processes hold of a rank's GPU was measured: that says more."""
    foreign = blocks.gauges(columns).get("foreign_memory")
    return foreign is not None and not np.isnan(foreign[row])


def _longer(usual: Floats, took: Floats) -> float:
    """How many times what is usual at its places the typical step takes; never less."""
    whole = float(np.nansum(usual))
    each = np.nansum(np.where(np.isnan(took), usual, took), where=~np.isnan(usual), axis=1)
    return max(float(median(each)) / whole, 1.0) if whole > 0 else 1.0
