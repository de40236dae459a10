"""By what a segment of steps became longer while computing did not: the visible cost of slow transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median, standard_error
from hindmost_judge.whatif.savings import others_grew

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Ints


def lengthened(
    blocks: Blocks, first: int, stop: int, excess: float, settings: Settings, rows: Sequence[int] = ()
) -> float:
    """Ns by which steps [first, stop) are longer than the others, up to ``excess``; 0 where that is not sure.

    What the work of the typical rank but ``rows`` grew by is taken off.
    """
    outside = blocks.period[others(first, stop, len(blocks.steps), settings)]
    inside = blocks.period[first:stop]
    longer = float(median(inside) - median(outside))
    noise = float(np.hypot(standard_error(inside), standard_error(outside)))
    grew = others_grew(blocks, rows, slice(first, stop))
    if grew is None or longer < settings.network_z * noise:
        return 0.0
    return min(longer - max(grew, 0.0), excess)


def others(first: int, stop: int, count: int, settings: Settings) -> Ints:
    """Indices, of so many steps, of those that steps [first, stop) are set against.

    These come before. If the segment begins with the run, or so soon that few do, those that follow count, too.
    """
    before = np.arange(first)
    return before if first >= settings.min_steps else np.append(before, np.arange(stop, count))
