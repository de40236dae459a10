"""What a repair would save: the run's synchronisations replayed with one rank or set at its peers' pace.

Between two synchronisations the job takes as long as its slowest rank. Taking a rank's habitual excess away, and
nothing of its noise, gives the time the job would have taken with that rank repaired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.robust import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_collector.align import Floats, Ints
    from hindmost_collector.blocks import Blocks


def repaired(segments: Floats, segment_step: Ints, rows: Sequence[int], during: slice) -> Floats:
    """[R, K] excess with the habitual part of these rows taken away in the steps of ``during``.

    The habit is the median at the same place of the step, so that one slow stretch of many is found and repaired.
    """
    fixed: Floats = segments.copy()
    first, stop, _ = during.indices(int(segment_step.max()) + 1 if len(segment_step) else 0)
    held = np.flatnonzero((segment_step >= first) & (segment_step < stop))
    place = held - np.searchsorted(segment_step, segment_step[held])
    for spot in np.unique(place):
        columns = held[place == spot]
        for row in rows:
            fixed[row, columns] -= max(float(median(segments[row, columns])), 0.0)
    return fixed


def saving(blocks: Blocks, rows: Sequence[int], during: slice = slice(None)) -> Floats:
    """[S] ns that each step would have been shorter with these rows repaired during those steps."""
    fixed = repaired(blocks.segments, blocks.segment_step, rows, during)
    gain = blocks.segments.max(axis=0) - fixed.max(axis=0)
    return np.bincount(blocks.segment_step, weights=gain, minlength=len(blocks.steps)).astype(np.float64)


def stall_saving(blocks: Blocks, row: int, stalled: Ints) -> Floats:
    """[S] ns saved in the stalled steps if this rank had been at its peers' pace in them."""
    fixed = blocks.segments.copy()
    columns = np.flatnonzero(np.isin(blocks.segment_step, stalled))
    fixed[row, columns] = np.minimum(fixed[row, columns], 0.0)
    gain = blocks.segments.max(axis=0) - fixed.max(axis=0)
    return np.bincount(blocks.segment_step, weights=gain, minlength=len(blocks.steps)).astype(np.float64)


def waste(blocks: Blocks) -> float:
    """Ns a typical step loses to ranks that are not alike: every stretch at its ranks' mean instead of its slowest."""
    if blocks.segments.size == 0:
        return 0.0
    gain = blocks.segments.max(axis=0) - blocks.segments.mean(axis=0)
    return float(gain.sum() / max(len(blocks.steps), 1))
