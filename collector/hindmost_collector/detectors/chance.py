"""Noise test for stalls: whether stalls spread over ranks at random would hit the same ranks this often."""

from __future__ import annotations

from math import exp, lgamma, log
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Floats, Ints


def episodes(stalled: Array) -> Ints:
    """Stalls apart in time in each row of [R, S]: steps in a row are one."""
    return np.asarray(np.sum(stalled[:, 1:] & ~stalled[:, :-1], axis=1) + stalled[:, 0])


def far_more(stalls: int, others: int) -> bool:
    """Twice the stalls of the next rank and three sigma of a Poisson count more: no accident of a noisy host."""
    return bool(stalls > 2 * others + 3 * np.sqrt(others + 1))


#: A stall stands apart from normal steps: at most this many steps for each stall lie between a third and two thirds of
#: it.
_BETWEEN = 0.2


def apart(late: Floats, size: float, often: int) -> bool:
    """Whether steps [S] are on time or late by ``size``, ``often`` at least each: what scatters is between."""
    between = np.sum((late > size / 3) & (late < size * 2 / 3))
    return bool(between <= _BETWEEN * often)


#: Share of jobs with random stalls in which one rank may seem to have them: one in 500.
_CHANCE = 0.002


def by_chance(stalls: int, total: int, fair: float, ways: int) -> bool:
    """Whether one of so many may have so many of all stalls, though its ``fair`` share is that: the binomial's tail."""
    if fair >= 1 or stalls <= fair * total:
        return True
    counts = range(stalls, total + 1)
    heads = (lgamma(total + 1) - lgamma(k + 1) - lgamma(total - k + 1) for k in counts)
    tail = sum(exp(head + k * log(fair) + (total - k) * log(1 - fair)) for head, k in zip(heads, counts, strict=True))
    return ways * tail > _CHANCE
