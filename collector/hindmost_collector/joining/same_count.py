"""By how much two sources' numbers of one communicator's operations differ.

NCCL numbers operations of each kind separately. A log without its beginning has none of the kinds that occur at
start-up only, such as the broadcasts of a model's parameters. It then counts fewer than a source that numbers all
kinds together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hindmost_collector.formats.columns import select

if TYPE_CHECKING:
    from hindmost_judge.model import Table

#: Operations, at most, of kinds that only one source has. A model has some dozen parameters broadcast at once.
_MOST = 512
#: Operations of a rank that are compared.
_COMPARED = 4096
#: Share of them that must be of one kind and size: sources describe the operations that only one of them has
#: differently.
_ALIKE = 0.99
#: Bytes of an element.
_ITEMS = np.array([1, 2, 4, 8])
#: What NCCL runs for it is an all-reduce.
_BARRIERS = ("barrier", "all_reduce_barrier")


def difference(mine: Table, theirs: Table, size: int) -> int | None:
    """What to add to the numbers of ``mine`` for them to be those of ``theirs``; ``None`` where nothing fits.

    Both are one rank's collectives in one communicator of ``size`` ranks, in order. The least that fits: operations
    repeat from step to step, so that a whole number of steps more would do too.
    """
    near = (mine["seq"] >= theirs["seq"][0] - _MOST) & (mine["seq"] <= theirs["seq"][-1])
    mine = select(mine, np.flatnonzero(near)[:_COMPARED])
    for more in range(_most(mine, theirs) + 1):
        first, second = _together(mine, theirs, more)
        if len(first) and _alike(select(mine, first), select(theirs, second), size) >= _ALIKE:
            return more
    return None


def _most(mine: Table, theirs: Table) -> int:
    """How many operations of kinds that ``mine`` has none of may have run before; 0 for recordings of other times."""
    together, _ = _together(mine, theirs, 0)
    if 2 * len(together) < min(len(mine["seq"]), len(theirs["seq"])):
        return 0
    if theirs["seq"][0] > 0:
        return _MOST
    return min(int(np.count_nonzero(~np.isin(theirs["op"], mine["op"]))), _MOST)


def _together(mine: Table, theirs: Table, more: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows of both with one number, if ``more`` is added to mine."""
    _, first, second = np.intersect1d(mine["seq"] + more, theirs["seq"], return_indices=True)
    return first, second


def _alike(mine: Table, theirs: Table, size: int) -> float:
    """Share of these pairs that may be one operation, by their kinds and by their sizes where both are known.

    A size may be an element count, or that of one rank's part of all.
    """
    kind = (mine["op"] == theirs["op"]) | ((mine["op"] == "all_reduce") & np.isin(theirs["op"], _BARRIERS))
    known = (mine["bytes"] > 0) & (theirs["bytes"] > 0)
    times = theirs["bytes"] / np.maximum(mine["bytes"], 1)
    items = _ITEMS if "elements" in mine else _ITEMS[:1]
    fits = np.isin(times, items) | np.isin(times * size, items) | np.isin(times / size, items)
    return float(np.mean(kind & (fits | ~known)))
