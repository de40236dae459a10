"""What ranks that do the same work take for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_judge.types import Floats, Ints

#: From this many ranks on, one rank's own value hardly moves the median of all: that of its peers is not computed.
_LARGE_COHORT = 32


def paces(self_time: Floats, cohort: Ints) -> tuple[Floats, Floats]:
    """The pace of each rank's peers, and of its whole cohort, from self times [R, S] and cohort numbers [R].

    Both are [R, S] in the unit of ``self_time``. The first is the median of the *other* ranks, so that a slow rank is
    not compared with itself; for a rank alone it is its own self time. The second is the median with the rank itself;
    of an even number of ranks it is the lower middle one, so of two ranks the faster sets it.
    """
    peer_pace, cohort_pace = self_time.copy(), self_time.copy()
    for number in np.unique(cohort):
        members = np.flatnonzero(cohort == number)
        cohort_pace[members] = np.sort(self_time[members], axis=0)[(len(members) - 1) // 2]
        if len(members) > _LARGE_COHORT:
            peer_pace[members] = np.median(self_time[members], axis=0)
        elif len(members) > 1:
            peer_pace[members] = [np.median(self_time[members[members != row]], axis=0) for row in members]
    return peer_pace, cohort_pace
