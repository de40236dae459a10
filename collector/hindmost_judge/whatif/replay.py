"""The replay of a graph: each event comes once all that it follows has come, and its time after that has passed.

A max-plus recurrence (Baccelli et al., Synchronization and Linearity, 1992). What has other work, or transfers of
another length, keeps its order.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hindmost_judge.types import Floats, Ints


class Events:
    """N events of a job; of its E dependencies, ``edges``, each has the events that come before and after.

    ``circular``: some events wait for each other, and never come.
    """

    def __init__(self, count: int, edges: Iterable[tuple[Ints, Ints]]) -> None:
        before, after = (np.concatenate(ends) for ends in zip(*edges, strict=True))
        level = _levels(count, before, after)
        self.count, self.edges, self.circular = count, len(before), bool((level < 0).any())
        order = np.lexsort((after, level[after]))[np.count_nonzero(level[after] < 0) :]
        bounds = np.flatnonzero(np.diff(level[after[order]], prepend=0, append=count))
        self._levels = []
        for edges_of in np.split(order, bounds[1:-1]):
            reached, first = np.unique(after[edges_of], return_index=True)
            self._levels.append((edges_of, before[edges_of], first, reached))

    def times(self, ns: Floats) -> Floats:
        """[N, ...] when each event comes that takes ``ns`` [E, ...] after each of those before; 0 of the first ones.

        The last edges take no time where ``ns`` has fewer rows.
        """
        ns = np.concatenate([ns, np.zeros((self.edges - len(ns), *ns.shape[1:]))])
        found = np.zeros((self.count, *ns.shape[1:]))
        for edges, before, first, reached in self._levels:
            found[reached] = np.maximum.reduceat(found[before] + ns[edges], first, axis=0)
        return found


def _levels(count: int, before: Ints, after: Ints) -> Ints:
    """[N] the number of events on the longest way to each; -1 of those that wait in a circle, or for one."""
    found, waiting = np.full(count, -1), np.bincount(after, minlength=count)
    order = np.argsort(before, kind="stable")
    bounds = np.searchsorted(before[order], np.arange(count + 1))
    free, level = np.flatnonzero(waiting == 0), 0
    while len(free):
        found[free] = level
        sizes = bounds[free + 1] - bounds[free]
        at = np.repeat(bounds[free] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        reached, leading = np.unique(after[order[at]], return_counts=True)
        waiting[reached] -= leading
        free, level = reached[waiting[reached] == 0], level + 1
    return found
