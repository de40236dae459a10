"""Noise test for hosts whose pace changes for a while: if all ranks have such segments, the latest one's is not a
fault.

Scatter from step to step does not show it. For a dozen steps in a row a CPU's clock or its neighbours make launching a
quarter longer, now on this rank and now on that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.detect.episodes import SHORTEST
from hindmost_judge.stats.robust import median

if TYPE_CHECKING:
    from hindmost_judge.types import Floats

#: Segments of other ranks count as similar from this share of the delay on: the highest of a dozen draws is twice the
#: typical one.
_ALIKE = 0.4
#: One in this many ranks, and one at least, may have a transient slowdown of its own and says nothing about the others.
_SLOW_TOO = 4
#: A segment with this share of the steps is not tested: no other rank can have one as long at another time.
_MOST = 0.8
#: Starts tried for each segment length, most starts in a long run, and ranks sampled in a large job.
_STARTS, _MOST_STARTS, _SAMPLE = 4, 128, 512


def others_too(late: Floats, row: int, first: int, stop: int, level: float) -> bool:
    """Whether most other ranks have segments half as long as [first, stop) in which they are about as late.

    ``late`` [R, S] is each rank's delay, ``level`` that of ``row`` in these steps. Each is set against its own
    usual.
    """
    steps = late.shape[1]
    if stop - first >= _MOST * steps:
        return False
    size = max(SHORTEST, (stop - first) // 2)
    starts = np.arange(0, steps - size + 1, max(size // _STARTS, (steps - size) // _MOST_STARTS, 1))
    others = np.delete(np.arange(len(late)), row)
    chosen = late[others[:: max(len(others) // _SAMPLE, 1)]]
    chosen = np.maximum(np.nan_to_num(chosen), 0.0)  # who is ahead of others that became late is not late before
    chosen = chosen - median(chosen, axis=1)[:, None]
    levels = np.stack([median(chosen[:, start : start + size], axis=1) for start in starts.tolist()], axis=1)
    peaks = np.sort(levels.max(axis=1))
    return bool(peaks[-1 - max(1, len(peaks) // _SLOW_TOO)] >= _ALIKE * level)
