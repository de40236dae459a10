"""What a GPU computes longer between collectives though its host had launched all of it long before.

A collective that was enqueued before the one that precedes it had ended found the GPU at work on what was launched
before that: of the time between the two nothing is the host's. In tensor groups, whose phases hold the others' waiting
too, no phase tells it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes.launching import CLOCKS_NS
from hindmost_judge.timeline import join

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.types import Array


def longer(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns per step, over the steps ``columns`` (indices), of a rank's delay between collectives that were all enqueued
    by then.

    0 where collectives overlap with computing, or enqueue times are unknown."""
    grid = blocks.joined
    if grid is None or not grid.gpu_time or blocks.overlapped or blocks.pipeline is not None:
        return 0.0
    if blocks.segments.shape != grid.start.shape or not (grid.enqueue[row] > 0).any():
        return 0.0
    own = join.own_time(grid, blocks.beside)[row]
    launched = grid.start[row] - grid.enqueue[row] > np.nan_to_num(own) + CLOCKS_NS
    held = np.isin(blocks.segment_step, columns) & launched & ~blocks.beside
    return max(float(np.nan_to_num(blocks.segments[row, held]).sum()) / len(columns), 0.0)
