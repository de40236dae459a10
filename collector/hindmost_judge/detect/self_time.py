"""Whether what a rank measured of its own work bears out that it is late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes import launch_bound
from hindmost_judge.stats.robust import block_medians, median, peers_median, standard_error

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Ints

#: Phases that are a rank's own work from end to end: no wait for others and no late launch is in them.
_PHASES = ("input", "gpu_forward")


def surely_longer(blocks: Blocks, row: int, held: Ints | slice, level: float, settings: Settings) -> bool:
    """Whether the typical of these steps has such a phase longer by about ``level`` ns, whatever batches differ by.

    With batches of uneven size, each makes another rank the last one. How often a rank is last then says little; how
    much longer it computes than its peers, over as many steps, is sure. A forward that its GPU ran as it was
    launched is the host's doing.
    """
    for name in _PHASES:
        part = blocks.parts.get(name)
        if part is None:
            continue
        more = (part[row] - peers_median(part)[row])[held]
        if name == "gpu_forward":
            launched = launch_bound.hand_to_mouth(blocks, settings, slice(row, row + 1))
            more = np.where(launched[0, held], np.nan, more) if launched is not None else more
        known = more[~np.isnan(more)]
        if len(known) < max(settings.min_steps, len(more) / 2):
            continue
        steady = np.mean(block_medians(known) >= level / 2) >= settings.min_consistency
        longer = float(median(known))
        if steady and longer >= max(settings.min_explained * level, settings.min_z * standard_error(known)):
            return True
    return False
