"""The first steps of a run, on time before a rank is late, and too few for a stretch of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.detectors.episodes import SHORTEST

if TYPE_CHECKING:
    from hindmost_collector.align import Floats

#: Fewer steps at the start on time are chance, or how it starts.
_FEWEST = 2
#: By so many times its scatter a rank must be late for a single step to show whether it is.
_CLEAR = 4.0


def on_time(late: Floats, level: float, noise: float) -> int:
    """How many steps are clearly on time before a rank's lateness [S] is at ``level``; its ``noise`` is a step's."""
    start = late[:SHORTEST]
    shows = start >= level / 2
    first = int(np.argmax(shows))
    clear = np.sum(start[:first] < level / 4) >= _FEWEST and bool(shows[first:].all())
    return first if clear and level >= _CLEAR * noise else 0
