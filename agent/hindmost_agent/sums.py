"""Counters of threads and processes that come and go, added up so that the sum only grows."""

from __future__ import annotations

import math

from hindmost_agent.sampler import NAN

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
        self._last: dict[tuple[int, int], tuple[float, float]] = {}
        self._totals: dict[str, list[float]] = {}
        self._unread: set[tuple[str, int]] = set()

    @property
    def groups(self) -> dict[str, tuple[float, float]]:
        """Both sums of each group; ``NAN``: missing."""
        return {
            name: (NAN if (name, 0) in self._unread else first, NAN if (name, 1) in self._unread else second)
            for name, (first, second) in self._totals.items()
        }

    def add(self, found: dict[tuple[int, int], tuple[str, float, float]]) -> None:
        """Take in the two counters of each thread or process, by its id and start, with the group that it is in."""
        self._unread.clear()
        for key, (group, *now) in found.items():
            name = group if group in self._totals or len(self._totals) < MOST_GROUPS else "other"
            before = self._last.pop(key, (NAN, NAN))
            self._last[key] = self._count(name, 0, now[0], before[0]), self._count(name, 1, now[1], before[1])
        for key in list(self._last)[: max(len(self._last) - MOST_REMEMBERED, 0)]:
            del self._last[key]

    def _count(self, name: str, place: int, now: float, before: float) -> float:
        """Add what a counter has grown; returns what is known of it from now on."""
        total = self._totals.setdefault(name, [NAN, NAN])
        if math.isnan(now):
            if math.isnan(before):
                self._unread.add((name, place))
            return before
        grown = max(now if math.isnan(before) else now - before, 0.0)
        total[place] = grown if math.isnan(total[place]) else total[place] + grown
        return now
