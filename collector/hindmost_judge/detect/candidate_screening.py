"""Candidate screening: finds ranks that may be persistently late, in all ranks at once; only these are judged one by
one."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import MAD_TO_SIGMA, MEDIAN_COST, block_medians, median

if TYPE_CHECKING:
    from hindmost_judge.types import Floats, Ints

#: A block of steps must exceed the rank's own noise by this many standard errors to make the rank a candidate.
_STANDS_OUT = 3.5
#: In a large job the limit rises until chance alone makes at most this many such blocks.
_MOST_BY_CHANCE = 8


def find(excess: Floats, smallest: float, large: float) -> Ints:
    """Rows worth a closer look, latest first: late on the whole, or in some block of steps beyond their own noise.

    What is ``large`` in one is that, though turns of being slow be most of what seems noise.
    """
    levels = np.nan_to_num(_levels(excess))
    highest = levels.max(axis=1)
    found = np.flatnonzero(highest >= smallest)
    part = excess[found]
    usual = median(part, axis=1)
    noise = MAD_TO_SIGMA * MEDIAN_COST * median(np.abs(part - usual[:, None]), axis=1)
    beyond = highest[found] >= usual + _stands_out(levels.size) * noise / np.sqrt(excess.shape[1] / levels.shape[1])
    found = found[(usual >= smallest) | beyond | (highest[found] >= large)]
    return np.asarray(found[np.argsort(-highest[found], kind="stable")])


def _stands_out(blocks: int) -> float:
    """How many standard errors one of so many blocks of steps must be above a rank's own noise."""
    by_chance = NormalDist().inv_cdf(1 - _MOST_BY_CHANCE / blocks) if blocks > 2 * _MOST_BY_CHANCE else 0.0
    return max(_STANDS_OUT, by_chance)


#: Steps of a block, short enough to show a segment of a dozen; and most blocks in a long run.
_BLOCK, _MOST_BLOCKS = 8, 64


def _levels(excess: Floats) -> Floats:
    """[R, B] medians of blocks of steps."""
    size = max(_BLOCK, excess.shape[1] // _MOST_BLOCKS)
    count = excess.shape[1] // size
    if count <= _MOST_BLOCKS // 4:  # so short that blocks need not be of one length
        return block_medians(excess)
    return np.asarray(median(excess[:, : count * size].reshape(len(excess), count, size), axis=2))
