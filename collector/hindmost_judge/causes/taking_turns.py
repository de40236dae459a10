"""Whether another process takes turns on a rank's GPU, from nothing but the begins of its collectives.

Two processes that share a GPU each have it for a slice of time, one or two ms, and then wait for as long. Computing
between two collectives mostly takes as long as ever, and now and then a slice longer: at another place in each step,
several times in each, and at every place in some. All slices are of one length. Slow code is slow at the same
places, a stall is rare, and noise is of any size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindmost_judge.stats.robust import median

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.types import Array, Floats

#: A place has no time slice of another process in at least the first share of the steps; its scatter shows below the
#: second.
_ALONE, _LEAST = 0.2, 0.05
#: … in standard deviations of a normal distribution.
_DEVIATIONS = 0.8
#: A time longer than alone by this share, and by this many standard deviations, waited for a slice.
_SHARE, _BEYOND_CHANCE = 0.1, 6.0
#: … in nearly all steps, at places with most of the computing time, and at no place always.
_STEPS, _PLACES = 0.9, 0.75
#: Least slices per step: a single one may be a pause of its host.
_OFTEN = 1.5
#: The middle half of all slices differ by at most this share of one: on H200s by 0.04 to 0.13.
_ONE_LENGTH = 0.25
#: The typical step is longer by this share than alone: by 0.14 to 0.28 in recordings of shared GPUs.
_LONGER = 0.06
#: Least places of a step that must be known.
_FEWEST = 5


class Turns(NamedTuple):
    """What a rank computes ``alone`` [P] ns before each collective, and the ns of a ``slice`` that it waits for."""

    alone: Floats
    slice: float


def in_all(usual: Floats, took: Floats) -> Floats:
    """[P] what is ``usual`` at each place, as long in all as in the typical step of those that ``took`` [N, P] ns.

    What comes at another place in each step shows in the median of none.
    """
    return np.asarray(usual * max(_in_all(usual, took) / max(float(np.nansum(usual)), 1.0), 1.0))


def find(usual: Floats, took: Floats) -> Turns | None:
    """The turns that show in what a rank ``took`` [N, P] ns before each collective; ``None`` where there are none."""
    known = ~np.isnan(usual)
    if np.sum(known) < _FEWEST:
        return None
    held = took[:, known]
    least, alone = np.nanquantile(held, [_LEAST, _ALONE], axis=0)
    more = held - alone
    waited = more > np.fmax(_SHARE * alone, _BEYOND_CHANCE * (alone - least) / _DEVIATIONS)
    often = waited.mean(axis=0)
    there = float(alone[(often > 0) & (often <= 1 - _ALONE)].sum())
    if there < _PLACES * float(alone.sum()) or waited.any(axis=1).mean() < _STEPS or waited.sum(axis=1).mean() < _OFTEN:
        return None
    whole = _in_all(usual, took)
    few, typical, many = np.quantile(more[waited], [0.25, 0.5, 0.75]).tolist()
    if whole < (1 + _LONGER) * float(alone.sum()) or many - few > _ONE_LENGTH * typical:
        return None
    by_itself: Floats = usual.copy()
    by_itself[known] = median(np.where(waited, np.nan, held), axis=0)
    return Turns(by_itself, typical)


def others_seen(blocks: Blocks, row: int, columns: Array) -> bool:
    """Whether memory that other processes hold of a rank's GPU was measured: that says more."""
    foreign = blocks.gauges(columns).get("foreign_memory")
    return foreign is not None and not np.isnan(foreign[row])


def _in_all(usual: Floats, took: Floats) -> float:
    """Ns that the typical step takes at the places of which it is known what is usual."""
    each = np.nansum(np.where(np.isnan(took), usual, took), where=~np.isnan(usual), axis=1)
    return float(median(each))
