"""Steps that call the same collective several times in a row, as a solver does that makes two dot products a step.

Nothing in the calls tells them apart; time does: one is called after the computing, the others at once after it. Taken
for a step each, every other step would be empty, and what is typical of steps that alternate is true of none.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_judge.types import Array, Floats, Ints

#: Most collectives of a step: with more, it is likelier that each is a step and some hold a log or a check in addition.
_MOST = 16
#: Least ratio of computing before the first of them to computing before all the others together.
_BEYOND = 2.0
#: Share of first collectives that must follow the previous one at the same distance.
_REGULAR = 0.9
#: Steps needed to see that they are regular: no more than there are when a job is first judged.
_LEAST_STEPS = 6


def steps(usual: Array, gap: Floats) -> Ints | None:
    """Step number of every collective [K], -1 for those of none; ``None`` where each is a step of its own.

    ``usual`` [K] are the equal collectives, ``gap`` [K] is the typical self time before each.
    """
    at = np.flatnonzero(usual)
    own = np.nan_to_num(gap[at])
    length = count(own)
    if length == 1:
        return None
    found = np.full(len(gap), -1, np.int64)
    for number, begin in enumerate(_without_gaps(_first_of(own, length), length).tolist()):
        found[at[begin : begin + length]] = number
    return found


def count(own: Floats, most: int = _MOST) -> int:
    """How many alike collectives make a step, ``most`` of them, by the ``own`` time before each [K]."""
    for length in range(2, most + 1):
        first = _first_of(own, length)
        apart = np.diff(first[first >= len(own) // 4])  # starting up has a pattern of its own
        regular = len(apart) >= _LEAST_STEPS and np.mean(apart == length) >= _REGULAR
        if regular and (len(apart) + 1) * length >= _REGULAR * (len(own) - len(own) // 4):  # all of the time
            return length
    return 1


def _first_of(own: Floats, length: int) -> Ints:
    """Those before which more is computed than before all others together that can be of one step with them."""
    total = np.concatenate([[0.0], np.cumsum(own)])
    place = np.arange(len(own))
    after = total[np.minimum(place + length, len(own))] - total[place + 1]
    before = total[place] - total[np.maximum(place - length + 1, 0)]
    whole = place + length <= len(own)
    return np.flatnonzero(whole & (own > 0) & (own >= _BEYOND * np.maximum(after, before)))


def _without_gaps(first: Ints, length: int) -> Ints:
    """With those that something else hid once: whole steps lie between the one before and the one after."""
    between = [np.arange(a, b, length) if (b - a) % length == 0 else np.array([a]) for a, b in pairwise(first.tolist())]
    return np.concatenate([*between, first[-1:]]).astype(np.int64)
