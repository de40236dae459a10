"""Slow-downs of one rank that last a few steps and end: too short to change any median, and like nothing else there.

Eight steps nearly all late by a good part of a step may be chance where that happens to this one and that. It is none
where no other eight steps of any rank are late by a third as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.robust import median

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Floats

#: Shortest burst, in steps; of its steps as many may be like the others.
_SHORTEST, _DIPS = 8, 1
#: Most of any other steps as long must be later than this share of the burst, for those to be its like.
_ALIKE = 1 / 3
#: Ranks looked at closer, latest first.
_MOST = 8


def find(excess: Floats, least: float) -> list[tuple[int, int, int]]:
    """Row, first and stop (indices of steps) of each burst later than ``least`` ns that has not its like elsewhere."""
    if excess.shape[1] < 3 * _SHORTEST:
        return []
    rows, best = _latest(excess, least)
    found = []
    for row, at in zip(rows.tolist(), best.tolist(), strict=True):
        level = float(median(excess[row, at : at + _SHORTEST]))
        first, stop = _around(excess[row] >= level / 2, at)
        level = float(median(excess[row, first:stop]))
        if level >= least and not _has_its_like(excess, row, first, stop, level):
            found.append((row, first, stop))
    return found


def _counts(held: Array) -> Array:
    """[R, S - 7] how many of the eight steps from each on are held [R, S]."""
    sums = np.cumsum(held, axis=1, dtype=np.int32)
    sums = np.concatenate([np.zeros((len(held), 1), np.int32), sums], axis=1)
    return np.asarray(sums[:, _SHORTEST:] - sums[:, :-_SHORTEST])


def _latest(excess: Floats, least: float) -> tuple[Array, Array]:
    """Rows that are late for eight steps on end, the latest first, and where each is latest."""
    late = excess >= least
    rows = np.flatnonzero(np.count_nonzero(late, axis=1) >= _SHORTEST - _DIPS)  # of a large job a few
    late = _counts(late[rows]) >= _SHORTEST - _DIPS
    rows, late = rows[late.any(axis=1)], late[late.any(axis=1)]
    sums = np.cumsum(np.concatenate([np.zeros((len(rows), 1)), np.nan_to_num(excess[rows])], axis=1), axis=1)
    height = np.where(late, sums[:, _SHORTEST:] - sums[:, :-_SHORTEST], -np.inf)
    order = np.argsort(-height.max(axis=1, initial=-np.inf), kind="stable")[:_MOST]
    return rows[order], np.argmax(height[order], axis=1) if len(order) else order


def _around(high: Array, at: int) -> tuple[int, int]:
    """The steps around ``at`` that are nearly all high."""
    first, stop = at, at + _SHORTEST
    while first > 0 and (high[first - 1] or (first > 1 and high[first - 2])):
        first -= 1
    while stop < len(high) and (high[stop] or (stop + 1 < len(high) and high[stop + 1])):
        stop += 1
    held = np.flatnonzero(high[first:stop])
    return first + int(held[0]), first + int(held[-1]) + 1


def _has_its_like(excess: Floats, row: int, first: int, stop: int, level: float) -> bool:
    """Whether other steps of any rank, as many as the shortest burst, are mostly late by a third as much."""
    late = excess >= _ALIKE * level
    late[row, first:stop] = False
    often = np.count_nonzero(late, axis=1) > _SHORTEST / 2
    return bool((_counts(late[often]) > _SHORTEST / 2).any())
