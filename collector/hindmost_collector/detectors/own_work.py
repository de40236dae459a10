"""Whether what a rank measured of its own work bears out that it is late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.robust import median, peers_median

if TYPE_CHECKING:
    from hindmost_collector.align import Ints
    from hindmost_collector.settings import Settings
    from hindmost_collector.timeline.blocks import Blocks

#: Phases that are a rank's own work from end to end: no wait for others and no late launch is in them.
_PHASES = ("input", "gpu_forward")
#: Where the probe times one step of fifty, so many tell.
_FEWEST_TIMED = 3


def longer(blocks: Blocks, row: int, held: Ints | slice, level: float, settings: Settings) -> bool:
    """Whether such a phase is longer by about ``level`` ns whenever it was timed in these steps, and shorter nowhere.

    Hosts of few ranks may wander for a while, each in its turn; that makes nobody's work longer in the same steps.
    """
    for name in _PHASES:
        part = blocks.parts.get(name)
        if part is None:
            continue
        more = part[row] - peers_median(part)[row]
        inside = more[held][~np.isnan(more[held])]
        if len(inside) < _FEWEST_TIMED or np.nanmin(more) < -level / 2:
            continue
        steady = np.mean(inside >= level / 2) >= settings.min_consistency
        if steady and float(median(inside)) >= settings.min_explained * level:
            return True
    return False
