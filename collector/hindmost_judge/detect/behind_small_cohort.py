"""Small cohorts: ranks later than all others by more than healthy ones differ, while the others differ more than that,
too.

With three of four ranks slow, each by a different amount, no cohort shows how much healthy ranks differ, and the
typical rank is slow. Whichever of the others are slow, or ahead, all wait for the latest: fixing it to the next
one's pace surely saves the difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import block_medians, median, standard_error

if TYPE_CHECKING:
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Floats

#: For up to this many ranks. In a larger job hardly half of the ranks are slow, each by its own amount; the usual
#: spread decides there.
MOST = 64
#: Two healthy GPUs differ by at most this many standard deviations of such differences.
_AT_MOST = 3.0


def ratio(excess: Floats, row: int, least: float, settings: Settings) -> float:
    """How many standard deviations a rank is behind all ranks that are less late; 0 where it is not sure.

    ``excess`` is [R, N]. Up to half of the ranks may be so late. Between them and the next rank lies a gap of
    ``least`` ns, the largest difference between healthy ranks.
    """
    if not least > 0:
        return 0.0
    levels = median(excess, axis=1)
    order = np.argsort(-levels, kind="stable")
    place, count = int(np.flatnonzero(order == row)[0]), len(order)
    best = 0.0
    for late in range(place + 1, count // 2 + 1):
        last, rest = order[late - 1], order[late:]
        scale = _counted(late, count)
        gap = (excess[last] - np.fmax.reduce(excess[rest], axis=0)) / scale
        if _is_sure(gap, least, settings):
            best = max(best, _AT_MOST * float(median(gap)) / least)
    return best


def _is_sure(gap: Floats, least: float, settings: Settings) -> bool:
    """Whether a gap of so much shows all along, beyond what it scatters by."""
    level = float(median(gap))
    steady = float(np.mean(block_medians(gap) >= level / 2)) >= settings.min_consistency
    return level >= least and steady and level >= settings.min_z * standard_error(gap)


def _counted(late: int, count: int) -> float:
    """How often the gap after the first ``late`` of ``count`` ranks counts in their delay.

    Each rank is set against the median of the others: the gap counts once for ranks beyond the middle, and twice
    around it, where ranks on either side are set against each other.
    """
    if late + 1 <= count // 2:
        return 1.0
    return 2.0 if count % 2 == 0 else 1.5
