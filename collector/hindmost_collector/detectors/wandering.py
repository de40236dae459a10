"""Whether a rank among few is now ahead and now behind for a while each, as hosts of healthy jobs are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.detectors.episodes import SHORTEST
from hindmost_collector.robust import block_medians, median

if TYPE_CHECKING:
    from hindmost_collector.align import Floats

#: A stretch of a rank among few must be above what it is before and after by so many times what that scatters to.
_ABOVE = 3.0
#: Steps in this part of a stretch's are told by their median, which nothing shorter than half of them moves.
_AS_LONG = 4


def wanders(series: Floats, begin: int, end: int, level: float) -> bool:
    """Whether a rank is now ahead and now behind of the few others, for a while each, and not in this stretch only.

    Whiles of less than an eighth of the stretch are none of its kind. Beside a stretch that is longer than all else, an
    eighth of that may be another's noise: a start, a host's stall.
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
