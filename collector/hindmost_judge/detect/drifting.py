"""Whether a rank among few is now ahead and now behind for a while each, as hosts of healthy jobs are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.detect.episodes import SHORTEST
from hindmost_judge.stats.robust import block_medians, median

if TYPE_CHECKING:
    from hindmost_judge.types import Floats

#: A segment of a rank in a small cohort must exceed the rank's level before and after by this many times its scatter
#: there.
_ABOVE = 3.0
#: Blocks of this fraction of the segment are reduced to their median; a slowdown under half of a block does not move
#: it.
_AS_LONG = 4


def wanders(series: Floats, begin: int, end: int, level: float) -> bool:
    """Small-cohort noise test: whether a rank drifts ahead of and behind the few others, and not in this segment only.

    Drifts shorter than an eighth of the segment do not count. For a segment longer than all else, an eighth of the
    rest may be other noise: a start, a host's stall.
    """
    around = np.concatenate([series[:begin], series[end:]])
    if len(around) < 2 * SHORTEST:
        return False
    scatters = np.sort(np.nan_to_num(np.abs(_levels(around, (end - begin) // _AS_LONG))))
    others = len(scatters) // 8 if end - begin >= len(around) else 0
    return level < _ABOVE * float(scatters[len(scatters) - 1 - others])


def _levels(series: Floats, least: int) -> Floats:
    """Medians of the blocks of a series, or of fewer that have so many steps at least."""
    pieces = len(series) // max(least, 1)
    blocks = block_medians(series)
    if pieces >= len(blocks):
        return blocks
    return np.array([median(piece) for piece in np.array_split(series, max(pieces, 1))])
