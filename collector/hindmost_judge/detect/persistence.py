"""Whether a series of steps is persistently high, and whether two segments of it are one in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import block_medians, median, standard_error

if TYPE_CHECKING:
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Floats


def by_habit(more: Floats, smallest: float, settings: Settings) -> bool:
    """Whether a series [S] is at least ``smallest`` in most of these steps, and surely."""
    level = float(median(more))
    steady = float(np.mean(block_medians(more) >= level / 2)) >= settings.min_consistency
    return level >= smallest and steady and level >= settings.min_z * standard_error(more)


def together(one: slice, other: slice) -> bool:
    """Whether two segments of steps are mostly the same."""
    common = min(one.stop, other.stop) - max(one.start, other.start)
    return bool(2 * common > max(one.stop - one.start, other.stop - other.start))
