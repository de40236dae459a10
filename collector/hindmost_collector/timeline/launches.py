"""When hosts launched collectives, set against when their GPUs ran them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_collector.align import Floats, Grid

#: Clocks of one host, once set right, are so many ns apart.
_SOON_NS = 1e5
#: Share of the collectives that hosts launch after the one before, if they wait for each.
_EACH = 0.95


def waits_for_each(grid: Grid) -> bool:
    """Whether hosts wait for each collective before they launch the next: all their work is between two."""
    if np.isnan(grid.enqueue).all() or grid.columns < 2:
        return False
    start = grid.start - ahead_of_host(grid)
    after = grid.enqueue[:, 1:] - (start + grid.duration)[:, :-1]
    known = after[~np.isnan(after)]
    return known.size > 0 and bool(np.mean(known > -_SOON_NS) >= _EACH)


def ahead_of_host(grid: Grid) -> Floats:
    """[R, 1] ns by which a GPU's clock is ahead of its host's: none begins what was not yet launched."""
    waited = grid.start - grid.enqueue
    return np.asarray(np.nanquantile(np.where(grid.enqueue > 0, waited, np.nan), 0.002, axis=1)[:, None])
