"""What ranks that do the same work take for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_judge.types import Floats, Ints

#: From this many ranks on, one rank's own value hardly moves the median of all.
_CROWD = 32


def paces(own: Floats, cohort: Ints) -> tuple[Floats, Floats]:
    """[R, S] median of the *others* of each rank's cohort, its own work for a rank alone; and of all, of two the
    lower."""
    pace, even = own.copy(), own.copy()
    for one in np.unique(cohort):
        members = np.flatnonzero(cohort == one)
        even[members] = np.sort(own[members], axis=0)[(len(members) - 1) // 2]
        if len(members) > _CROWD:
            pace[members] = np.median(own[members], axis=0)
        elif len(members) > 1:
            pace[members] = [np.median(own[members[members != row]], axis=0) for row in members]
    return pace, even
