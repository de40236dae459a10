"""Counters of threads and processes that come and go, added up so that the sum only grows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from hindmost_agent.sampler import NAN

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The group of a thread or process, and its counters.
Counted: TypeAlias = "tuple[str, float, float] | tuple[str, float, float, float]"

#: Groups of one rank; what is in none of the first is in ``other``.
MOST_GROUPS = 24
#: Threads or processes whose counters are remembered, ended ones included: one missing from a list may be back.
MOST_REMEMBERED = 2048


class Sums:
    """Counters of what comes and goes, added up by group: what an ended thread had used stays in its group's sum.

    While a counter of one that is there has never been read, that sum is missing. One that is not listed once, or whose
    counter is not read once, is not counted anew when it is back.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], tuple[float, ...]] = {}
        self._totals: dict[str, list[float]] = {}
        self._unread: set[tuple[str, int]] = set()

    @property
    def groups(self) -> dict[str, tuple[float, ...]]:
        """The sums of each group, in the order in which the counters were given; ``NAN``: missing."""
        return {
            name: tuple(NAN if (name, place) in self._unread else total for place, total in enumerate(totals))
            for name, totals in self._totals.items()
        }

    def add(self, found: Mapping[tuple[int, int], Counted]) -> None:
        """Take in the counters of each thread or process, by its id and start, with the group that it is in."""
        self._unread.clear()
        for key, (group, *now) in found.items():
            name = group if group in self._totals or len(self._totals) < MOST_GROUPS else "other"
            before = self._last.pop(key, (NAN,) * len(now))
            self._totals.setdefault(name, [NAN] * len(now))
            self._last[key] = tuple(
                self._count(name, place, *both) for place, both in enumerate(zip(now, before, strict=True))
            )
        for key in list(self._last)[: max(len(self._last) - MOST_REMEMBERED, 0)]:
            del self._last[key]

    def _count(self, name: str, place: int, now: float, before: float) -> float:
        """Add what a counter has grown; returns what is known of it from now on."""
        total = self._totals[name]
        if math.isnan(now):
            if math.isnan(before):
                self._unread.add((name, place))
            return before
        grown = max(now if math.isnan(before) else now - before, 0.0)
        total[place] = grown if math.isnan(total[place]) else total[place] + grown
        return now
