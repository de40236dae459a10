"""From where to where each rank's file goes, against the others: a cut file says nothing about the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost_judge.model import rows
from hindmost_judge.verdict.wording import names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hindmost_judge.model import Table

#: A file that lacks less than this share of what others have, or than so many steps, ended when the job did.
_AT_ONCE, _STEPS_AT_ONCE = 0.03, 2
#: … or than so many operations: of few the share says little.
_OPERATIONS_AT_ONCE = 8
#: A file with less than this share of what others have, or than so many steps, is too little to judge by.
_THIN, _THIN_STEPS = 0.1, 10


@dataclass(frozen=True)
class Extent:
    """What a rank's file has of what is numbered from ``begin`` to ``end`` in any: from ``first`` to ``last``."""

    rank: int
    first: int
    last: int
    begin: int
    end: int
    what: str  # step or operation
    steps: float  # that it covers, as far as known

    @property
    def share(self) -> float:
        """Share of the whole that the file covers."""
        return (self.last - self.first + 1) / (self.end - self.begin + 1)

    @property
    def thin(self) -> bool:
        """Whether it is too little to judge the rank by."""
        return self.share < _THIN or self.steps < _THIN_STEPS

    def __str__(self) -> str:
        if self.last < self.end:
            return f"{names([self.rank])}'s file ends at {self.what} {self.last:,} of {self.end:,}"
        return f"{names([self.rank])}'s file begins at {self.what} {self.first:,} of {self.end:,}"


def of_steps(table: Table) -> list[Extent]:
    """The ranks whose steps end, or begin, well apart from the others'."""
    if not rows(table):
        return []
    ranks, first, last = _bounds(table["rank"], table["step"])
    begin, end = int(first.min()), int(last.max())
    found = (
        Extent(rank, one, other, begin, end, "step", other - one + 1)
        for rank, one, other in zip(ranks.tolist(), first.tolist(), last.tolist(), strict=True)
    )
    return [one for one in found if _cut(one, _STEPS_AT_ONCE)]


def of_operations(table: Table) -> list[Extent]:
    """The same for operations, which members of a communicator number alike; in steps where those are known."""
    held = np.flatnonzero((table["peer"] < 0) & (table["seq"] >= 0)) if rows(table) else np.empty(0, np.int64)
    numbered = len(np.unique(table["step"][held]))
    found: dict[int, Extent] = {}
    for comm in np.unique(table["comm"][held]).tolist():
        mine = held[table["comm"][held] == comm]
        ranks, first, last = _nearly_all(table["rank"][mine], table["seq"][mine])
        begin, end = int(first.min()), int(last.max())
        least = max(_OPERATIONS_AT_ONCE, _STEPS_AT_ONCE * (end - begin + 1) / numbered if numbered > 1 else 0)
        for rank, one, other in zip(ranks.tolist(), first.tolist(), last.tolist(), strict=True):
            extent = Extent(rank, one, other, begin, end, "operation", float("inf"))
            if _cut(extent, least) and (rank not in found or extent.share < found[rank].share):
                found[rank] = extent
    return [_in_steps(one, table, held) for one in found.values()]


def common(cut: Iterable[Extent]) -> tuple[float, float]:
    """Which part of the whole all of these have: the shares of it at which that begins and ends."""
    first, last = 0.0, 1.0
    for one in cut:
        count = one.end - one.begin + 1
        first = max(first, (one.first - one.begin) / count)
        last = min(last, (one.last - one.begin + 1) / count)
    return first, last


def _cut(one: Extent, least: float) -> bool:
    count = one.end - one.begin + 1
    return max(one.end - one.last, one.first - one.begin) > max(_AT_ONCE * count, least)


def _in_steps(one: Extent, table: Table, held: np.ndarray[Any, Any]) -> Extent:
    """The same in steps, where operations have them."""
    step = table["step"][held]
    mine = step[(table["rank"][held] == one.rank) & (step >= 0)]
    known = step[step >= 0]
    if not len(mine) or len(np.unique(known)) < _STEPS_AT_ONCE:
        return one
    first, last = int(mine.min()), int(mine.max())
    return Extent(one.rank, first, last, int(known.min()), int(known.max()), "step", last - first + 1)


#: Numbers of this share of a rank's operations at either end may be strays, which no other rank numbers alike.
_STRAY = 0.01


def _nearly_all(rank: np.ndarray[Any, Any], number: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """Ranks, and between which numbers nearly all operations of each are."""
    ranks = np.unique(rank)
    bounds = []
    for one in ranks.tolist():
        mine = number[rank == one]
        few = int(_STRAY * len(mine))
        ordered = np.partition(mine, (few, len(mine) - 1 - few))
        bounds.append((ordered[few], ordered[len(mine) - 1 - few]))
    first, last = np.array(bounds, np.int64).T
    return ranks, first, last


def _bounds(rank: np.ndarray[Any, Any], number: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """Ranks, and the lowest and the highest number of each."""
    ranks, row = np.unique(rank, return_inverse=True)
    first = np.full(len(ranks), np.iinfo(np.int64).max)
    last = np.full(len(ranks), -1)
    np.minimum.at(first, row, number)
    np.maximum.at(last, row, number)
    return ranks, first, last
