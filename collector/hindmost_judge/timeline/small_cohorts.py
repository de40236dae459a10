"""How far ranks are behind the calm ones of their cohort, where most peers may be late in the same step.

Delays are measured against the median of a rank's peers. If that median is late itself, ranks on time seem ahead, and
late ones on time: then the early ranks are the baseline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_judge.types import Floats, Ints

#: One in this many of a cohort's earliest ranks may be ahead by chance: the next one is the baseline.
_EARLY = 4
#: In cohorts of odd size the baseline is the mean of the two middle peers, which exaggerates their difference by this
#: factor.
_MIDDLE = 1.5


def behind(excess: Floats, role: Ints) -> Floats:
    """[R, K] ns behind an early rank of the same cohort, from how far each is beyond the median of its peers.

    That rank is the earliest of up to four, the second of up to eight, and so on; ranks ahead of it count as 0.
    """
    found = np.zeros_like(excess)
    for one in np.unique(role):
        rows = np.flatnonzero(role == one)
        if len(rows) > 1:
            apart = _apart(excess[rows])
            found[rows] = apart - np.sort(apart, axis=0)[(len(rows) - 1) // _EARLY]
    return found


def _apart(excess: Floats) -> Floats:
    """[N, K] how far ranks are apart; each delay is against another median, since a rank is not its own peer."""
    count = len(excess)
    order = np.argsort(excess, axis=0, kind="stable")
    ranked = np.take_along_axis(excess, order, axis=0)
    lower = (count - 2) // 2 if count % 2 == 0 else count // 2 - 1  # the last that is against the later ranks' middle
    apart = ranked - ranked[lower]
    if count % 2 == 0:
        apart[lower + 1 :] = ranked[lower + 1 :]
    else:
        above = lower + 1 + min(1, count - lower - 2)
        apart[lower + 1 : above + 1] /= _MIDDLE
        apart[above + 1 :] = apart[above] + ranked[above + 1 :] - ranked[above]
    found: Floats = np.empty_like(apart)
    np.put_along_axis(found, order, apart, axis=0)
    return found
