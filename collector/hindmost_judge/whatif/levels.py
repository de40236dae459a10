"""In which order operations that wait for each other can be replayed: level by level, each at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_judge.types import Ints


def topological(base: Ints, previous: Ints, source: Ints, unit: Ints) -> list[Ints] | None:
    """Operations in an order in which each comes after all that it needs; ``None`` where they wait in a circle."""
    operation = np.arange(len(base))
    ends, begins = [], []
    for before in (base, previous, source):
        held = before >= 0
        ends.append(unit[operation[held]])
        begins.append(unit[before[held]])
    after, first = np.concatenate(ends), np.concatenate(begins)
    order = np.argsort(first, kind="stable")
    after, first = after[order], first[order]
    waiting = np.bincount(after, minlength=len(base))
    by_unit = np.argsort(unit, kind="stable")
    bounds = np.searchsorted(unit[by_unit], np.arange(len(base) + 1))
    edges = np.searchsorted(first, np.arange(len(base) + 1))
    free = np.flatnonzero((waiting == 0) & (np.diff(bounds) > 0))
    levels, done = [], 0
    while len(free):
        level = by_unit[_ranges(bounds[free], bounds[free + 1])]
        levels.append(level)
        done += len(level)
        reached = after[_ranges(edges[free], edges[free + 1])]
        np.subtract.at(waiting, reached, 1)
        reached = np.unique(reached)
        free = reached[waiting[reached] == 0]
    return levels if done == len(base) else None


def _ranges(first: Ints, stop: Ints) -> Ints:
    """All integers of several ranges, one after the other."""
    size = stop - first
    return np.repeat(first - np.append(0, np.cumsum(size)[:-1]), size) + np.arange(size.sum())
