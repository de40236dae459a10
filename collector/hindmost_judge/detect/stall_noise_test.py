"""Noise test for stalls: whether stalls spread over ranks at random would hit the same ranks this often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.rare import tail

if TYPE_CHECKING:
    from hindmost_judge.types import Array, Floats, Ints


def episodes(stalled: Array) -> Ints:
    """Stalls apart in time in each row of [R, S]: steps in a row are one."""
    return np.asarray(np.sum(stalled[:, 1:] & ~stalled[:, :-1], axis=1) + stalled[:, 0])


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
    """Whether one of so many may have so many of all stalls, though its ``fair`` share is that."""
    return fair >= 1 or stalls <= fair * total or ways * tail(stalls, total, fair) > _CHANCE
