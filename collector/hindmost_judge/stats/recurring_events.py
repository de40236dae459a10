"""Few large events of one rank: a mixture of two states, on time and late by one size.

Hiccups of a healthy host come in all sizes, and hit any rank. What stops one rank again and again makes it late by
about the same time each time. So few events are enough, if they are alike and nearly all that are as large.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import exp, lgamma, log

import numpy as np

from hindmost_judge.stats.robust import or_zero
from hindmost_judge.types import Floats, Ints

#: Events of one size differ by up to this factor. Of a healthy host's hiccups that are at least as large as one, this
#: share is of its size: sizes are taken to follow a Pareto distribution of index 1, whose mean is infinite.
ALIKE = 1.2
_BY_CHANCE_ALIKE = 1 - 1 / ALIKE
#: Probability of a false alarm in a job whose hiccups have all sizes, and also of one whose hiccups have one size. The
#: latter is larger with fewer than four ranks: one of two has six of six hiccups in three jobs of a hundred.
_CHANCE, _FEW_RANKS, _CHANCE_AMONG_FEW = 0.002, 4, 0.05
#: A sum is complete once the next term is this part of it.
_SMALL = 1e-9
#: Events in a larger share of the steps are not rare. If a rank has more events of the next smaller size, as a share of
#: these, its delays scatter: it is not in one of two states.
_MAX_SHARE, _MAX_BETWEEN = 0.2, 0.2


@dataclass(frozen=True)
class Recurring:
    """A row that is late again and again by about ``size`` ns, in these ``steps`` [E].

    ``share`` is its part of all ranks' events that are as large, ``p_value`` the chance that some healthy rank has as
    many (family-wise).
    """

    row: int
    steps: Ints
    size: float
    share: float
    p_value: float


#: Events come at one pace if so many of the times from one to the next are this close to the typical one, and more than
#: of random ones are by chance: of these it is that share, and so many hit the mark in one job of a hundred.
_REGULAR, _CLOSE, _PACED = 0.6, 0.15, 4
_RANDOM, _BY_LUCK = 2.0 ** (_CLOSE - 1) - 2.0 ** (-_CLOSE - 1), 0.01


def begins(steps: Ints) -> Ints:
    """Of these steps, in order, those that do not follow on another."""
    return steps[np.diff(steps, prepend=-2) > 1]


def apart(steps: Ints) -> int | None:
    """By how many steps events that begin in these ``steps`` are apart, where all are, or some by a multiple of it."""
    gaps = np.diff(begins(steps))
    if len(gaps) < _PACED:
        return None
    least = int(gaps.min())
    return least if not (gaps % least).any() and np.mean(gaps == least) >= _REGULAR else None


def pace(period: Floats, steps: Ints) -> float | None:
    """Ns from one event in these ``steps`` to the next, where the clock paces them; ``period`` [S] ns.

    The time between two tells, and that without their own: of long ones all begin about as far apart.
    """
    calm = or_zero(period)
    calm[steps] = 0.0
    gaps, between = (np.diff(np.cumsum(one)[begins(steps)]) for one in (or_zero(period), calm))
    if len(gaps) < _PACED:
        return None
    close = int(
        np.logical_and(*(np.abs(one - np.median(one)) <= _CLOSE * np.median(one) for one in (gaps, between))).sum()
    )
    regular = close >= _REGULAR * len(gaps) and tail(close - 1, len(gaps) - 1, _RANDOM) <= _BY_LUCK
    return float(np.median(gaps)) if regular else None


def events(delay: Floats, least: float) -> tuple[Ints, Ints, Floats]:
    """Row, step and size (ns) of each event [E] of ``delay`` [R, S] (ns) reaching ``least`` ns, in that order.

    It lasts while above half of it, and is where its largest delay is.
    """
    high = delay >= least / 2
    first_of_each = high & ~np.pad(high[:, :-1], ((0, 0), (1, 0)))
    row, step = np.nonzero(high)
    if not len(row):
        return row, step, np.zeros(0)
    size, first = delay[row, step], np.flatnonzero(first_of_each[row, step])
    largest = np.maximum.reduceat(size, first)
    which = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(size))))
    at = np.flatnonzero(size == largest[which])
    at = at[np.unique(which[at], return_index=True)[1]]
    at = at[size[at] >= least]
    return row[at], step[at], size[at]


def find(delay: Floats, least: float, fewest: int, confirmed: Collection[int] = ()) -> list[Recurring]:
    """Rows of ``delay`` [R, S] (ns) with at least ``fewest`` events of one size, no smaller than ``least`` ns.

    Of rows that another measurement has ``confirmed`` to stall, events of one size are not tested against chance.
    Source: the binomial tail, family-wise over rows and sizes (Bonferroni).
    """
    (rows, steps, every), ranks = events(delay, least), len(delay)
    in_order = np.sort(every)
    if len(in_order) < fewest or ranks < 2:
        return []
    bounds = np.searchsorted(rows, np.arange(ranks + 1))
    least_likely = _CHANCE if ranks >= _FEW_RANKS else _CHANCE_AMONG_FEW
    sizes = 1 + log(float(in_order[-1]) / float(in_order[0])) / log(ALIKE)
    found = []
    for row in np.flatnonzero(np.diff(bounds) >= fewest).tolist():
        of_row = slice(bounds[row], bounds[row + 1])
        row_sizes = np.sort(every[of_row])
        counts = np.searchsorted(row_sizes, ALIKE * row_sizes, side="right") - np.arange(len(row_sizes))
        larger = len(in_order) - np.searchsorted(in_order, row_sizes)
        best = int(np.argmax(larger * _divergence(counts / larger, _BY_CHANCE_ALIKE / ranks)))
        low, count, as_large = float(row_sizes[best]), int(counts[best]), int(larger[best])
        of_size = int(np.searchsorted(in_order, ALIKE * low, side="right")) - int(np.searchsorted(in_order, low))
        any_size = ranks * sizes * tail(count, as_large, _BY_CHANCE_ALIKE / ranks)
        as_large_own = len(row_sizes) - best
        one_size = ranks * min(tail(count, of_size, 1 / ranks), tail(as_large_own, as_large, 1 / ranks))
        one_size = 0.0 if row in confirmed else one_size
        between = int(np.diff(np.searchsorted(row_sizes, [low / ALIKE**2, low / ALIKE]))[0])
        two_states = between <= _MAX_BETWEEN * as_large_own <= _MAX_BETWEEN * _MAX_SHARE * delay.shape[1]
        if two_states and count >= fewest and any_size <= _CHANCE and one_size <= least_likely:
            counted = every[of_row] >= low / ALIKE
            typical = float(np.median(every[of_row][counted]))
            share = np.count_nonzero(counted) / np.count_nonzero(every >= low / ALIKE)
            found.append(Recurring(row, steps[of_row][counted], typical, share, one_size))
    return found


def _divergence(seen: Floats, chance: float) -> Floats:
    """Kullback-Leibler divergence of shares [E] from a chance, 0 below it: Chernoff's bound of the tail."""
    rest = np.where(seen < 1, (1 - seen) * np.log(np.maximum(1 - seen, 1e-300) / (1 - chance)), 0.0)
    return np.asarray(np.where(seen > chance, seen * np.log(seen / chance) + rest, 0.0))


def tail(hits: int, of: int, chance: float) -> float:
    """Probability of at least ``hits`` hits ``of`` so many trials with this ``chance`` each; 1 up to the mean."""
    if hits <= of * chance:
        return 1.0
    ways = lgamma(of + 1) - lgamma(hits + 1) - lgamma(of - hits + 1)
    term = exp(ways + hits * log(chance) + (of - hits) * log(1 - chance))
    total, odds = 0.0, chance / (1 - chance)
    while term > _SMALL * total:  # beyond the mean each term is smaller than the one before
        total += term
        term *= odds * (of - hits) / (hits + 1)
        hits += 1
    return total
