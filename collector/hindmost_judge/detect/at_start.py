"""The first steps of a run, on time before a rank is late, and too few for a segment of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.detect.episodes import SHORTEST
from hindmost_judge.stats.robust import median

if TYPE_CHECKING:
    from hindmost_judge.types import Floats

#: Fewer steps on time at the start are chance, or start-up; more of them form a segment of their own.
_FEWEST, _MOST = 2, 2 * SHORTEST
#: A rank was on time at first if it was later afterwards by this many times the scatter of so many steps.
_CLEAR = 4.0


def on_time(late: Floats, level: float, noise: float) -> int:
    """How many steps are clearly on time before a rank's delay [S] reaches ``level``; its ``noise`` is a step's.

    One of three or more may have been late for something else, as a first step's warm-up.
    """
    start = late[:_MOST]
    behind = np.append(0.0, np.cumsum(start - level / 2))
    first = int(np.argmin(behind))
    before, after = start[:first], start[first:]
    if len(before) < _FEWEST or not len(after) or level * np.sqrt(first) < _CLEAR * noise:
        return 0
    return first if median(before) < level / 4 and median(after) >= level / 2 else 0
