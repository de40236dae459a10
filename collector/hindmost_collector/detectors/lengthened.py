"""By what a stretch of steps became longer, and computing did not: what slow transfers cost, where that shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.costs.whatif import others_grew
from hindmost_collector.robust import median, standard_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_collector.settings import Settings
    from hindmost_collector.timeline.blocks import Blocks


def lengthened(
    blocks: Blocks, first: int, stop: int, excess: float, settings: Settings, rows: Sequence[int] = ()
) -> float:
    """Ns by which steps [first, stop) are longer than the others, up to ``excess``; 0 where that is not sure.

    What the work of the typical rank but ``rows`` grew by is taken off. Steps that come before are compared, and those
    that follow where the stretch begins with the run.
    """
    outside = blocks.period[:first] if first > 0 else blocks.period[stop:]
    inside = blocks.period[first:stop]
    longer = float(median(inside) - median(outside))
    noise = float(np.hypot(standard_error(inside), standard_error(outside)))
    grew = others_grew(blocks, rows, slice(first, stop))
    if grew is None or longer < settings.network_z * noise:
        return 0.0
    return min(longer - max(grew, 0.0), excess)
