"""When hosts launched collectives, set against when their GPUs ran them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_judge.timeline.join import Grid
    from hindmost_judge.types import Floats

#: Clocks of one host, once set right, are so many ns apart.
_SOON_NS = 1e5
#: Ranks and collectives sampled, whatever the size of the job; of these a few launches may be wrong.
_RANKS, _COLUMNS, _FIRST = 16, 2048, 0.002
#: Share of the collectives that hosts launch after the one before, if they wait for each.
_EACH = 0.95


def waits_for_each(grid: Grid) -> bool:
    """Whether hosts wait for each collective before they launch the next: all their work is between two."""
    if np.isnan(grid.enqueue).all() or grid.columns < 2:
        return False
    some = slice(None, None, len(grid.ranks) // _RANKS + 1)
    stop = (grid.start + grid.duration)[some] - ahead_of_host(grid, some)
    after = grid.enqueue[some, 1:] - stop[:, :-1]
    known = after[~np.isnan(after)]
    return known.size > 0 and bool(np.mean(known > -_SOON_NS) >= _EACH)


def ahead_of_host(grid: Grid, rows: slice = slice(None)) -> Floats:
    """[R, 1] ns by which clocks of these GPUs are ahead of their hosts': none begins what was not yet launched."""
    some = slice(None, None, grid.columns // _COLUMNS + 1)
    waited = (grid.start[rows, some] - grid.enqueue[rows, some]).copy()
    waited[~(grid.enqueue[rows, some] > 0)] = np.nan
    seen = ~np.isnan(waited).all(axis=1)
    found = np.full((len(waited), 1), np.nan)
    found[seen, 0] = np.nanquantile(waited[seen], _FIRST, axis=1)
    return found
